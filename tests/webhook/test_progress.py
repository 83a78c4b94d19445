"""The lines that ``fusewire run`` shows."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fusewire_webhook.breaker.events import AlertReported, AttemptStarted
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.cli.progress import Progress

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
