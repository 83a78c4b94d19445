"""`fusewire backtest` from the outside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fusewire_webhook.cli import BAD_INPUT, FAILED, OK, main

RULES = """
groups:
  - name: g
    interval: 1s
    rules:
      - alert: Trip
        expr: max by (run, attempt) (last_over_time(rl_approx_kl[4s])) > 1
        labels: {action: trip, class: divergence}
"""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "bad.csv").write_text("kl\n0\n0\n5\n5\n")
    (folder / "good.csv").write_text("kl\n0\n0\n0\n0\n")
    (folder / "index.csv").write_text(
        "id,algorithm,source,label,first_bad_row\nbad,ppo,s,diverged,2\ngood,ppo,s,healthy,\n"
    )
    return folder


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "x.rules.yaml"
    path.write_text(RULES)
    return str(path)


def test_table_json_and_pictures(
    logs: Path, rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One call gives a table, the documented JSON, and a picture per run, and says how rows became time."""
    target, pictures = tmp_path / "o.json", tmp_path / "pictures"
    code = main(
        ["backtest", str(logs), "--rules", rules, "--json", str(target), "--pictures", str(pictures), "--jobs", "1"]
    )
    assert code == OK
    shown = capsys.readouterr()
    assert "bad caught 1 of 1" in shown.out
    assert "one row = one scrape, scraped every 1 s" in shown.err
    document = json.loads(target.read_text())
    assert {run["id"]: run["tripped_row"] for run in document["runs"]} == {"bad": 2, "good": None}
    assert document["score"]["bad"] == {"tripped": 1, "runs": 1, "early": 0}
    assert sorted(path.name for path in pictures.iterdir()) == ["bad.png", "good.png"]


def test_each_verdict_is_told_as_it_is_known(logs: Path, rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each run, counted; of a sweep how many of the values trip it."""
    assert main(["backtest", str(logs), "--rules", rules, "--jobs", "1"]) == OK
    lines = [line for line in capsys.readouterr().err.splitlines() if " of 2  " in line]
    assert sorted(line.split("  ", 1)[1] for line in lines) == ["bad: tripped at row 2 by Trip", "good: no trip"]
    assert [line.split(" of ")[0] for line in lines] == ["1", "2"]
    main(["backtest", str(logs), "--rules", rules, "--sweep", "Trip.threshold=2,9", "--jobs", "1"])
    assert "bad: tripped by 1 of 2 values\n" in capsys.readouterr().err


def test_a_killed_process_is_one_line(
    logs: Path, rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, and no exit code that blames the input."""
    (tmp_path / "promtool").write_text('#!/bin/sh\n[ "$1" = check ] || kill -9 $$\n')
    (tmp_path / "promtool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["backtest", str(logs), "--rules", rules, "--jobs", "1"]) == FAILED
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("fusewire: "))
    assert "promtool was ended by SIGKILL while it judged 1 run. " in line


def test_a_bad_log_is_named_and_the_others_are_still_reported(
    logs: Path, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says that something was left out."""
    (logs / "odd.csv").write_text("foo\n1\n")
    assert main(["backtest", str(logs), "--rules", rules, "--json", "-", "--jobs", "1"]) == FAILED
    shown = capsys.readouterr()
    assert "odd: no column is a known signal" in shown.err
    document = json.loads(shown.out)
    assert [run["id"] for run in document["runs"]] == ["bad", "good"]
    assert "odd" in document["errors"][0]


def test_a_rule_that_reads_what_nothing_makes_or_no_run_shows_is_told(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule that cannot speak is not taken for one that found nothing."""
    path = tmp_path / "x.rules.yaml"
    path.write_text(
        RULES.replace("rl_approx_kl", "rl_aprox_kl") + RULES.replace("rl_approx_kl", "rl_grad_norm")[9:]
    )
    path.write_text(path.read_text().replace("name: g", "name: h", 1))
    assert main(["backtest", str(logs), "--rules", str(path), "--jobs", "1"]) == OK
    shown = capsys.readouterr().err
    assert f"{path}: Trip: no series is called rl_aprox_kl; did you mean rl_approx_kl?" in shown
    assert "note: Trip judged 0 of 2 runs" in shown


def test_an_override_for_an_algorithm_that_no_log_has_is_told(
    logs: Path, rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index's algorithms are free text, and an override that matches none of them does nothing."""
    path = tmp_path / "mine.rules.yaml"
    override = '{record: "fusewire:override", labels: {threshold: x, algorithm: "%s"}, expr: vector(1)}'
    rules_for = ", ".join(override % algorithm for algorithm in ("ppo", "PPO (SB3)"))
    path.write_text(f"groups: [{{name: mine, rules: [{rules_for}]}}]")
    main(["backtest", str(logs), "--rules", rules, "--rules", str(path), "--jobs", "1"])
    notes = [line for line in capsys.readouterr().err.splitlines() if "override" in line]
    assert len(notes) == 1
    assert notes[0].startswith("note: no run has the algorithm PPO (SB3) that an override is for; theirs are 'ppo'")


def test_a_sweep_prints_the_trade_off(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per value."""
    path = tmp_path / "x.rules.yaml"
    path.write_text(RULES)
    assert main(["backtest", str(logs), "--rules", str(path), "--sweep", "Trip.for=0s,9s", "--jobs", "1"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split()[7:10] == ["1", "of", "1"]
    assert lines[-1].split()[7:10] == ["0", "of", "1"]


def test_a_sweep_as_json_and_the_number_that_an_alert_compares_with(
    logs: Path, rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pack without named thresholds can be swept too, and a machine can read the result."""
    target = tmp_path / "o.json"
    command = ["backtest", str(logs), "--rules", rules, "--sweep", "Trip.threshold=2,9", "--jobs", "1"]
    assert main([*command, "--json", str(target)]) == OK
    assert "Trip.threshold" in capsys.readouterr().out
    document = json.loads(target.read_text())
    assert document["sweep"] == "Trip.threshold"
    assert [point["tripped_rows"]["bad"] for point in document["points"]] == [2, None]
    assert [point["score"]["bad"]["tripped"] for point in document["points"]] == [1, 0]


def test_a_path_that_leads_nowhere_costs_no_other_log(
    logs: Path, rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The logs that exist are reported."""
    nowhere = str(tmp_path / "nowhere.csv")
    assert main(["backtest", nowhere, str(logs), "--rules", rules, "--json", "-", "--jobs", "1"]) == FAILED
    shown = capsys.readouterr()
    assert f"{nowhere}: no such file" in shown.err
    assert [run["id"] for run in json.loads(shown.out)["runs"]] == ["bad", "good"]


def test_without_any_log_there_is_no_table(rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is the only thing that is said; whoever asked for JSON gets it all the same."""
    nowhere = str(tmp_path / "nowhere.csv")
    assert main(["backtest", nowhere, "--rules", rules]) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{nowhere}: no such file" in shown.err.splitlines()[-1]
    assert main(["backtest", nowhere, "--rules", rules, "--json", "-"]) == FAILED
    assert json.loads(capsys.readouterr().out)["runs"] == []


def test_a_prometheus_that_does_not_answer_costs_no_log(
    logs: Path, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files are reported."""
    live = ["--prometheus", "http://127.0.0.1:1", "--run", "r"]
    assert main(["backtest", str(logs), *live, "--rules", rules, "--json", "-", "--jobs", "1"]) == FAILED
    shown = capsys.readouterr()
    assert "cannot be reached" in shown.err
    assert [run["id"] for run in json.loads(shown.out)["runs"]] == ["bad", "good"]


def test_a_log_of_other_signals_is_reported_and_drawn(rules: str, tmp_path: Path) -> None:
    """A run that shows only its learning rate has a picture of that."""
    log, target = tmp_path / "lr.csv", tmp_path / "o.json"
    log.write_text("lr\n1\n2\n")
    pictures = tmp_path / "pictures"
    code = main(["backtest", str(log), "--rules", rules, "--json", str(target), "--pictures", str(pictures)])
    assert code == OK
    assert target.exists()
    assert (pictures / "lr.png").exists()


@pytest.mark.parametrize(
    "text",
    [
        "groups: [foo]",
        RULES.replace("1s", "1x"),
        RULES.replace("expr:", "exp:"),
        "groups: \xff",
    ],
)
def test_rules_that_are_none_are_one_line(
    text: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken rule file is named before anything runs."""
    path = tmp_path / "y.rules.yaml"
    path.write_bytes(text.encode("latin-1"))
    assert main(["backtest", str(logs), "--rules", str(path), "--jobs", "1"]) == BAD_INPUT
    shown = capsys.readouterr().err
    assert "y.rules.yaml" in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a log"),
        (["LOGS", "--time", "soon"], "--time soon"),
        (["LOGS", "--sweep", "x"], "NAME=V1"),
        (["LOGS", "--column", "x=y"], "signals are"),
        (["LOGS", "--window", "0"], "--window 0"),
        (["LOGS", "--scrape-interval", "nan"], "--scrape-interval nan"),
        (["LOGS", "--scrape-interval", "inf"], "--scrape-interval inf"),
        (["LOGS", "--json", "LOGS/no/such/o.json"], "a folder that exists"),
        (["LOGS", "--json", "LOGS"], "a folder that exists"),
        (["LOGS", "--pictures", "LOGS/bad.csv"], "no folder for pictures"),
        (["LOGS", "--sweep", "Trip.for=1s", "--pictures", "LOGS/pictures"], "a sweep draws none"),
        (["LOGS", "--sweep", "Trip.for=soon"], "'soon' is no duration"),
        (["LOGS", "--sweep", "Trip.threshold=abc"], "'abc' is no number"),
        (["LOGS", "--sweep", "approx_kl=nan"], "'nan' is no number"),
        (["LOGS", "--prometheus", "http://127.0.0.1:1"], "--run NAME"),
        (["LOGS", "--prometheus", "http://127.0.0.1:1", "--run", "r", "--range", "x"], "--range"),
        (["--prometheus", "http://[x", "--run", "r"], "--prometheus http://[x"),
        (["--prometheus", "http://127.0.0.1:1", "--run", "r", "--range", "2d"], "100,000 scrapes"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(
    logs: Path, rules: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake is refused before anything runs."""
    given = [argument.replace("LOGS", str(logs)) for argument in arguments]
    assert main(["backtest", "--rules", rules, "--jobs", "1", *given]) == BAD_INPUT
    assert words in capsys.readouterr().err
