"""What the breaker asks the engine to do, and which of it is owed in a given state.

Actions are idempotent: a webhook killed at any instant finds the same ones owed in the folded state and does
them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.attempt import RngPolicy
from fusewire_webhook.breaker.state import RunState


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something with an effect; its outcome comes back as an event."""


@dataclass(frozen=True, kw_only=True)
class StopAttempt(Action):
    """Stop the attempt and everything left of it → ``StopConfirmed`` or ``StopUnconfirmed``."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class WaitAndClassify(Action):
    """Wait for evidence on an exit, then ask for it → ``ExitClassified``."""

    attempt: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RollBack(Action):
    """Make the target active, everything since it goes to quarantine → ``RolledBack`` or ``RollbackFailed``."""

    target: str | None
    reason: str
    by_person: bool = False
    """A person goes back: what had been promoted can be brought back from quarantine."""
    passed_over: tuple[str, ...] = ()
    """Could not be read before the target's turn came; set aside with what is newer than it."""


@dataclass(frozen=True, kw_only=True)
class ResumeNewest(Action):
    """Make the newest clean verified snapshot active → ``RolledBack`` or ``RollbackFailed``."""

    attempt: int
    reason: str
    heed_alerts: bool = True
    """False, in observe mode: the newest verified one, whatever alerts or the gate say against it."""


@dataclass(frozen=True, kw_only=True)
class Purge(Action):
    """Run the purge hook for the active snapshot → ``PurgeFinished``."""

    target: str | None


@dataclass(frozen=True, kw_only=True)
class WaitBackoff(Action):
    """Wait → ``TimerElapsed``."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StartAttempt(Action):
    """Start the attempt, or adopt it → ``AttemptStarted`` or ``StartFailed``."""

    attempt: int
    resume_from: str | None
    lr_scale: float
    seed: int
    rng: RngPolicy


@dataclass(frozen=True, kw_only=True)
class PromoteSnapshot(Action):
    """Promote on a person's word → ``SnapshotPromoted`` or ``SnapshotRejected``."""

    name: str
    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class NoteWouldHave(Action):
    """Observe mode → ``WouldHaveActed``."""

    words: str


def owed(state: RunState) -> tuple[Action, ...]:
    """What is to be done now. A pause holds what no person asked for.

    A person's restart waits for what a person promotes: it would pass over that snapshot.
    """
    actions: list[Action] = []
    actions += [NoteWouldHave(words=words) for words in state.would_have]
    actions += [PromoteSnapshot(name=p.name, who=p.who, why=p.why) for p in state.promotions]
    procedure = state.procedure
    waits = procedure is not None and procedure.cause == "restart" and bool(state.promotions)
    if procedure is not None and not waits and (procedure.person or not state.pauses):
        actions.append(_stage_action(state))
    return tuple(actions)


def _stage_action(state: RunState) -> Action:  # noqa: PLR0911 - one return per stage
    procedure = state.procedure
    assert procedure is not None
    match procedure.stages[0]:
        case "stop":
            return StopAttempt(attempt=state.attempt)
        case "settle":
            return WaitAndClassify(attempt=state.attempt, seconds=state.policy.settle_seconds)
        case "rollback":
            return RollBack(
                target=procedure.target,
                reason=procedure.reason,
                by_person=procedure.cause in {"person", "reset"},
                passed_over=procedure.passed_over,
            )
        case "resume":
            acts = state.policy.mode == "act"
            return ResumeNewest(attempt=state.attempt, reason=procedure.reason, heed_alerts=acts)
        case "purge":
            return Purge(target=state.active)
        case "backoff":
            return WaitBackoff(name=f"backoff-{state.attempt}", seconds=procedure.backoff_seconds)
        case "start":
            return StartAttempt(
                attempt=state.attempt,
                resume_from=state.resumed_from,
                lr_scale=state.lr_scale,
                seed=state.seed,
                rng=state.rng,
            )
