"""What ``fusewire status RUN`` says of one run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fusewire_webhook.breaker.state import RunState, Snapshot
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.cli.status import details, show

PROMOTED = Snapshot(name="step-000000000100-a000", step=100, attempt=0)


def said(**state: Any) -> list[str]:
    return [line for line in details(view_of("toy", 0, RunState(**state)).to_json()) if "snapshot" in line]


def test_the_stable_snapshot_is_where_a_trip_would_go_back_to() -> None:
    """It is named from its promotion on, before any rollback has made it the active one too."""
    assert said(promoted=(PROMOTED,)) == [f"stable snapshot: {PROMOTED.name}"]
    rolled_back = said(promoted=(PROMOTED,), active=PROMOTED.name)
    assert rolled_back == [f"stable snapshot: {PROMOTED.name}", f"active snapshot: {PROMOTED.name}"]


def test_only_a_run_without_a_stable_snapshot_has_none_to_go_back_to() -> None:
    """That is said in so many words."""
    assert said() == ["stable snapshot: none yet, so a divergence has none to go back to"]


def test_a_server_that_goes_on_with_its_old_configuration_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the runs, also while the watch is whole."""
    monitoring = {"degraded": False, "problems": {}, "remarks": {"prometheus": "the last reload failed"}}
    show({"runs": [], "monitoring": monitoring, "unknown_alerts": []}, detailed=False)
    assert "prometheus: the last reload failed" in capsys.readouterr().out


def test_a_run_that_no_rule_sees_is_not_shown_as_watched(capsys: pytest.CaptureFixture[str]) -> None:
    """Its row and a line below say so; the age of its last step is shown once it is of interest."""
    view = view_of("toy", 0, RunState(attempt=0, live=True, step=300)).to_json()
    monitoring: dict[str, Any] = {"degraded": False, "problems": {}, "remarks": {}}
    ago = time.time() - 150.0
    for state in ("watched", "unscraped"):
        watched = {**view, "watch": {"state": state, "since": ago, "step_at": ago}}
        show({"runs": [watched], "monitoring": monitoring, "unknown_alerts": []}, detailed=False)
        told = capsys.readouterr().out
        assert "300 (150 s ago)" in told
        assert ("CLOSED (not watched)" in told, "toy: not scraped for 150 s" in told) == (state == "unscraped",) * 2
