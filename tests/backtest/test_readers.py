"""Recorded runs are read as they were reported, and what cannot be read says why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fusewire_webhook.backtest.model import LogError
from fusewire_webhook.backtest.readers import find, labelled, read


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_empty_cells_are_no_reports_and_nan_and_inf_are(tmp_path: Path) -> None:
    """A CSV keeps the difference between nothing, NaN and infinity."""
    log = read(write(tmp_path / "a.csv", "step,reward,approx_kl\n1,nan,\n2,5,inf\n3,,-inf\n"))
    assert log.id == "a"
    assert log.rows == 3
    reward, kl = log.columns["episode_return"], log.columns["approx_kl"]
    assert reward.reported.tolist() == [True, True, False]
    assert np.isnan(reward.values[0])
    assert kl.reported.tolist() == [False, True, True]
    assert kl.values[1:].tolist() == [np.inf, -np.inf]


def test_names_of_other_trainers_are_known_and_a_mapping_wins(tmp_path: Path) -> None:
    """Stable-Baselines' and TRL's names need no help; a user's own name can be given."""
    path = write(tmp_path / "a.csv", "rollout/ep_rew_mean,train/approx_kl,my_return\n1,2,3\n")
    assert set(read(path).columns) == {"episode_return", "approx_kl"}
    assert read(path, mapping={"episode_return": "my_return"}).columns["episode_return"].values.tolist() == [3.0]


def test_odd_steps_and_cells_are_noted_and_rows_keep_their_order(tmp_path: Path) -> None:
    """Steps that go back or repeat, short rows and words among numbers do not lose a row."""
    log = read(write(tmp_path / "a.csv", "step,reward\n3,1\n2,oops\n2,3\n7\n"))
    assert log.columns["episode_return"].reported.tolist() == [True, False, True, False]
    assert log.steps.tolist() == [3.0, 2.0, 2.0, 7.0]
    notes = " | ".join(log.notes)
    assert "goes back 1 times" in notes
    assert "repeats 1 times" in notes
    assert "1 cells are no numbers" in notes


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "no column is a known signal"),
        ("a.csv", "step,reward\n", "no rows"),
        ("a.csv", "step,foo\n1,2\n", "--column SIGNAL=COLUMN"),
        ("a.csv", "step,reward\n1,\n", "hold no number"),
        ("a.csv", "reward,reward\n1,2\n", "same name"),
        ("a.json", "{", "not JSON"),
        ("a.json", '{"x": 1}', "log_history"),
        ("a.json", "[" * 100_000, "cannot be read"),
        ("a.jsonl", '{"reward": 1}\nnope\n', "line 2"),
        ("a.jsonl", "1\n", "no JSON object"),
        ("a.txt", "x", "not a .csv"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, text: str, words: str) -> None:
    """Each unusable file is named with its fault."""
    path = write(tmp_path / name, text)
    with pytest.raises(LogError, match=f"{path.stem}.*{words}"):
        read(path)


def test_a_trainer_state_and_a_wandb_history_are_tables(tmp_path: Path) -> None:
    """Rows of JSON may report different signals; time stamps become seconds since the start."""
    state = {"log_history": [{"step": 1, "kl": 0.1, "reward": 0.5}, {"step": 2, "loss": 3.0}]}
    log = read(write(tmp_path / "mine" / "trainer_state.json", json.dumps(state)))
    assert log.id == "mine"
    assert log.columns["reference_kl"].reported.tolist() == [True, False]
    assert log.columns["policy_loss"].values[1] == 3.0
    rows = '{"_step": 5, "_timestamp": 100.0, "reward": 1}\n\n{"_step": 6, "_timestamp": 102.5, "reward": null}\n'
    log = read(write(tmp_path / "h.jsonl", rows))
    assert log.seconds is not None
    assert log.seconds.tolist() == [0.0, 2.5]
    assert log.columns["episode_return"].reported.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "rows", "signals"),
    [
        ("trainer_state.json", {"kl": 9.0}, {"reference_kl": 9.0}),
        (
            "trainer_state.json",
            {"objective/kl": 9.0, "policy/approxkl_avg": 0.001},
            {"reference_kl": 9.0, "approx_kl": 0.001},
        ),
        (
            "history.json",
            {"train/objective/kl": 9.0, "train/policy/approxkl_avg": 0.001, "train/loss/value_avg": 2.0},
            {"reference_kl": 9.0, "approx_kl": 0.001, "value_loss": 2.0},
        ),
        ("history.json", {"train/kl": 9.0}, {"reference_kl": 9.0}),
        ("history.json", {"kl": 0.01}, {"approx_kl": 0.01}),
    ],
)
def test_the_kl_to_a_reference_model_is_not_the_kl_of_an_update(
    tmp_path: Path, name: str, rows: dict[str, float], signals: dict[str, float]
) -> None:
    """TRL's kl and objective/kl grow with a good run; only its approxkl is what one update did to the policy."""
    key = "log_history" if name == "trainer_state.json" else "history"
    log = read(write(tmp_path / "run" / name, json.dumps({key: [rows]})))
    assert {signal: column.values[0] for signal, column in log.columns.items()} == signals


def test_a_column_that_the_user_names_wins_over_what_a_trainer_state_means(tmp_path: Path) -> None:
    """Who knows their kl to be that of an update says so."""
    path = write(tmp_path / "run" / "trainer_state.json", json.dumps({"log_history": [{"kl": 0.01, "my_kl": 2.0}]}))
    assert read(path, mapping={"reference_kl": "my_kl", "approx_kl": "kl"}).columns["approx_kl"].values[0] == 0.01


def test_a_folder_of_checkpoints_is_one_run_with_the_newest_history(tmp_path: Path) -> None:
    """A Hugging Face trainer leaves a state in each checkpoint, and other JSON beside it that is no log."""
    for run in ("a", "b"):
        for step in (90, 500):
            rows = [{"step": n, "reward": float(n)} for n in range(0, step, 10)]
            write(tmp_path / run / f"checkpoint-{step}" / "trainer_state.json", json.dumps({"log_history": rows}))
            write(tmp_path / run / f"checkpoint-{step}" / "config.json", "{}")
        write(tmp_path / run / "config.json", "{}")
    final = json.dumps({"log_history": [{"reward": 1.0}]})
    write(tmp_path / "b" / "trainer_state.json", final)
    write(tmp_path / "index.csv", "id,label\na,healthy\nb,bad\n")
    assert [facts["label"] for _, facts in find([tmp_path])[0]] == ["healthy", "bad"]
    for paths in ([tmp_path], [tmp_path / "a", tmp_path / "b"]):
        found, errors = find(paths)
        assert not errors
        assert [(log.id, log.rows) for log in (read(path) for path, _ in found)] == [("a", 50), ("b", 1)]
    ((one, _),), _ = find([tmp_path / "a" / "checkpoint-90"])
    assert (read(one).id, read(one).rows) == ("a", 9)


def test_the_export_of_a_weights_and_biases_page_needs_no_mapping(tmp_path: Path) -> None:
    """Its columns begin with the run's name; several runs in one file are refused."""
    header = '"Step","run - 1 - train/approx_kl","run - 1 - train/approx_kl__MIN","run - 1 - train/approx_kl__MAX"'
    log = read(write(tmp_path / "one.csv", f"{header}\n5,0.1,0,9\n6,0.2,0,9\n"))
    assert log.columns["approx_kl"].values.tolist() == [0.1, 0.2]
    assert log.steps.tolist() == [5.0, 6.0]
    two = write(tmp_path / "two.csv", "Step,a - reward,b - reward\n1,2,3\n")
    with pytest.raises(LogError, match="several runs \\('a', 'b'\\)"):
        read(two)
    assert read(two, mapping={"episode_return": "b - reward"}).columns["episode_return"].values.tolist() == [3.0]


def test_a_column_that_is_not_there_is_noted(tmp_path: Path) -> None:
    """A misspelt --column is not lost among columns that are known anyway."""
    log = read(write(tmp_path / "a.csv", "kl,mine\n1,2\n"), mapping={"episode_return": "mein"})
    assert log.notes == ("has no column mein, which --column names for episode_return; it has kl, mine",)


def event_file(folder: Path, scalars: list[tuple[int, str, float]]) -> None:
    """Written in this order, a second each."""
    why = "reading TensorBoard needs the extra report"
    event = pytest.importorskip("tensorboard.compat.proto.event_pb2", reason=why)
    summary = pytest.importorskip("tensorboard.compat.proto.summary_pb2", reason=why)
    files = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason=why)
    writer = files.EventFileWriter(str(folder))
    for second, (step, tag, value) in enumerate(scalars):
        scalar = summary.Summary(value=[summary.Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(event.Event(step=step, wall_time=100.0 + second, summary=scalar))
    writer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events_become_rows_by_step(tmp_path: Path) -> None:
    """Scalars of one step are one row, in the order of the steps."""
    scalars = [(1, "rollout/ep_rew_mean", 7.0), (2, "train/approx_kl", 0.5), (1, "train/approx_kl", 0.25)]
    event_file(tmp_path / "run1", scalars)
    ((path, _),), _ = find([tmp_path / "run1"])
    log = read(path)
    assert log.id == "run1"
    assert log.steps.tolist() == [1.0, 2.0]
    assert log.columns["approx_kl"].values.tolist() == [0.25, 0.5]
    assert log.columns["episode_return"].reported.tolist() == [True, False]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("files", [1, 2])
def test_what_tensorboard_hides_after_a_restart_is_read_in_the_order_of_writing(tmp_path: Path, files: int) -> None:
    """A run that went back from step 4 to step 2 shows both attempts, and says that the step went back."""
    first = [(step, tag, float(step)) for step in range(5) for tag in ("train/approx_kl", "rollout/ep_rew_mean")]
    second = [
        (step, tag, 10.0 + step) for step in range(2, 4) for tag in ("train/approx_kl", "rollout/ep_rew_mean")
    ]
    event_file(tmp_path / "run", first if files == 2 else first + second)
    if files == 2:
        (written,) = (tmp_path / "run").iterdir()
        written.rename(written.with_name("events.out.tfevents.0"))
        event_file(tmp_path / "run", second)
    log = read(tmp_path / "run")
    assert log.steps.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 2.0, 3.0]
    assert log.columns["approx_kl"].values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 12.0, 13.0]
    assert log.columns["episode_return"].reported.all()
    assert log.notes == ("the step goes back 1 times; rows were taken in their order",)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_event_file_that_is_none_is_named(tmp_path: Path) -> None:
    """Noise instead of records is no traceback."""
    pytest.importorskip("tensorboard", reason="reading TensorBoard needs the extra report")
    (tmp_path / "events.out.tfevents.x").write_bytes(b"\xff" * 500)
    with pytest.raises(LogError, match="no scalars that can be read"):
        read(tmp_path)


def test_a_folder_stands_for_its_logs_and_its_index_labels_them(tmp_path: Path) -> None:
    """index.csv names algorithm, label and first bad row; a row that is not there is refused. Verdicts are none."""
    write(tmp_path / "1.csv", "reward\n1\n2\n")
    write(tmp_path / "2.csv", "reward\n1\n")
    write(tmp_path / "index.csv", "id,algorithm,label,first_bad_row\n1,ppo,diverged,1\n2,ppo,diverged,9\n")
    write(tmp_path / "verdicts.json", '{"time": "one row = one scrape", "rules": [], "errors": [], "runs": []}')
    ((first, facts), (second, wrong)), _ = find([tmp_path])
    log = labelled(read(first), facts)
    assert (log.algorithm, log.label, log.first_bad_row, log.is_bad) == ("ppo", "diverged", 1, True)
    with pytest.raises(LogError, match="first_bad_row '9'"):
        labelled(read(second), wrong)


def test_a_missing_path_and_an_empty_folder_are_named_and_cost_no_other_log(tmp_path: Path) -> None:
    """What leads to no log is an error beside the logs that were found."""
    (tmp_path / "empty").mkdir()
    good = write(tmp_path / "a.csv", "reward\n1\n")
    write(tmp_path / "odd" / "index.csv", "name\n1\n")
    write(tmp_path / "odd" / "b.csv", "reward\n1\n")
    found, errors = find([tmp_path / "none", tmp_path / "empty", good, tmp_path / "odd"])
    assert [path for path, _ in found] == [good]
    assert [str(error).split(": ")[1].split(";")[0] for error in errors] == [
        "no such file or folder",
        "holds no .csv, .json, .jsonl or TensorBoard event file",
        "has no column id",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"reward": 1, "x": "\xff"}\n{"reward": 2}\n'),
        ("a.csv", b"\xef\xbb\xbfreward,x\n1,\xff\n2,\n"),
        ("a.json", b'\xef\xbb\xbf{"history": [{"reward": 1}, {"reward": 2, "x": "\xff"}]}'),
    ],
)
def test_a_mark_of_the_byte_order_and_a_byte_that_is_no_text_spoil_no_column(
    tmp_path: Path, name: str, content: bytes
) -> None:
    """Files written by Windows tools are read."""
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name).columns["episode_return"].values.tolist() == [1.0, 2.0]


def test_an_integer_beyond_every_float_is_infinite(tmp_path: Path) -> None:
    """As the same digits are in a CSV."""
    rows = json.dumps([{"reward": 10**400}, {"reward": -(10**400)}])
    values = read(write(tmp_path / "a.json", rows)).columns["episode_return"].values
    assert values.tolist() == [np.inf, -np.inf]
