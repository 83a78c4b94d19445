"""The lines that ``fusewire run`` shows."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fusewire_webhook.breaker.events import (
    AlertReported,
    AttemptStarted,
    Event,
    SnapshotJudged,
    SnapshotPromoted,
    SnapshotRejected,
    SnapshotSeen,
    WouldHaveActed,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.cli.progress import Progress, last_snapshot

VIEW = replace(view_of("toy", 0, RunState()), attempt=1, live=True)
STARTED = AttemptStarted(attempt=1, handle={})


@pytest.mark.parametrize(
    ("view", "alert", "words"),
    [
        ({}, {"attempt": 1}, ""),
        ({}, {"attempt": 0}, " (older attempt: recorded only)"),
        ({"attempt": 2}, {"attempt": 1}, ""),
        ({"paused": True}, {"attempt": 1}, " (held: the run is paused)"),
        ({"paused": True, "tripped": True}, {"attempt": 1}, ""),
        ({"paused": True}, {"attempt": 0}, " (older attempt: recorded only)"),
        ({"paused": True}, {"attempt": 1, "status": "resolved"}, ""),
        ({"paused": True}, {"attempt": 1, "action": ""}, ""),
    ],
)
def test_a_trip_alert_that_stops_nothing_says_why(view: dict[str, Any], alert: dict[str, Any], words: str) -> None:
    """Of an older attempt (as of the alert, not of a view that is further by now), or held by a pause."""
    out = io.StringIO()
    progress = Progress(console=Console(file=out, width=200))
    progress.show(VIEW, STARTED)
    event = AlertReported(**({"alertname": "KLSpike", "status": "firing", "action": "trip"} | alert))
    progress.show(replace(VIEW, **view), event)
    line = out.getvalue().splitlines()[-1]
    assert line.endswith(f"(attempt {event.attempt}){words}")


def test_what_an_alert_reports_again_is_shown_once_unless_something_is_decided() -> None:
    """A dead attempt's alert is repeated for ten minutes; one that a pause has held acts when it comes again."""
    out = io.StringIO()
    progress = Progress(console=Console(file=out, width=200))
    older, other, present = (
        AlertReported(alertname=name, status="firing", action="trip", attempt=attempt)
        for name, attempt in (("KLSpike", 0), ("EntropyCollapse", 0), ("KLSpike", 1))
    )
    progress.show(VIEW, STARTED)
    for event in (older, other, older, other, present):
        progress.show(VIEW, event)
    assert [line.split("trip alert ")[1] for line in out.getvalue().splitlines()[1:]] == [
        "KLSpike firing (attempt 0) (older attempt: recorded only)",
        "EntropyCollapse firing (attempt 0) (older attempt: recorded only)",
        "KLSpike firing (attempt 1)",
    ]
    progress.show(replace(VIEW, decision="divergence: KLSpike on attempt 1"), present)
    assert out.getvalue().count("KLSpike firing (attempt 1)") == 2


def test_a_run_whose_end_is_not_journaled_says_so() -> None:
    """It is neither completed nor stopped in good order: the same command has something left to end."""
    out = io.StringIO()
    Progress(console=Console(file=out, width=200)).result(VIEW, runs_dir="runs")
    assert "toy: CLOSED, its end is not journaled; the same command ends what is left of it" in out.getvalue()


def test_a_locked_run_names_the_stable_steps_that_it_can_start_from() -> None:
    """And the command that chooses one; where there is none it is not spoken of."""
    out = io.StringIO()
    progress = Progress(console=Console(file=out, width=200))
    locked = replace(VIEW, state="locked", reason="budget used")
    progress.result(locked, runs_dir="my runs")
    assert "what did it cost: my runs/toy/postmortems/attempt-001.html\n" in out.getvalue()
    assert "--to" not in out.getvalue()
    progress.result(replace(locked, promoted=(A, B)), runs_dir="my runs")
    command = "fusewire reset toy --runs 'my runs' --to STEP --why '…'"
    assert f"to choose from where (stable: 4, 8): {command}" in out.getvalue()


A: dict[str, Any] = {"name": "step-a", "step": 4, "attempt": 0}
B: dict[str, Any] = {"name": "step-b", "step": 8, "attempt": 0}


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([], []),
        ([SnapshotSeen(**A)], ["stable snapshot: none", "step-a is not stable: not judged"]),
        ([SnapshotSeen(**A), SnapshotPromoted(**A)], ["stable snapshot: step-a"]),
        (
            [SnapshotSeen(**A), SnapshotPromoted(**A), SnapshotSeen(**B), SnapshotRejected(**B, reasons=("bad",))],
            ["stable snapshot: step-a", "step-b is rejected: bad"],
        ),
        (
            [SnapshotSeen(**B), SnapshotJudged(**B, answer="inconclusive", reasons=("few scrapes", "late"))],
            ["stable snapshot: none", "step-b is not stable: few scrapes; late"],
        ),
    ],
)
def test_the_end_tells_what_became_of_the_last_snapshot(events: list[Event], lines: list[str]) -> None:
    """Which one is stable, and why the last one is not; what the gate says now is newer than the journal."""
    view = view_of("toy", 0, fold(events))
    assert last_snapshot(view, ()) == lines
    if lines and "not stable" in lines[-1]:
        now = last_snapshot(view, [{"name": view.unpromoted[-1]["name"], "reasons": ["now"]}])
        assert now[-1].endswith("is not stable: now")


def test_what_observe_mode_would_have_done_is_said_once() -> None:
    """The decision says it; the event that records it is not shown beside it."""
    out = io.StringIO()
    progress = Progress(console=Console(file=out, width=200))
    words = "would have stopped attempt 1: KLSpike"
    observed = replace(VIEW, decision=words)
    progress._decide(observed)
    progress.show(observed, WouldHaveActed(words=words))
    progress.show(observed, WouldHaveActed(words="would have restarted attempt 1: exit code 1"))
    assert [line.count("would have") for line in out.getvalue().splitlines()] == [1, 1]
    assert out.getvalue().count("KLSpike") == 1


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("ValueError: no such task\nfusewire: waiting up to 2 s\n\n", "ValueError: no such task"),
        ("fusewire: waiting up to 2 s\n", "fusewire: waiting up to 2 s"),
        ("ValueError: \x1b[31mred\n", "ValueError:  [31mred"),
    ],
)
def test_the_last_words_are_the_trainers_own(tmp_path: Path, output: str, line: str) -> None:
    """What the exporter prints after an exception does not stand in for the exception."""
    out = io.StringIO()
    (tmp_path / "attempts/000").mkdir(parents=True)
    (tmp_path / "attempts/000/output.log").write_text(output)
    Progress(console=Console(file=out, width=200)).last_words(tmp_path, 0)
    assert out.getvalue() == f"{'':8}  it printed last: {line}\n"
