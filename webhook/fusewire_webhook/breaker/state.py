"""The state of one run: the fold of its journal, frozen and JSON-able."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from fusewire.attempt import RngPolicy
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.errors import IllegalTransitionError

Phase = Literal["closed", "open", "half_open", "locked", "completed"]

LEGAL: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        ("closed", "open"),
        ("closed", "locked"),
        ("closed", "completed"),
        ("open", "half_open"),
        ("open", "closed"),
        ("open", "locked"),
        ("half_open", "open"),
        ("half_open", "closed"),
        ("half_open", "locked"),
        ("half_open", "completed"),
        ("locked", "open"),
        ("completed", "closed"),
        ("completed", "half_open"),
    }
)
"""Every change of phase that may happen; only a person leaves ``locked`` (reset) and ``completed`` (reopen)."""

Stage = Literal["stop", "settle", "rollback", "resume", "purge", "backoff", "start"]
Cause = Literal["first", "exit", "divergence", "infrastructure", "person", "reset", "restart", "finish", "shutdown"]
Ending = Literal["running", "locked", "completed", "shut_down"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot that the breaker can name."""

    name: str
    step: int
    attempt: int
    sequence: int = 0
    """Its place in the order of promotion."""

    @property
    def order(self) -> tuple[int, int]:
        """Order of writing: a later attempt's snapshot is newer, whatever its step."""
        return self.attempt, self.step

    @property
    def promotion_order(self) -> tuple[int, tuple[int, int]]:
        """Order of promotion: a person may promote one that is older than the last promoted one."""
        return self.sequence, self.order


@dataclass(frozen=True, kw_only=True)
class Unpromoted:
    """What is known of a snapshot that was seen and is not promoted."""

    name: str
    step: int
    attempt: int
    rules: str = ""
    """Fingerprint of the trip rules when it was first seen; empty: not known."""
    rejected: bool = False
    """By the gate, for good."""
    reasons: tuple[str, ...] = ()
    """Why it was not promoted, as far as the journal tells."""
    final: bool = False
    """Nothing that could still come changes that: only a person promotes it."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Somebody holds the automatic actions."""

    source: str
    """``silence`` for a silence on a trip alert; else where the person's command came from."""
    who: str
    why: str
    silence: str = ""
    """Alertmanager's id of the silence."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """From a divergence until a promoted snapshot lies ``watch_steps`` past the furthest step that tripped."""

    number: int
    divergences: int = 0
    failed: tuple[str, ...] = ()
    """Promoted snapshots from which an attempt diverged before it had a newer one promoted."""
    watched: int = 0
    """Watched steps of the present attempt that count against the probation allowance."""


@dataclass(frozen=True, kw_only=True)
class EarlyTrip:
    """A trip alert that came between the start of an attempt and its journal entry."""

    divergence: bool
    words: str
    step: int
    alert: str
    """Its name."""
    starts_at: float | None = None
    """Unix seconds of Prometheus's clock; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Dismissed:
    """A trip alert of the present attempt that a person has looked at and found harmless."""

    alert: str
    """Its name."""
    until: float
    """Unix seconds: what began later is another occurrence, and acts."""
    began: float | None = None
    """Unix seconds of Prometheus's clock: when the one that was dismissed began; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """A person's promotion that is not done yet."""

    name: str
    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """An action in flight. Its first stage is what is owed now; a restarted webhook goes on there."""

    cause: Cause
    reason: str
    """What led to it, in words."""
    stages: tuple[Stage, ...]
    ending: Ending = "running"
    target: str | None = None
    """Snapshot of the ``rollback`` stage; None: from scratch."""
    passed_over: tuple[str, ...] = ()
    """Stable snapshots that come before the target and could not be read."""
    lr_scale: float = 1.0
    """Of the attempt to start."""
    reseed: bool = False
    """The attempt to start gets a new seed and discards the snapshot's generator states."""
    backoff_seconds: float = 0.0
    free: bool = False
    """Ended from outside (preemption, SIGTERM): costs no budget."""
    person: bool = False
    """A person asked for it: a pause does not hold it."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One run, as far as its journal says."""

    policy: Policy = field(default_factory=Policy)
    declared: bool = False
    phase: Phase = "closed"
    reason: str = ""
    """Why it is locked."""
    decision: str = ""
    pauses: tuple[Pause, ...] = ()
    lifted: tuple[str, ...] = ()
    """Ids of the silences whose pause a person has ended: they pause the run no more."""
    held_trip: str = ""
    """The last of ``held``, in words."""
    held: tuple[EarlyTrip, ...] = ()
    """Trip alerts of the present attempt that the pause holds, one per name: its last report."""
    dismissed: tuple[Dismissed, ...] = ()
    shut_down: bool = False
    suspended: Procedure | None = None
    """With ``shut_down`` or while shutting down: what the next start of the webhook goes on with."""
    procedure: Procedure | None = None
    promotions: tuple[Promotion, ...] = ()
    would_have: tuple[str, ...] = ()
    """Observe mode: words that are not journaled yet."""
    noted: tuple[str, ...] = ()
    """Observe mode: names of the alerts that were noted of the present attempt; empty for what was no alert."""
    observed: tuple[tuple[str, int], ...] = ()
    """Observe mode: names of the alerts that would have tripped the run, each with the number of its attempts."""
    early_trip: EarlyTrip | None = None
    """A trip of an attempt whose start is not journaled yet."""
    dirty: bool = False
    """Since the last start something diverged: the next start must roll back first, whoever asks for it."""

    attempt: int = -1
    live: bool = False
    handle: dict[str, Any] | None = None
    tripped: bool = False
    step: int = 0
    lr_scale: float = 1.0
    seed: int = 0
    rng: RngPolicy = "restore"
    resumed_from: str | None = None
    resumed_step: int = 0

    active: str | None = None
    """Snapshot that the next attempt resumes from; None: from scratch."""
    active_step: int = 0
    promoted: tuple[Snapshot, ...] = ()
    """In order of promotion: the last one is where ``stable_checkpoint_latest`` points."""
    unpromoted: tuple[Unpromoted, ...] = ()
    """Snapshots that were seen and are neither promoted nor gone, oldest first."""
    raise_lr: bool = False
    """An incident has ended since the last start: the next one doubles the learning-rate scale."""

    incident: Incident | None = None
    incidents: int = 0
    furthest_trip: int = 0
    divergences_run: int = 0
    infrastructure_failures: int = 0
    infrastructure_step: int = 0
    """Furthest step at which an infrastructure failure happened since the count was last restored."""
    restarts_in_a_row: int = 0
    """Infrastructure restarts without a promotion between them; sets the back-off."""
    trips_divergence: int = 0
    trips_infrastructure: int = 0
    restarts_divergence: int = 0
    restarts_infrastructure: int = 0
    lockouts: int = 0

    @property
    def finished(self) -> bool:
        """Nothing happens any more without a person or a new start of the webhook."""
        return self.phase in {"locked", "completed"} or self.shut_down

    @property
    def stage(self) -> Stage | None:
        """What is owed now, held or not."""
        return self.procedure.stages[0] if self.procedure is not None and self.procedure.stages else None

    def to(self, phase: Phase, **changes: Any) -> RunState:
        """The state in another phase (or the same one), with further changes.

        Raises:
            IllegalTransitionError: no legal change of phase leads there.
        """
        if phase != self.phase and (self.phase, phase) not in LEGAL:
            raise IllegalTransitionError(f"{self.phase} → {phase} is no legal change of phase")
        return self.but(phase=phase, **changes)

    def but(self, **changes: Any) -> RunState:
        """The state with changes; of its phase only through :meth:`to`.

        ``dataclasses.replace`` does the same four times as slowly, which is felt when a long journal is folded.

        Raises:
            TypeError: a change names no field.
        """
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"{sorted(changes.keys() - _FIELDS)} are no fields of a run's state")
        copy = object.__new__(RunState)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(changes)
        return copy

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)


_FIELDS = frozenset(f.name for f in dataclasses.fields(RunState))
