"""Reads the story of a failed attempt out of the journal. Pure: entries in, a :class:`Story` out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import step as fold_one
from fusewire_webhook.breaker.words import OLDER, QUIET, Repeats, describe, verdict
from fusewire_webhook.engine.journal import Entry
from fusewire_webhook.errors import CommandError
from fusewire_webhook.postmortem.story import Attempt, Failure, Known, Line, Outcome, Story

MOST_LINES = 80
"""Journal lines of a postmortem; what lies between the first and the last ones is counted."""


@dataclass(kw_only=True)
class _Telling:
    """One attempt while the journal is read."""

    attempt: Attempt
    index: int
    trip: int | None = None
    tripped_at: float = 0.0
    since: int = 0
    """First attempt of the incident that this one's trip belongs to."""
    cause: str = ""
    failure_class: str = ""
    exit: ev.ProcessExited | None = None
    stop: ev.StopConfirmed | ev.StopUnconfirmed | None = None
    rolled_back: ev.RolledBack | None = None
    purge: ev.PurgeFinished | None = None
    divergences: int = 0
    monitoring: tuple[str, ...] = ()
    lock_reason: str = ""
    observed: bool = False


def tell(run: str, entries: Sequence[Entry], attempt: int | None = None) -> Story:
    """The story of an attempt that tripped; without ``attempt``, of the last one that did.

    Raises:
        CommandError: there is no such run, nothing tripped, or not this attempt; the message names those that did.
    """
    if not entries:
        raise CommandError(
            f"no run {run!r} was ever guarded in this folder; name the folder of all runs with --runs"
        )
    reader = _Reader()
    for index, entry in enumerate(entries):
        reader.read(index, entry)
    failed = [number for number, told in reader.told.items() if told.trip is not None]
    if not failed:
        raise CommandError(f"no attempt of {run} has tripped: there is nothing to write a postmortem about")
    chosen = failed[-1] if attempt is None else attempt
    if chosen not in failed:
        these = ", ".join(str(number) for number in failed)
        raise CommandError(f"attempt {chosen} of {run} has not tripped; these have: {these}")
    return _story(run, entries, reader, chosen)


class _Reader:
    """Folds the journal and keeps what each attempt's story needs."""

    def __init__(self) -> None:
        self.state = RunState()
        self.told: dict[int, _Telling] = {}
        self.snapshots: dict[str, Known] = {}
        self.decisions: dict[int, str] = {}
        self.alerts: dict[int, dict[str, ev.AlertReported]] = {}
        """By attempt and name; one may come before the start of its attempt is journaled, or after its end."""
        self.repeated: set[int] = set()
        """Entries that report again what is known, and led to nothing."""
        self.older: set[int] = set()
        """Alerts of an attempt that had been replaced."""
        self._repeats = Repeats()
        self._degraded: tuple[str, ...] = ()
        self._since: tuple[int, int] = (-1, -1)
        """First attempt of the present incident, and how often the run had been locked before it."""

    def read(self, index: int, entry: Entry) -> None:
        before, event = self.state, entry.event
        self.state = after = fold_one(before, event)
        if after.decision != before.decision:
            self.decisions[index] = verdict(after.phase, after.decision)
        first, older = self._repeats.of(index, event)
        if first != index and index not in self.decisions:
            self.repeated.add(index)
        if older:
            self.older.add(index)
        self._snapshots(event)
        match event:
            case ev.MonitoringChanged():
                self._degraded = event.reasons if event.degraded else ()
            case ev.AlertReported(action="trip", status="firing", attempt=int(attempt)):
                self.alerts.setdefault(attempt, {}).setdefault(event.alertname, event)
            case ev.AttemptStarted():
                self._started(index, event)
        told = self.told.get(before.attempt) or self.told.get(after.attempt)
        if told is None and (_trips(after) > _trips(before) or after.lockouts > before.lockouts):
            told = self._never_started(index, event, before)
        if told is not None:
            self._attempt(told, index, event, before, after)

    def _started(self, index: int, event: ev.AttemptStarted) -> None:
        attempt = Attempt(
            number=event.attempt,
            started_at=event.at,
            resume_from=event.resume_from,
            lr_scale=event.lr_scale,
            seed=event.seed,
        )
        known = self.told.get(event.attempt)
        self.told[event.attempt] = _Telling(attempt=attempt, index=known.index if known else index)

    def _never_started(self, index: int, event: ev.Event, state: RunState) -> _Telling:
        attempt = Attempt(
            number=max(state.attempt, 0),
            started_at=event.at,
            resume_from=state.resumed_from,
            lr_scale=state.lr_scale,
            seed=state.seed,
        )
        return self.told.setdefault(attempt.number, _Telling(attempt=attempt, index=index))

    def _attempt(self, told: _Telling, index: int, event: ev.Event, before: RunState, after: RunState) -> None:
        number = told.attempt.number
        if getattr(event, "attempt", None) == number:
            step = getattr(event, "step", None)
            known = told.attempt.last_step
            if step is not None and not isinstance(event, ev.RolledBack):
                told.attempt = replace(told.attempt, last_step=step if known is None else max(step, known))
        if before.attempt == number:
            tripped = _trips(after) > _trips(before)
            would = isinstance(event, ev.WouldHaveActed)
            if told.trip is None and (tripped or would or after.lockouts > before.lockouts):
                self._tripped(told, index, event, before, after)
            told.observed |= would
        if after.lockouts > before.lockouts:
            told.lock_reason = after.reason
        self._outcomes(told, event, number)

    def _tripped(self, told: _Telling, index: int, event: ev.Event, before: RunState, after: RunState) -> None:
        told.trip, told.tripped_at = index, event.at
        well = before.incident is None and not before.restarts_in_a_row
        if well or self._since[1] != before.lockouts:
            self._since = told.attempt.number, before.lockouts
        told.since = self._since[0]
        divergence = after.trips_divergence > before.trips_divergence
        reason = after.procedure.reason if after.procedure is not None else after.reason
        told.cause = event.words if isinstance(event, ev.WouldHaveActed) else reason
        told.failure_class = "divergence" if divergence else "infrastructure"
        told.divergences = after.incident.divergences if after.incident is not None else 0
        told.monitoring = self._degraded
        told.attempt = replace(told.attempt, tripped=told.cause)

    def _outcomes(self, told: _Telling, event: ev.Event, number: int) -> None:
        match event:
            case ev.Command(verb="trip" | "rollback") if told.attempt.ended_at is None:
                told.attempt = replace(told.attempt, ended=describe(event))
            case ev.ProcessExited(attempt=attempt) if attempt == number:
                told.exit = event
                told.attempt = replace(told.attempt, ended_at=event.at, ended=describe(event))
            case ev.StopConfirmed(attempt=attempt) if attempt == number and not isinstance(
                told.stop, ev.StopConfirmed
            ):
                told.stop = event
                if told.attempt.ended_at is None:
                    ended = told.attempt.ended or describe(event)
                    told.attempt = replace(told.attempt, ended_at=event.at, ended=ended)
            case ev.StopUnconfirmed(attempt=attempt) if attempt == number:
                told.stop = event
            case ev.RolledBack() if told.trip is not None:
                told.rolled_back = event
            case ev.PurgeFinished() if told.trip is not None:
                told.purge = event

    def _snapshots(self, event: ev.Event) -> None:
        match event:
            case ev.SnapshotSeen():
                self.snapshots.setdefault(event.name, Known(name=event.name, seen_at=event.at))
            case ev.SnapshotPromoted():
                known = self.snapshots.get(event.name) or Known(name=event.name, seen_at=event.at)
                self.snapshots[event.name] = replace(known, promoted_at=event.at, promoted_by=event.by)
            case ev.SnapshotRejected():
                self._mark((event.name,), "rejected")
            case ev.SnapshotsRemoved():
                self._mark(event.names, "removed")
            case ev.RolledBack():
                self._mark(event.quarantined, "quarantined")

    def _mark(self, names: Iterable[str], fate: str) -> None:
        for name in names:
            known = self.snapshots.get(name) or Known(name=name, seen_at=0.0)
            self.snapshots[name] = replace(known, fate=fate)


def _story(run: str, entries: Sequence[Entry], reader: _Reader, chosen: int) -> Story:
    told = reader.told[chosen]
    assert told.trip is not None
    following = next((other for number, other in sorted(reader.told.items()) if number > chosen), None)
    last = len(entries) if following is None else following.index + 1
    lines = [
        Line(
            seq=entry.seq,
            at=entry.event.at,
            words=describe(entry.event) + (OLDER if index in reader.older else ""),
            decided=reader.decisions.get(index, ""),
        )
        for index, entry in enumerate(entries[:last])
        if index >= told.index
        and index not in reader.repeated
        and (index in reader.decisions or not isinstance(entry.event, QUIET))
    ]
    omitted = max(0, len(lines) - MOST_LINES)
    if omitted:
        lines = [*lines[:10], *lines[10 + omitted :]]
    alerts = list(reader.alerts.get(chosen, {}).values())
    cause, tripping = _cause(reader, told)
    if tripping is not None:
        alerts.sort(key=lambda alert: alert is not tripping)
    stable = _goes_on_from(reader, told, following)
    return Story(
        run=run,
        attempt=told.attempt,
        tripped_at=_ended(told),
        cause=cause,
        failure_class=told.failure_class,
        outcome=_outcome(told, following),
        lock_reason=told.lock_reason,
        alerts=tuple(alerts),
        by_alert=tripping is not None,
        exit=told.exit,
        stop=told.stop,
        rolled_back=told.rolled_back,
        purge=told.purge,
        next=None if following is None else following.attempt,
        attempts=tuple(_named(reader, other) for other in reader.told.values()),
        incident=tuple(_incident(reader, told, stable)),
        stable=stable,
        snapshots=tuple(reader.snapshots.values()),
        lines=tuple(lines),
        omitted=omitted,
        divergences=told.divergences,
        divergences_allowed=reader.state.policy.divergences_per_incident,
        monitoring=told.monitoring,
    )


def _incident(reader: _Reader, told: _Telling, stable: str | None) -> Iterator[Failure]:
    """The attempts from the first one of the incident to this one."""
    chosen = told.attempt.number
    numbers = sorted(number for number in reader.told if told.since <= number)
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        if number > chosen:
            return
        other = reader.told[number]
        cause, tripping = _cause(reader, other)
        restart = None if following is None else reader.told[following].attempt
        yield Failure(
            attempt=other.attempt,
            ended_at=_ended(other),
            alert=tripping.alertname if tripping is not None else cause,
            divergence=other.failure_class == "divergence",
            went_back_to=stable if number == chosen or restart is None else restart.resume_from,
            next_at=None if restart is None else restart.started_at,
        )


def _ended(told: _Telling) -> float:
    """When it tripped; where the process had ended by itself, that moment."""
    if told.exit is not None:
        return told.exit.at
    return told.tripped_at or told.attempt.ended_at or told.attempt.started_at


def _goes_on_from(reader: _Reader, told: _Telling, following: _Telling | None) -> str | None:
    """The snapshot that training went on from after this attempt, or will when it is started again."""
    if following is not None:
        return following.attempt.resume_from
    if told.rolled_back is not None:
        return told.rolled_back.target
    state = reader.state
    if state.dirty or told.failure_class == "divergence":
        return state.promoted[-1].name if state.promoted else None
    kept = [known.name for known in reader.snapshots.values() if not known.fate]
    return kept[-1] if kept else told.attempt.resume_from


def _named(reader: _Reader, told: _Telling) -> Attempt:
    """The attempt with what tripped it, a budget that it used up left away."""
    return replace(told.attempt, tripped=_cause(reader, told)[0]) if told.trip is not None else told.attempt


def _cause(reader: _Reader, told: _Telling) -> tuple[str, ev.AlertReported | None]:
    """Why it tripped, in words, and the alert that did it, if it was one."""
    alerts = reader.alerts.get(told.attempt.number, {}).values()
    tripping = next((alert for alert in alerts if _words(alert) in told.cause), None)
    return told.cause if tripping is None else told.cause[told.cause.index(_words(tripping)) :], tripping


def _trips(state: RunState) -> int:
    return state.trips_divergence + state.trips_infrastructure


def _words(alert: ev.AlertReported) -> str:
    """How the breaker names a trip alert; a budget that it used up may stand before it."""
    return f"{alert.alertname} on attempt {alert.attempt} at step "


def _outcome(told: _Telling, following: _Telling | None) -> Outcome:
    if told.lock_reason:
        return "locked"
    if told.observed:
        return "observed"
    return "under_way" if following is None else "restarted"
