"""A machine in a few lines: it carries out what the breaker owes, and holds what must never happen against it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fusewire.snapshots import snapshot_name
from fusewire_webhook.breaker.actions import (
    Action,
    NoteWouldHave,
    PromoteSnapshot,
    Purge,
    ResumeNewest,
    RollBack,
    StartAttempt,
    StopAttempt,
    WaitAndClassify,
    WaitBackoff,
    owed,
)
from fusewire_webhook.breaker.events import (
    AlertReported,
    AttemptStarted,
    Command,
    Event,
    ExitClassified,
    FailureClass,
    ProcessExited,
    PurgeFinished,
    RollbackFailed,
    RolledBack,
    RunDeclared,
    SnapshotPromoted,
    SnapshotRejected,
    StartFailed,
    StopConfirmed,
    StopUnconfirmed,
    TimerElapsed,
    WouldHaveActed,
    decode,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState, Snapshot
from fusewire_webhook.breaker.transition import fold, refusal, transition

from .doubles import trip


def reread(events: list[Event]) -> list[Event]:
    """The events as a journal gives them back."""
    return [decode(e.kind, e.at, json.loads(json.dumps(e.payload()))) for e in events]


@dataclass(kw_only=True)
class World:
    """One run: its folded state, its processes and its snapshots."""

    policy: Policy = field(default_factory=Policy)
    policies: list[Policy] = field(default_factory=list)
    """All that ever held."""
    state: RunState = field(default_factory=RunState)
    journal: list[Event] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    ever_started: set[int] = field(default_factory=set)
    disk: list[Snapshot] = field(default_factory=list)
    """Usable snapshots in order of writing."""
    aside: list[Snapshot] = field(default_factory=list)
    """Stable ones that a person's rollback or a read error set aside."""
    stable: set[str] = field(default_factory=set)
    sequences: dict[str, int] = field(default_factory=dict)
    """Of each stable one: its place in the order of promotion."""
    damaged: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    """Cannot be read at present, which says nothing against them."""
    promotions: int = 0
    step: int = 0
    """Of the living attempt."""

    def __post_init__(self) -> None:
        if not self.state.declared:
            self.declare(self.policy)

    # What happens -------------------------------------------------------------------------------------

    def submit(self, event: Event) -> tuple[Action, ...]:
        """Journal and decide, and check what holds for every decision."""
        before = self.state
        if isinstance(event, RunDeclared):
            self.policies.append(Policy.from_json(event.policy))
        self.state, actions = transition(before, event)
        self.journal.append(event)
        self._check(before, event, actions)
        return actions

    def declare(self, policy: Policy) -> None:
        """A webhook starts with this policy."""
        self.policy = policy
        self.submit(RunDeclared(policy=policy.to_json()))

    def command(self, verb: Any, **more: Any) -> bool:
        """A person's word; False: it made no sense."""
        command = Command(verb=verb, who="ann", why="because", **more)
        sensible = refusal(self.state, command) is None
        self.submit(command)
        return sensible

    def settle(self) -> RunState:
        """Carry out all that is owed."""
        while due := owed(self.state):
            self.submit(self.perform(due[0]))
        return self.state

    def train(self, step: int) -> None:
        """The living attempt reaches a step."""
        self.step = step

    def snapshot(self, *, promoted: bool) -> str:
        """The living attempt writes a snapshot at its step."""
        attempt = self.state.attempt
        snapshot = Snapshot(name=snapshot_name(self.step, attempt), step=self.step, attempt=attempt)
        if snapshot not in self.disk:
            self.disk.append(snapshot)
        if promoted:
            self.submit(self._promote(snapshot, by="gate"))
        return snapshot.name

    def _promote(self, snapshot: Snapshot, *, by: str) -> Event:
        self.stable.add(snapshot.name)
        self.promotions += 1
        self.sequences.setdefault(snapshot.name, self.promotions)
        return SnapshotPromoted(
            name=snapshot.name,
            step=snapshot.step,
            attempt=snapshot.attempt,
            by=by,
            sequence=self.promotions,
        )

    def alert(self, **more: Any) -> RunState:
        """A trip alert of the present attempt, and all that follows."""
        self.submit(trip(self.state.attempt, step=self.step, **more))
        return self.settle()

    def exit(self, code: int | None, **more: Any) -> RunState:
        """The process ends by itself, and all that follows."""
        self.die(code, **more)
        return self.settle()

    def die(self, code: int | None, **more: Any) -> None:
        """The process ends by itself."""
        self.alive.discard(self.state.attempt)
        self.submit(ProcessExited(attempt=self.state.attempt, exit_code=code, **more))

    def restart_webhook(self) -> None:
        """Kill the webhook and start it again: only the journal is left."""
        folded = fold(reread(self.journal))
        assert folded == self.state, "the state is the fold of the journal"
        self.state = folded

    # What is done -------------------------------------------------------------------------------------

    def perform(  # noqa: PLR0911 - one return per action
        self, action: Action, *, fails: bool = False, divergence: bool = False
    ) -> Event:
        """Carry out an action; ``fails`` lets it fail in its own way."""
        match action:
            case StopAttempt(attempt=attempt):
                if fails:
                    return StopUnconfirmed(attempt=attempt, reason="process 4711 is in uninterruptible sleep")
                self.alive.discard(attempt)
                return StopConfirmed(attempt=attempt, step=self.step)
            case WaitAndClassify(attempt=attempt):
                found: FailureClass = "divergence" if divergence else "infrastructure"
                return ExitClassified(attempt=attempt, failure_class=found, step=self.step)
            case RollBack(target=target, by_person=by_person, passed_over=passed_over):
                return self._roll_back(target, by_person=by_person, unread=passed_over)
            case ResumeNewest():
                return self._resume()
            case Purge():
                return PurgeFinished(exit_code=3 if fails else 0)
            case WaitBackoff(name=name):
                return TimerElapsed(name=name)
            case StartAttempt(attempt=attempt, lr_scale=lr_scale):
                if fails and attempt not in self.alive:
                    return StartFailed(attempt=attempt, reason="no such file")
                assert attempt in self.alive or attempt not in self.ever_started, "an attempt lives once"
                self.alive.add(attempt)
                self.ever_started.add(attempt)
                assert len(self.alive) == 1, f"attempts {self.alive} live at once"
                self.step = self.state.resumed_step
                return AttemptStarted(attempt=attempt, handle={"attempt": attempt}, lr_scale=lr_scale)
            case PromoteSnapshot(name=name):
                snapshot = next((s for s in self.disk if s.name == name), None)
                if snapshot is None:
                    return SnapshotRejected(name=name, step=0, attempt=0, reasons=("it is gone",))
                return self._promote(snapshot, by="ann")
            case NoteWouldHave(words=words):
                return WouldHaveActed(words=words, trip_used=False)
        raise AssertionError(action)

    def _resume(self) -> Event:
        there_were = [s.name for s in self.disk]
        self.disk = [s for s in self.disk if s.name not in self.damaged]
        if not self.disk:
            return RolledBack(target=None, quarantined=tuple(there_were), none_usable=bool(there_were))
        readable = [s for s in self.disk if s.name not in self.unreadable]
        if not readable:
            return RollbackFailed(reason="state.bin: cannot be read")
        return self._roll_back(
            readable[-1].name, unread=tuple(s.name for s in self.disk if s.order > readable[-1].order)
        )

    def _roll_back(self, target: str | None, *, by_person: bool = False, unread: tuple[str, ...] = ()) -> Event:
        if by_person:
            self.disk = sorted(
                (*self.disk, *(s for s in self.aside if s.name == target)), key=lambda snapshot: snapshot.order
            )
            self.aside = [s for s in self.aside if s.name != target]
        if target is None:
            gone, self.disk = self.disk, []
            self._set_aside(gone, by_person=by_person, unread=())
            return RolledBack(target=None, quarantined=tuple(s.name for s in gone))
        if target in self.unreadable - self.damaged and target in {s.name for s in self.disk}:
            return RollbackFailed(target=target, reason="state.bin: cannot be read", unreadable=True)
        found = next((s for s in self.disk if s.name == target and s.name not in self.damaged), None)
        if found is None:
            self.disk = [s for s in self.disk if s.name != target]
            return RollbackFailed(target=target, reason="its bytes do not hold")
        gone = [s for s in self.disk if s.order > found.order or s.name in unread]
        self.disk = [s for s in self.disk if s not in gone]
        self._set_aside(gone, by_person=by_person, unread=unread)
        return RolledBack(
            target=target,
            step=found.step,
            attempt=found.attempt,
            quarantined=tuple(s.name for s in gone),
            sequence=self.sequences.get(found.name, 0),
        )

    def _set_aside(self, gone: list[Snapshot], *, by_person: bool, unread: tuple[str, ...]) -> None:
        self.aside += [s for s in gone if s.name in self.stable and (by_person or s.name in unread)]

    # What must always hold ----------------------------------------------------------------------------

    def _check(self, before: RunState, event: Event, actions: tuple[Action, ...]) -> None:
        state, policy = self.state, self.state.policy
        if isinstance(event, AlertReported) and event.status == "resolved":
            assert state is before, "a resolved alert changes nothing"
            assert not actions, "a resolved alert never acts"
        if isinstance(event, AlertReported) and self._dismissed(before, event):
            assert state is before, "a dismissed alert changes nothing"
        if state.dismissed != before.dismissed and state.attempt == before.attempt:
            assert isinstance(event, Command), "only a person dismisses"
            assert event.dismiss
            assert {one.alert for one in state.dismissed} <= {
                one.alert for one in (*before.held, *before.dismissed)
            }, "only what was held is dismissed"
        assert not (state.held and not state.pauses), "without a pause nothing is held"
        if isinstance(event, RolledBack) and event.sequence:
            assert event.target in {s.name for s in state.promoted}, "a stable target is stable"
        if isinstance(event, RollbackFailed) and event.unreadable:
            assert state.promoted == before.promoted, "a read error condemns no stable snapshot"
        if isinstance(event, RolledBack) and before.procedure is not None and before.stage == "rollback":
            left = {s.name for s in state.promoted} & set(before.procedure.passed_over)
            assert not left, "what was passed over is no rung of the ladder any more"
        if before.phase == "locked" and state.phase != "locked":
            assert isinstance(event, Command), "only a person leaves LOCKED"
            assert event.verb == "reset"
        if before.phase == "completed" and state.phase != "completed":
            assert isinstance(event, Command), "only a person leaves COMPLETED"
            assert event.verb == "reopen"
        if state.incident is not None:
            assert state.incident.divergences <= max(p.divergences_per_incident for p in self.policies)
        assert state.divergences_run <= max(p.divergences_per_run for p in self.policies)
        assert min(state.infrastructure_failures, state.restarts_in_a_row) >= 0
        assert state.infrastructure_failures <= max(p.infrastructure_failures for p in self.policies)
        if (
            state.divergences_run > before.divergences_run
            and state.procedure
            and state.procedure.stages[-1] == "start"
        ):
            assert state.divergences_run < policy.divergences_per_run, "the budget that holds now is held"
            assert state.incident is not None
            assert state.incident.divergences < policy.divergences_per_incident
        if self._must_act(before, event):
            assert state.procedure is not None or state.phase == "locked", "a living attempt is never unguarded"
        assert policy.lr_scale_floor <= state.lr_scale <= 1
        assert state.attempt >= before.attempt, "an attempt number is never used twice"
        if state.phase in {"locked", "completed"}:
            assert state.procedure is None
        if state.attempt > before.attempt and before.attempt >= 0:
            assert not self.alive, "a new attempt is numbered while an old one lives"
        json.dumps(state.to_json())

    @staticmethod
    def _must_act(before: RunState, event: Event) -> bool:
        return (
            isinstance(event, AlertReported)
            and (event.status, event.action, event.attempt) == ("firing", "trip", before.attempt)
            and before.live
            and before.procedure is None
            and not before.finished
            and not before.pauses
            and before.policy.mode == "act"
            and not World._dismissed(before, event)
        )

    @staticmethod
    def _dismissed(before: RunState, event: AlertReported) -> bool:
        """It fires for the present attempt, and began before a person dismissed its like."""
        if not event.starts_at or event.attempt != before.attempt:
            return False
        began = datetime.fromisoformat(event.starts_at).timestamp()
        return any(one.alert == event.alertname and began <= one.until for one in before.dismissed)
