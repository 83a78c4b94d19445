"""What the breaker would have done: its own transition, fed with the events that the run would have caused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewire_webhook.breaker.actions import Action, ResumeNewest, RollBack, StartAttempt, StopAttempt, WaitBackoff
from fusewire_webhook.breaker.events import (
    AlertReported,
    AttemptStarted,
    Event,
    RolledBack,
    RunDeclared,
    SnapshotPromoted,
    SnapshotSeen,
    StopConfirmed,
    TimerElapsed,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import transition
from fusewire_webhook.breaker.words import describe
from fusewire_webhook.settings.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The decision on one trip."""

    lines: tuple[str, ...]
    """The journal from the trip on, in words."""
    rollback_row: int | None
    """Row of the snapshot that the run would go back to; None: from scratch."""
    lr_scale: float
    """Of the next attempt."""


def dry_run(
    *, alert: str, failure_class: str, row: int, doubtful_rows: Sequence[int], config: RunConfig | None = None
) -> DryRun:
    """The breaker on a first attempt that trips at ``row``.

    Snapshots are taken as configured (the row is the step) and promoted once the watched steps have passed without
    a pending trip and without doubt in ``doubtful_rows``.
    """
    config = config if config is not None else RunConfig(command=("recorded",))
    policy = Policy.of(config)
    state = RunState()
    for event in _before(policy, config, row, doubtful_rows):
        state, _ = _played(state, event)
    trip = AlertReported(
        alertname=alert, status="firing", attempt=0, action="trip", failure_class=failure_class, step=row
    )
    state, events = _played(state, trip)
    target = next((event.target for event in events if isinstance(event, RolledBack)), None)
    return DryRun(
        lines=tuple(describe(event) for event in events),
        rollback_row=int(target.split("-")[1]) if target else None,
        lr_scale=state.lr_scale,
    )


def _played(state: RunState, event: Event) -> tuple[RunState, list[Event]]:
    """The state after the event and the outcomes of everything that it set off; all those events."""
    waiting, events = [event], []
    while waiting:
        events.append(waiting.pop(0))
        state, owed = transition(state, events[-1])
        waiting += [outcome for action in owed if (outcome := _outcome(action, state)) is not None]
    return state, events


def _before(policy: Policy, config: RunConfig, row: int, doubtful_rows: Sequence[int]) -> Iterator[Event]:
    yield RunDeclared(policy=policy.to_json())
    every, watch = config.snapshots.every_steps, config.snapshots.watch_steps
    for step in range(every, row - watch + 1, every):
        name = f"step-{step:012d}-a000"
        yield SnapshotSeen(name=name, step=step, attempt=0)
        if not any(step <= doubtful <= step + watch for doubtful in doubtful_rows):
            yield SnapshotPromoted(name=name, step=step, attempt=0)


def _outcome(action: Action, state: RunState) -> Event | None:
    """The event of an action that succeeds."""
    match action:
        case StopAttempt():
            return StopConfirmed(attempt=action.attempt)
        case RollBack():
            return RolledBack(target=action.target)
        case ResumeNewest():
            newest = state.promoted[-1].name if state.promoted else None
            return RolledBack(target=newest)
        case WaitBackoff():
            return TimerElapsed(name=action.name)
        case StartAttempt():
            return AttemptStarted(
                attempt=action.attempt,
                handle={},
                resume_from=action.resume_from,
                lr_scale=action.lr_scale,
                seed=action.seed,
            )
        case _:
            return None
