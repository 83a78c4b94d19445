"""GPU hours and counts, computed by promtool from series whose answer is known."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from grafana import queries
from grafana.verify import fill

VALUES = {"run": ".+", "hours": "8", "__range": "1h", "__interval": "1m"}

WATCHED = {
    # Four GPUs until the trip at minute 20, at update 100 of which 80 are kept; two minutes in OPEN; then again,
    # under another host name: each attempt is a container of its own.
    'up{job="fusewire",run="a",attempt="0",instance="fusewire-a-0:1"}': "1x19 _x41",
    'up{job="fusewire",run="a",attempt="1",instance="fusewire-a-1:1"}': "_x22 1x38",
    'rl_step{run="a",attempt="0"}': "5+5x19 _x41",
    'rl_step{run="a",attempt="1"}': "_x22 80+5x38",
    'rl_step_duration_usual_seconds{run="a",attempt="0"}': "12x19 _x41",
    'rl_step_duration_usual_seconds{run="a",attempt="1"}': "_x22 12x38",
    'fusewire_snapshot_promoted_step{run="a"}': "80x60",
    'fusewire_trips_total{run="a",failure_class="divergence"}': "0x19 1x40",
    'fusewire_trips_total{run="a",failure_class="infrastructure"}': "0x60",
    'fusewire_run_state{run="a",state="open"}': "0x19 1x1 0x38",
    'fusewire_run_state{run="a",state="closed"}': "1x19 0x1 1x38",
    **{
        f'gpu_memory_total_bytes{{run="a",attempt="{n}",gpu="{gpu}",instance="fusewire-a-{n}:{rank}"}}': answers
        for n, answers in enumerate(("80x19 _x41", "_x22 80x38"))
        for gpu in range(4)
        for rank in range(2)  # both see all four
    },
    # A run without a GPU and without a failure counts as one GPU.
    'up{job="fusewire",run="b",attempt="0",instance="h:2"}': "1x60",
    'fusewire_trips_total{run="b",failure_class="divergence"}': "0x60",
    'fusewire_run_state{run="b",state="open"}': "0x60",
    'fusewire_run_state{run="b",state="closed"}': "1x60",
    **{
        f'fusewire_run_state{{run="{run}",state="{state}"}}': "0x60"
        for run in "ab"
        for state in ("half_open", "locked", "completed")
    },
}


def ask(folder: Path, expr: str, expected: dict[str, float], *, at: str = "60m") -> None:
    """Let promtool compare the value of each run."""
    content = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in WATCHED.items()],
                "promql_expr_test": [
                    {
                        "expr": fill(expr, VALUES),
                        "eval_time": at,
                        "exp_samples": [
                            {"labels": f'{{run="{run}"}}', "value": value} for run, value in expected.items()
                        ],
                    }
                ],
            }
        ],
    }
    (folder / "figures.test.yaml").write_text(yaml.safe_dump(content))
    done = subprocess.run(
        ["promtool", "test", "rules", str(folder / "figures.test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rounded(expr: str) -> str:
    """To a tenth of an hour: sums over time are in steps of 15 s and a look-back of five minutes."""
    return f"round({expr}, 0.1)"


def test_hours_used(tmp_path: Path) -> None:
    """Twenty and 39 minutes on four GPUs, and the look-back of Prometheus; an hour on one."""
    ask(tmp_path, rounded(queries.gpu_hours_used()), {"a": 4.0, "b": 1.0})


def test_hours_lost(tmp_path: Path) -> None:
    """Twenty updates of 12 s and two minutes in OPEN, on four GPUs: 0.4 h; nothing where nothing failed."""
    ask(tmp_path, rounded(queries.gpu_hours_lost()), {"a": 0.4, "b": 0.0})


def test_hours_saved(tmp_path: Path) -> None:
    """One divergence that a person would have seen after 8 h, on four GPUs."""
    ask(tmp_path, queries.gpu_hours_saved(), {"a": 32.0, "b": 0.0})


@pytest.mark.parametrize(("at", "gained"), [("20m", 1.0), ("21m", 0.0), ("19m", 0.0)])
def test_an_event_is_counted_in_exactly_one_interval(tmp_path: Path, at: str, gained: float) -> None:
    """A trip shows in the interval in which it happened and in no other."""
    trips = queries.new("fusewire_trips_total", queries.RUNS, by="run")
    ask(tmp_path, trips, {"a": gained, "b": 0.0}, at=at)


def test_the_number_of_a_state(tmp_path: Path) -> None:
    """The state's place in the list, for every run."""
    states = queries.state_number(queries.RUNS)
    ask(tmp_path, states, {"a": 2.0, "b": 0.0}, at="20m")


def test_a_short_state_is_not_lost_between_two_points(tmp_path: Path) -> None:
    """A run that was OPEN and is CLOSED again shows as OPEN at the next point, and no longer."""
    ask(tmp_path, queries.worst_state(queries.RUNS), {"a": 2.0, "b": 0.0}, at="22m")
    ask(tmp_path, queries.worst_state(queries.RUNS), {"a": 0.0, "b": 0.0}, at="23m")
