"""What can happen to a run: the journal holds these events and nothing else.

State is the fold of a run's events (see ``breaker.py``). Every event is a frozen dataclass of JSON values, so
the journal is readable without this code. ``at`` is the webhook's wall clock in Unix seconds, for people; one
decision alone compares it with a time stamp that another machine made: what a person dismisses (``Dismissed``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

FailureClass = Literal["divergence", "infrastructure"]
AlertStatus = Literal["firing", "resolved"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One fact about one run, in the order in which the journal stored it."""

    kind: ClassVar[str] = ""
    at: float = 0.0

    def payload(self) -> dict[str, Any]:
        """The fields as JSON values, without ``kind`` and ``at``; dicts are shared, not copied."""
        values = dict(vars(self))
        del values["at"]
        return values


# What a run is -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunDeclared(Event):
    """A run is guarded from now on, or its policy has changed."""

    kind: ClassVar[str] = "run_declared"
    policy: dict[str, Any]
    """Every setting that a decision depends on (:class:`fusewire_webhook.breaker.policy.Policy` as JSON)."""
    first_attempt: int = 0
    """Lowest attempt number that is free in the run directory (above 0 where a journal was lost)."""


# What the outside reports --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AlertReported(Event):
    """Alertmanager delivered an alert, or reconciliation found one firing in Prometheus."""

    kind: ClassVar[str] = "alert_reported"
    alertname: str
    status: AlertStatus
    attempt: int | None
    """The attempt that the alert speaks of; None when its labels do not say."""
    action: str = ""
    """``trip`` makes it a trip alert."""
    failure_class: str = ""
    """Label ``class``: divergence or infrastructure; anything else counts as divergence."""
    severity: str = ""
    summary: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at: str = ""
    source: Literal["alertmanager", "reconcile"] = "alertmanager"
    incomplete: bool = False
    """The group came truncated: more alerts existed than were sent."""
    step: int | None = None
    """Step of the attempt just then, as the watch saw it; None: it had not seen it lately."""

    @property
    def began(self) -> float | None:
        """``starts_at`` as Unix seconds; None: it is no RFC 3339."""
        try:
            return datetime.fromisoformat(self.starts_at).timestamp()
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True, kw_only=True)
class SnapshotSeen(Event):
    """A complete snapshot lies staged in the run directory."""

    kind: ClassVar[str] = "snapshot_seen"
    name: str
    step: int
    attempt: int
    rules: str = ""
    """Fingerprint of the trip rules that were loaded then; empty: not known."""


@dataclass(frozen=True, kw_only=True)
class SnapshotJudged(Event):
    """What the gate said last about a snapshot that it neither promoted nor rejected."""

    kind: ClassVar[str] = "snapshot_judged"
    name: str
    step: int
    attempt: int
    answer: str
    """inconclusive or error."""
    reasons: tuple[str, ...] = ()
    final: bool = False
    """Nothing that could still come changes it."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPromoted(Event):
    """The gate passed a snapshot (or a person promoted it) and its link now points at it."""

    kind: ClassVar[str] = "snapshot_promoted"
    name: str
    step: int
    attempt: int
    by: str = "gate"
    evidence: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    """Its place in the order of promotion, from 1; 0: before all that have one, in order of writing."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRejected(Event):
    """The gate failed a snapshot for good, or a person's promotion of it was refused."""

    kind: ClassVar[str] = "snapshot_rejected"
    name: str
    step: int
    attempt: int
    reasons: tuple[str, ...] = ()
    by: str = "gate"
    """``gate``, or the person whose promotion was refused: then it may still be promoted later."""


@dataclass(frozen=True, kw_only=True)
class SnapshotsRemoved(Event):
    """Retention deleted snapshots."""

    kind: ClassVar[str] = "snapshots_removed"
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StepsWatched(Event):
    """Prometheus saw the attempt advance while every part of the watch was healthy."""

    kind: ClassVar[str] = "steps_watched"
    attempt: int
    step: int
    """Furthest step seen."""
    watched: int
    """Steps since the last such event (or look) that were watched (never blind, queued or paused ones)."""


# What the actuator reports -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """The actuator confirmed that the attempt's process exists."""

    kind: ClassVar[str] = "attempt_started"
    attempt: int
    handle: dict[str, Any]
    """What the actuator needs to find the process again, after a restart of the webhook too."""
    resume_from: str | None = None
    """Name of the snapshot; None: from scratch."""
    lr_scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class StartFailed(Event):
    """The attempt's process could not be started."""

    kind: ClassVar[str] = "start_failed"
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ProcessExited(Event):
    """The attempt's process ended and nobody here had asked for it."""

    kind: ClassVar[str] = "process_exited"
    attempt: int
    exit_code: int | None
    """Exit code, 128 + n for signal n; None where it was lost."""
    completed: bool = False
    """The trainer called ``run.complete()`` before."""
    attached: bool = True
    """The trainer had attached the exporter."""
    reason: str = ""
    """What the actuator knows beyond the code, such as ``oom_kill`` or ``preempted``."""
    seconds: float | None = None
    """How long it lived; None where the actuator does not tell."""
    last_line: str = ""
    """What it printed last, where it never attached."""


@dataclass(frozen=True, kw_only=True)
class ExitClassified(Event):
    """After the settle period the evidence on a self-inflicted exit is in."""

    kind: ClassVar[str] = "exit_classified"
    attempt: int
    failure_class: FailureClass
    evidence: tuple[str, ...] = ()
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class StopConfirmed(Event):
    """Every process of the attempt is gone and its GPU memory is free (or cannot be asked for)."""

    kind: ClassVar[str] = "stop_confirmed"
    attempt: int
    exit_code: int | None = None
    seconds: float = 0.0
    killed: int = 0
    """Processes that needed SIGKILL."""
    gpu: str = "unknown"
    """``released``, ``unknown`` (no NVML) or ``none`` (the tree held no GPU)."""
    step: int | None = None
    """Last step that the attempt had reported, where it is known."""


@dataclass(frozen=True, kw_only=True)
class StopUnconfirmed(Event):
    """The stop could not be confirmed in its time: the host needs attention."""

    kind: ClassVar[str] = "stop_unconfirmed"
    attempt: int
    reason: str


# What the engine did -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RolledBack(Event):
    """``active`` points at the target; everything newer lies in quarantine."""

    kind: ClassVar[str] = "rolled_back"
    target: str | None
    """Name of the snapshot; None: the next attempt starts from scratch."""
    step: int = 0
    attempt: int = 0
    """The one that wrote the target."""
    quarantined: tuple[str, ...] = ()
    sequence: int = 0
    """Of a stable target: its place in the order of promotion. A person may have brought it back."""
    none_usable: bool = False
    """From scratch although there were snapshots: none of them could be used."""


@dataclass(frozen=True, kw_only=True)
class RollbackFailed(Event):
    """No usable target could be made active."""

    kind: ClassVar[str] = "rollback_failed"
    reason: str
    target: str | None = None
    """The snapshot that could not be used; None: no snapshot in particular."""
    unreadable: bool = False
    """It could not be read for a while, which says nothing against it; else it is damaged or gone."""


@dataclass(frozen=True, kw_only=True)
class PurgeFinished(Event):
    """The purge hook ended (exit code 0: the bad policy's data is out of the replay store)."""

    kind: ClassVar[str] = "purge_finished"
    exit_code: int
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class TimerElapsed(Event):
    """A pause asked for by the breaker is over (back-off, settle period)."""

    kind: ClassVar[str] = "timer_elapsed"
    name: str


@dataclass(frozen=True, kw_only=True)
class WouldHaveActed(Event):
    """In observe mode: what would have been done now."""

    kind: ClassVar[str] = "would_have_acted"
    words: str
    trip_used: bool = True
    """The attempt has used its one trip with it: so it was in journals that do not say."""


# What people decide --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command(Event):
    """A person's decision, with a name and a reason."""

    kind: ClassVar[str] = "command"
    verb: Literal["trip", "pause", "resume", "reset", "reopen", "promote", "rollback", "shutdown"]
    who: str
    why: str
    snapshot: str | None = None
    """Target of ``promote`` and ``rollback``."""
    scratch: bool = False
    """With ``rollback``: start from scratch."""
    source: str = "cli"
    """``cli``, ``api``, ``console``, ``silence`` (a silence on a trip alert) or ``signal``."""
    silence: str = ""
    """With source ``silence``: Alertmanager's id of it."""
    dismiss: bool = False
    """With ``resume``: the trip alerts that the pause held do not act when they are reported again."""


@dataclass(frozen=True, kw_only=True)
class MonitoringChanged(Event):
    """The watch itself became degraded or recovered, or a remark on it came or went. No run is touched by it."""

    kind: ClassVar[str] = "monitoring_changed"
    degraded: bool
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """What does not run as its files say, and still watches."""


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunDeclared, AlertReported, SnapshotSeen, SnapshotJudged, SnapshotPromoted, SnapshotRejected,
        SnapshotsRemoved, StepsWatched, AttemptStarted, StartFailed, ProcessExited, ExitClassified, StopConfirmed,
        StopUnconfirmed, RolledBack, RollbackFailed, PurgeFinished, TimerElapsed, WouldHaveActed, Command,
        MonitoringChanged,
    )
}  # fmt: skip


_FIELDS: dict[str, frozenset[str]] = {
    kind: frozenset(f.name for f in dataclasses.fields(cls)) - {"at"} for kind, cls in KINDS.items()
}

_TUPLES: dict[str, frozenset[str]] = {
    kind: frozenset(f.name for f in dataclasses.fields(cls) if str(f.type).startswith("tuple"))
    for kind, cls in KINDS.items()
}
"""Fields that JSON gives back as lists."""


def decode(kind: str, at: float, payload: dict[str, Any]) -> Event:
    """The event that the journal stored. Unknown fields are dropped (an older fusewire reads a newer journal).

    Raises:
        KeyError: the kind is unknown to this version.
    """
    cls, known = KINDS[kind], _FIELDS[kind]
    values = {name: value for name, value in payload.items() if name in known}
    for name in _TUPLES[kind] & values.keys():
        values[name] = tuple(values[name])
    return cls(at=at, **values)
