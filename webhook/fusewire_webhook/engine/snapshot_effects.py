"""The effects on a run's snapshots: one is made active, promoted, or examined; those not kept are deleted.

See ``effects.py`` for what holds for every effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fusewire.errors import FusewireError, SnapshotError
from fusewire.snapshots import RetentionPolicy, SnapshotInfo, SnapshotStore
from fusewire_webhook.breaker.actions import PromoteSnapshot, ResumeNewest, RollBack
from fusewire_webhook.breaker.events import (
    Event,
    RollbackFailed,
    RolledBack,
    SnapshotPromoted,
    SnapshotRejected,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.engine.blocking import Blocking
from fusewire_webhook.engine.evidence_protocol import Evidence
from fusewire_webhook.engine.order import Order
from fusewire_webhook.settings.config import RunConfig

log = logging.getLogger(__name__)

READ_AGAIN_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
"""Waits before what could not be read or written is tried again: a file server may be away for a while."""

P = ParamSpec("P")
T = TypeVar("T")


class SnapshotEffects:
    """See the module's docstring.

    Args:
        store: its calls block on the disk.
        sleep: as ``asyncio.sleep``.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        store: SnapshotStore,
        *,
        evidence: Evidence,
        blocking: Blocking,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.store = store
        self.changing = asyncio.Lock()
        """Held while snapshots change their state, links or place; never while they are only read."""
        self._run = run
        self._config = config
        self._evidence = evidence
        self._blocking = blocking
        self._sleep = sleep

    # What the next attempt resumes from -----------------------------------------------------------------

    async def roll_back(self, action: RollBack, seq: int, order: Order) -> Event | None:
        """Make the target active; None: the action is owed no more. ``seq``: the journal entry that led to it."""
        return await self._patiently(partial(self._roll_back, action, seq, order), order, action.target)

    async def resume(self, action: ResumeNewest, state: RunState, seq: int, order: Order) -> Event | None:
        """Make the newest clean one active; see :meth:`roll_back`."""
        return await self._patiently(partial(self._resume, action, state, seq, order), order)

    async def _roll_back(self, action: RollBack, seq: int, order: Order, last_try: bool) -> Event | None:
        target = action.target
        if target is not None:
            reading = self._blocking(self.store.verify, target, self._config.snapshots.verify)
            verification = await order.meanwhile(reading)
            if verification is None:
                return None
            problem = "; ".join(verification.problems)
            if verification.unreadable:
                # the wait for the one before was for the file server: it would be in vain once more
                if not (last_try or action.passed_over):
                    raise SnapshotError(f"{target}: {problem}", reason="unreadable")
                return RollbackFailed(target=target, reason=problem, unreadable=True)
            if not verification.ok:
                away = partial(self.store.quarantine, reason=f"cannot be used: {problem}", journal_entry=seq)
                if await self._change(order, away, [target]) is None:
                    return None
                return RollbackFailed(target=target, reason=problem)
        return await self._change(
            order,
            self._make_active,
            target,
            action.reason,
            seq,
            by_person=action.by_person,
            unread=action.passed_over,
        )

    async def _resume(
        self, action: ResumeNewest, state: RunState, seq: int, order: Order, last_try: bool
    ) -> Event | None:
        newest = self._newest_clean(action.attempt, seq, heed_alerts=action.heed_alerts, pass_over_unread=last_try)
        choice = await order.meanwhile(newest)
        if choice is None:
            return None
        reason = f"left behind by a restart: {action.reason}"
        outcome = await self._change(
            order, self._make_active, choice.target, reason, seq, unread=choice.unread, left_behind=True
        )
        if outcome is None:
            return None
        there_were = bool(outcome.quarantined or state.promoted or state.active)
        return replace(outcome, none_usable=choice.target is None and there_were)

    async def _change(self, order: Order, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Change what lies on the disk, to the end, unless it is owed no more."""
        async with self.changing:
            return await self._blocking(change, *args, **kwargs) if order.stands() else None

    def _make_active(
        self,
        target: str | None,
        reason: str,
        seq: int,
        *,
        by_person: bool = False,
        unread: tuple[str, ...] = (),
        left_behind: bool = False,
    ) -> RolledBack:
        if target is not None and by_person:
            self.store.restore(target)
        moved = self.store.roll_back(
            target,
            reason=reason,
            journal_entry=seq,
            by_person=by_person,
            unread=unread,
            left_behind=left_behind,
        )
        if target is None:
            return RolledBack(target=None, quarantined=moved)
        info = self.store.get(target)
        return RolledBack(
            target=target, step=info.step, attempt=info.attempt, quarantined=moved, sequence=info.sequence
        )

    async def _patiently(
        self, change: Callable[[bool], Awaitable[Event | None]], order: Order, target: str | None = None
    ) -> Event | None:
        """The outcome of a change of what is active: what cannot be read or written now is tried again for a while.

        ``change`` is told whether this is the last try. A snapshot that cannot be read is not a damaged one.
        """
        waits = iter(READ_AGAIN_SECONDS)
        while order.stands():
            wait = next(waits, None)
            try:
                return await change(wait is None)
            except (FusewireError, OSError) as error:
                if not (isinstance(error, OSError) or _unreadable(error)):
                    return RollbackFailed(target=target, reason=str(error))
                if wait is None:
                    return RollbackFailed(reason=str(error))
                log.warning("run %s: tried again in %g s: %s", self._run, wait, error)
                await order.meanwhile(self._sleep(wait))
        return None

    async def _newest_clean(self, attempt: int, seq: int, *, heed_alerts: bool, pass_over_unread: bool) -> _Choice:
        """The newest verified snapshot that is promoted, or since which no trip alert was pending or firing.

        Without ``heed_alerts`` it is the newest one whose bytes hold, be it rejected.

        Damaged ones on the way go to quarantine; those that cannot be read are passed over where that is allowed.
        Where Prometheus does not answer, a promoted snapshot is better than an unknown candidate, and that is
        better than nothing.

        Raises:
            SnapshotError: with reason ``unreadable``: one on the way cannot be read now, or nothing else is left.
        """
        passed: list[str] = []
        unread: dict[str, SnapshotError] = {}
        unknown: _Choice | None = None
        while True:
            try:
                info = await self._blocking(
                    self.store.newest_verified, (*passed, *unread), journal_entry=seq, rejected_too=not heed_alerts
                )
            except SnapshotError as error:
                if not (pass_over_unread and _unreadable(error) and error.snapshot):
                    raise
                log.warning("run %s: %s; an older one is looked for", self._run, error)
                unread[error.snapshot] = error
                continue
            if info is None:
                break
            choice = _Choice(target=info.name, unread=tuple(unread))
            if info.state == "promoted" or not heed_alerts:
                return choice
            unclean = await self._evidence.unclean_since(self._run, attempt, info.name)
            if unclean is not None and not unclean:
                return choice
            if unclean is None and unknown is None:
                unknown = choice
            passed.append(info.name)
        if unknown is None and unread:
            raise next(iter(unread.values()))
        return unknown or _Choice(target=None)

    # Promotion and retention ----------------------------------------------------------------------------

    async def promote_for_person(self, action: PromoteSnapshot) -> Event:
        """Promote on a person's word, once its bytes are seen to hold."""
        problems, info = await self.examine(action.name)
        if info is None:
            return SnapshotRejected(name=action.name, step=0, attempt=0, reasons=problems, by=action.who)
        evidence = {"who": action.who, "why": action.why}
        try:
            if not problems:
                return await self.promote(action.name, by=action.who, evidence=evidence, baselines={})
        except (FusewireError, OSError) as error:
            problems = (str(error),)
        return SnapshotRejected(
            name=info.name, step=info.step, attempt=info.attempt, reasons=problems, by=action.who
        )

    async def examine(self, name: str, *, verify: bool = True) -> tuple[tuple[str, ...], SnapshotInfo | None]:
        """Why the snapshot must not be promoted (empty: it may), and what it is; its bytes too with ``verify``."""
        try:
            info = await self._blocking(self.store.get, name)
        except (FusewireError, OSError) as error:
            return (str(error),), None
        if info.state == "quarantined":
            return (f"{name} is in quarantine ({info.why}): {info.path}",), info
        if not verify:
            return (), info
        verification = await self._blocking(self.store.verify, name, self._config.snapshots.verify)
        return (() if verification.ok else tuple(verification.problems)), info

    async def damage(self, name: str) -> str | None:
        """Why nobody can go back to it, as far as a quick look tells: a healthy attempt is not stopped for that."""
        found = await self._blocking(self.store.verify, name, "sampled")
        state = "cannot be read now" if found.unreadable else "is damaged"
        return None if found.ok else f"{name} {state}: {'; '.join(found.problems)}"

    async def promote(
        self, name: str, *, by: str, evidence: dict[str, Any], baselines: dict[str, Any]
    ) -> SnapshotPromoted:
        """Promote on disk; what is to be journaled of it.

        Raises:
            FusewireError, OSError: it was not promoted, or nobody can say.
        """
        async with self.changing:
            info = await self._blocking(self._promote_now, name, by=by, evidence=evidence, baselines=baselines)
        return SnapshotPromoted(
            name=name, step=info.step, attempt=info.attempt, by=by, evidence=evidence, sequence=info.sequence
        )

    def _promote_now(self, name: str, **decision: Any) -> SnapshotInfo:
        try:
            self.store.promote(name, **decision)
        except OSError as error:
            info = self.store.get(name)
            if info.state != "promoted":
                raise
            log.warning("run %s: %s is promoted, but its link is not renewed yet: %s", self._run, name, error)
            return info
        return self.store.get(name)

    async def retain(self, attempt: int) -> tuple[str, ...]:
        """Apply the retention rules, with ``attempt`` as the present one; the names that were deleted.

        Raises:
            FusewireError, OSError: not everything could be deleted.
        """
        keep = self._config.snapshots
        policy = RetentionPolicy(
            keep_promoted=keep.keep_promoted,
            keep_total=keep.keep_total,
            keep_seconds=None if keep.keep_days is None else keep.keep_days * 86400,
            keep_bytes=keep.keep_bytes,
            keep_quarantined=keep.keep_quarantined,
            keep_quarantined_seconds=keep.keep_quarantined_days * 86400,
            keep_quarantined_bytes=keep.keep_quarantined_bytes,
            rejected_first=self._config.mode == "act",
        )
        async with self.changing:
            return await self._blocking(self.store.apply_retention, policy, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What a restart resumes from."""

    target: str | None
    """None: from scratch."""
    unread: tuple[str, ...] = ()
    """Newer ones that could not be read."""


def _unreadable(error: Exception) -> bool:
    return isinstance(error, SnapshotError) and error.reason == "unreadable"
