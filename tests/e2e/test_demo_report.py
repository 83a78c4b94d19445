"""What the demonstration tells of a journal: no moment is invented, none is forgotten."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import cast

import pytest
import yaml
from rich.console import Console

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.demo.driver import conclude
from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.incidents import Failure, failures
from fusewire_webhook.demo.report import table, timeline
from fusewire_webhook.demo.scenarios import SCENARIOS, Pace, config
from fusewire_webhook.engine.journal import Entry
from fusewire_webhook.settings.loader import load

START = 1_700_000_000.0


def journal(*events: Event) -> list[Entry]:
    return [Entry(seq=number, run="demo", event=event) for number, event in enumerate(events, start=1)]


def started(at: float, attempt: int, resume_from: str | None = None) -> Event:
    return ev.AttemptStarted(at=START + at, attempt=attempt, handle={}, resume_from=resume_from)


def alert(at: float, attempt: int, name: str = "KLSpike", status: str = "firing", action: str = "trip") -> Event:
    return ev.AlertReported(
        at=START + at,
        alertname=name,
        status=status,  # type: ignore[arg-type]
        attempt=attempt,
        action=action,
        failure_class="divergence",
    )


TRIPPED = journal(
    ev.RunDeclared(at=START, policy=Policy().to_json()),
    ev.RolledBack(at=START, target=None),
    started(0, 0),
    alert(8, 0, status="resolved"),
    alert(9, 0, "TrainerNotScraped", action="notify"),
    alert(10, 0),
    alert(11, 0, "EntropyCollapse"),
    ev.StopConfirmed(at=START + 12, attempt=0, exit_code=143, killed=2),
    ev.RolledBack(at=START + 13, target="step-000000000040-a000", step=40, quarantined=("step-000000000060-a000",)),
    started(14, 1, "step-000000000040-a000"),
)


def test_a_trip_with_the_moment_of_each_step() -> None:
    """The first firing trip alert of the attempt is the cause; resolved ones and notices are not."""
    (failure,) = failures(TRIPPED)
    assert failure == Failure(
        attempt=0,
        cause="KLSpike",
        failure_class="divergence",
        alert=START + 10,
        stopped=START + 12,
        killed=2,
        rolled_back=START + 13,
        resumed_step=40,
        next_started=START + 14,
    )
    assert failure.steps_lost is None
    failure.last_step = 65
    assert failure.steps_lost == 25


def test_a_death_without_an_alert() -> None:
    """A process that ended by itself is a failure of the class that the evidence gave it."""
    (failure,) = failures(
        journal(
            started(0, 0),
            ev.ProcessExited(at=START + 5, attempt=0, exit_code=137),
            ev.ExitClassified(at=START + 7, attempt=0, failure_class="infrastructure"),
            started(8, 1, "step-000000000020-a000"),
        )
    )
    assert (failure.cause, failure.failure_class) == ("exit code 137", "infrastructure")
    assert (failure.exited, failure.classified, failure.resumed_step) == (START + 5, START + 7, 20)


@pytest.mark.parametrize(("fault", "code"), [("lr-spike-forever", 0), ("lr-spike", 3)])
def test_a_lock_is_a_success_where_the_scenario_promises_it(tmp_path: Path, fault: str, code: int) -> None:
    """Either way it names the newest postmortem and a command that finds the run."""
    scenario = SCENARIOS[fault]
    guarded = GuardedRun(tmp_path, config(scenario, Pace()))
    guarded.state = RunState(phase="locked", reason="divergence 3 of one incident")
    for attempt in (0, 2):
        (guarded.run_dir / "postmortems").mkdir(parents=True, exist_ok=True)
        (guarded.run_dir / "postmortems" / f"attempt-{attempt:03}.md").touch()
    console = Console(file=io.StringIO(), width=1000)
    assert conclude(guarded, scenario, fault == "lr-spike-forever", console, 72.0) == code
    text = cast("io.StringIO", console.file).getvalue()
    assert f"fusewire log demo --runs {os.path.relpath(tmp_path / 'runs')}" in text
    assert "postmortems/attempt-002.md" in text
    assert "LOCKED: divergence 3 of one incident" in text


def test_an_exit_after_a_trip_is_the_same_failure() -> None:
    """A trainer that dies while its alert is being acted on has failed once."""
    (failure,) = failures(
        journal(started(0, 0), alert(3, 0), ev.ProcessExited(at=START + 4, attempt=0, exit_code=1), started(6, 1))
    )
    assert (failure.cause, failure.exited, failure.resumed_step) == ("KLSpike", START + 4, 0)


def test_a_completed_run_has_not_failed() -> None:
    """The end of a run that has completed is none of the failures."""
    assert failures(journal(started(0, 0), ev.ProcessExited(attempt=0, exit_code=0, completed=True))) == []


def printed(found: list[Failure], final_return: float | None) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(table(found, final_return))
    return out.getvalue()


def test_the_table_shows_what_is_known_and_a_dash_for_the_rest() -> None:
    """A moment that nobody recorded has no row, or a dash beside an attempt that has it."""
    (first,) = failures(TRIPPED)
    second = Failure(attempt=1, cause="exit code 137", failure_class="infrastructure", exited=START + 20)
    text = printed([first, second], 487.6)
    assert "SIGTERM " not in text
    assert "488" in text
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert rows["alert in the journal"].count("–") == 1
    assert "+2.00 s" in rows["all processes gone"]
    assert rows["detection (violation → exit)"].count("–") == 2


def test_the_table_shows_how_far_back_each_rollback_went() -> None:
    """Beside each failure stands the step that the next attempt went on from, or that there was none."""
    targets = (40, 20, 0, None)
    found = [
        Failure(attempt=attempt, cause="KLSpike", failure_class="divergence", resumed_step=step)
        for attempt, step in enumerate(targets)
    ]
    (row,) = (line for line in printed(found, None).splitlines() if "rolled back to step" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["40", "20", "from scratch", "–"]


def test_the_timeline_starts_at_zero_and_tells_decisions() -> None:
    """Seconds count from the first entry, and what an event led to stands below it."""
    lines = list(timeline(TRIPPED))
    assert lines[0].startswith("   0.00 s  ")
    assert any(line.startswith("  10.00 s  trip alert KLSpike firing (attempt 0)") for line in lines)
    assert any("→ OPEN: " in line for line in lines)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_valid_configuration(name: str, tmp_path: Path) -> None:
    """The configuration that a demonstration writes is one that ``fusewire run`` takes."""
    path = tmp_path / "fusewire.yml"
    path.write_text(yaml.safe_dump(config(SCENARIOS[name], Pace())))
    (run,) = load(path).runs.values()
    assert run.command.count("--fault") == len(SCENARIOS[name].faults)
