"""Which snapshots may go. Pure: the store deletes what the plan names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["candidate", "promoted", "quarantined", "rejected"]


@dataclass(frozen=True, kw_only=True)
class SnapshotInfo:
    """A complete snapshot and what is known of it."""

    name: str
    step: int
    attempt: int
    path: Path
    state: State
    size: int
    """Bytes of its files."""
    time: float
    """Unix seconds of its writer's clock; for people."""
    why: str = ""
    """Who promoted it, or why it was rejected or put into quarantine."""
    sequence: int = 0
    """Of a promoted one: its place in the order of promotion, from 1."""
    was_promoted: bool = False
    """In quarantine: it had been promoted."""
    restorable: bool = False
    """In quarantine: a restart left it behind, or it had been promoted and only a person's rollback or a read
    error put it there."""
    quarantined_at: float = 0.0
    """In quarantine: since when, Unix seconds; 0: that is not known."""

    @property
    def order(self) -> tuple[int, int]:
        """Order of writing: attempts follow one another, and steps never go back within one."""
        return self.attempt, self.step

    @property
    def promotion_order(self) -> tuple[int, tuple[int, int]]:
        """Order of promotion; the last one is what ``stable_checkpoint_latest`` points at."""
        return self.sequence, self.order


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """How much is kept."""

    keep_promoted: int = 3
    """The newest K promoted snapshots; of the older ones the oldest per doubling of the distance in steps."""
    keep_total: int = 20
    """Snapshots outside quarantine."""
    keep_seconds: float | None = None
    """Age above which a snapshot that no other rule keeps is deleted."""
    keep_bytes: int | None = None
    """Bytes of all snapshots outside quarantine."""
    keep_quarantined: int = 5
    """Snapshots in quarantine that had never been promoted, the latest ones."""
    keep_quarantined_seconds: float = 86400.0
    """One that came there later than that ago, this number does not delete: a person may want it back."""
    keep_quarantined_bytes: int | None = None
    """Bytes in quarantine; the only limit that deletes one there that is new or had been promoted."""
    rejected_first: bool = True
    """False: a rejection counts for nothing; the newest snapshot that can be resumed from may be a rejected one."""

    def __post_init__(self) -> None:
        if self.keep_promoted < 1:
            raise ValueError(f"keep_promoted {self.keep_promoted}: at least 1, or a run has nothing to go back to")


def plan_retention(
    infos: Sequence[SnapshotInfo],
    policy: RetentionPolicy,
    now: float,
    protected: Collection[str] = (),
    *,
    attempt: int | None = None,
) -> tuple[str, ...]:
    """Names to delete, in the order in which to delete them.

    Never among them: ``protected``, the last promoted snapshot, the newest one that can be resumed from, and the
    oldest candidate after the last promoted that can still be judged (the next one that can become stable: a limit
    that always took it would keep the run from ever having a new stable snapshot). Too old, too many or too large a
    set loses, in this order: rejected ones; candidates that a later promotion or attempt has overtaken; promoted
    ones that neither the newest K nor the spacing keeps (the oldest first, each); candidates that still wait (the
    newest first). Only then, to hold the limits on number and bytes, the spaced ones (the newest first: the newest
    K stand next to them) and the newest K themselves, the oldest first.

    Args:
        attempt: whose candidates can still be judged, the present one; None: those of every attempt.
    """
    outside = sorted((info for info in infos if info.state != "quarantined"), key=lambda info: info.order)
    promoted = sorted((info for info in outside if info.state == "promoted"), key=lambda info: info.promotion_order)
    usable = [info for info in outside if info.state != "rejected" or not policy.rejected_first]
    overtaken_by = promoted[-1].order if promoted else (-1, -1)
    candidates = [info for info in usable if info.state != "promoted"]
    waiting = [
        info
        for info in candidates
        if info.state == "candidate" and info.order > overtaken_by and attempt in {None, info.attempt}
    ]
    never = {*protected, *(info.name for info in (*promoted[-1:], *usable[-1:], *waiting[:1]))}
    newest = promoted[-policy.keep_promoted :]
    spaced = _spaced(promoted[: -policy.keep_promoted], newest[-1].step) if newest else []
    free = (
        *(info for info in outside if info not in usable),
        *(info for info in candidates if info not in waiting),
        *(info for info in promoted if info not in newest and info not in spaced),
        *reversed(waiting),
    )
    doomed: list[str] = []
    count, size = len(outside), sum(info.size for info in outside)
    for info, by_age in (
        *((info, True) for info in free),
        *((info, False) for info in (*reversed(spaced), *newest)),
    ):
        too_old = by_age and policy.keep_seconds is not None and now - info.time > policy.keep_seconds
        too_much = count > policy.keep_total or (policy.keep_bytes is not None and size > policy.keep_bytes)
        if info.name not in never and (too_old or too_much):
            doomed.append(info.name)
            count, size = count - 1, size - info.size
    return (*doomed, *_quarantine_plan([i for i in infos if i.state == "quarantined"], policy, now, protected))


def _spaced(older: Sequence[SnapshotInfo], newest_step: int) -> list[SnapshotInfo]:
    """The oldest of each doubling of the distance in steps to the newest, in order of writing."""
    kept: dict[int, SnapshotInfo] = {}
    for info in sorted(older, key=lambda info: info.order):
        kept.setdefault((newest_step - info.step).bit_length() if info.step < newest_step else 0, info)
    return sorted(kept.values(), key=lambda info: info.order)


def _quarantine_plan(
    quarantined: Sequence[SnapshotInfo], policy: RetentionPolicy, now: float, protected: Collection[str]
) -> list[str]:
    """``quarantined`` comes in the order in which they were put there; those that had been promoted go last."""
    doomed: list[str] = []
    never_promoted = [info for info in quarantined if not info.was_promoted]
    count, size = len(never_promoted), sum(info.size for info in quarantined)
    for info in (*never_promoted, *(info for info in quarantined if info.was_promoted)):
        new = now - info.quarantined_at < policy.keep_quarantined_seconds
        too_many = count > policy.keep_quarantined and not info.was_promoted and not new
        too_large = policy.keep_quarantined_bytes is not None and size > policy.keep_quarantined_bytes
        if (too_many or too_large) and info.name not in protected:
            doomed.append(info.name)
            count, size = count - 1, size - info.size
    return doomed
