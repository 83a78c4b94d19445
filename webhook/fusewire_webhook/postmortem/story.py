"""What there is to tell of one failed attempt (``telling.py`` reads it out of the journal)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.breaker import events as ev

Outcome = Literal["restarted", "locked", "observed", "under_way"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One journal entry in words, and the decision that it led to."""

    seq: int
    at: float
    words: str
    decided: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the trainer. Times are Unix seconds of the webhook's clock."""

    number: int
    started_at: float
    resume_from: str | None
    lr_scale: float
    seed: int
    last_step: int | None = None
    ended_at: float | None = None
    ended: str = ""
    tripped: str = ""
    """Why, in words; empty: it did not trip."""

    @property
    def resumed_step(self) -> int:
        """Step of the snapshot that it started from; 0 from scratch."""
        parsed = parse_name(self.resume_from) if self.resume_from else None
        return parsed[0] if parsed else 0


@dataclass(frozen=True, kw_only=True)
class Known:
    """One snapshot that the journal tells of."""

    name: str
    seen_at: float
    promoted_at: float | None = None
    promoted_by: str = ""
    fate: str = ""
    """``quarantined``, ``removed`` or ``rejected``; empty: kept, as far as the journal says."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One attempt of an incident: how it came to its end, and what training went on from."""

    attempt: Attempt
    ended_at: float
    """Webhook's clock: when it tripped, or ended otherwise."""
    alert: str
    """Name of the alert that tripped it, else the cause in words; empty: it did not trip."""
    divergence: bool
    went_back_to: str | None
    """Snapshot that training went on from, or would now; None: scratch."""
    next_at: float | None
    """When the next attempt was started; None: not yet."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """One failed attempt, and what was done about it."""

    run: str
    attempt: Attempt
    tripped_at: float
    """Webhook's clock; where the process had ended by itself, that moment."""
    cause: str
    failure_class: str
    outcome: Outcome
    lock_reason: str = ""
    alerts: tuple[ev.AlertReported, ...] = ()
    """Trip alerts of the attempt, one for each name, the one that tripped it first."""
    by_alert: bool = False
    """The first one is what tripped it."""
    exit: ev.ProcessExited | None = None
    stop: ev.StopConfirmed | ev.StopUnconfirmed | None = None
    rolled_back: ev.RolledBack | None = None
    purge: ev.PurgeFinished | None = None
    next: Attempt | None = None
    attempts: tuple[Attempt, ...] = ()
    incident: tuple[Failure, ...] = ()
    """The attempts since the run was last well or reset, up to this one; the last is this one."""
    stable: str | None = None
    """Snapshot that training goes on from; None: scratch."""
    snapshots: tuple[Known, ...] = ()
    lines: tuple[Line, ...] = ()
    omitted: int = 0
    """Journal lines that are left out between the first and the last ones."""
    divergences: int = 0
    divergences_allowed: int = 0
    monitoring: tuple[str, ...] = ()
    """Why the watch was degraded when the attempt tripped."""

    @property
    def alert_at(self) -> float | None:
        """When the alert that tripped it says it began, on Prometheus' clock; None: it was no alert."""
        return unix(self.alerts[0].starts_at) if self.by_alert else None


def unix(text: str) -> float | None:
    """RFC 3339 as Unix seconds; None: it is no such text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
