"""How each action of the breaker is carried out for one run, and the event that tells its outcome.

Every method may be repeated after a crash at any point of it. None of them journals: the engine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fusewire.attempt_files import ATTEMPTS, COMPLETED_FILE, EXPORTER_FILE, LAST_VALUES_FILE, attempt_folder
from fusewire.errors import FusewireError, SnapshotError
from fusewire.snapshots import RetentionPolicy, SnapshotInfo, SnapshotStore
from fusewire_webhook.actuators import Actuator, Handle, Status
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
)
from fusewire_webhook.breaker.events import (
    AttemptStarted,
    Event,
    ExitClassified,
    ProcessExited,
    PurgeFinished,
    RollbackFailed,
    RolledBack,
    SnapshotPromoted,
    SnapshotRejected,
    StartFailed,
    StopConfirmed,
    StopUnconfirmed,
    TimerElapsed,
    WouldHaveActed,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.engine.endpoint import ExporterEndpoint
from fusewire_webhook.engine.evidence_protocol import Evidence
from fusewire_webhook.engine.launching import launch_of, parameters_of, purge_argv
from fusewire_webhook.engine.order import Order
from fusewire_webhook.engine.output import last_line
from fusewire_webhook.engine.ports import PortAllocator
from fusewire_webhook.engine.purge import run_hook
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import RunConfig
from fusewire_webhook.settings.placing import place_of

log = logging.getLogger(__name__)

READ_AGAIN_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
"""Waits before what could not be read or written is tried again: a file server may be away for a while."""
LAST_STEP_SECONDS = 5.0
"""Longest wait for the last step of an attempt that has ended: it sharpens a figure, or is one sign of several."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What a restart resumes from."""

    target: str | None
    """None: from scratch."""
    unread: tuple[str, ...] = ()
    """Newer ones that could not be read."""


class Effects:
    """The effects on one run.

    Args:
        store: the run's snapshots; its calls block and run in ``executor``.
        sleep: as ``asyncio.sleep``.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        run_dir: Path,
        *,
        store: SnapshotStore,
        actuator: Actuator,
        evidence: Evidence,
        ports: PortAllocator,
        executor: Executor,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.run = run
        self.config = config
        self.run_dir = run_dir
        self.store = store
        self.endpoint = ExporterEndpoint(run_dir, ports, place=place_of(run, config))
        self._actuator = actuator
        self._evidence = evidence
        self._executor = executor
        self._sleep = sleep
        self.changing = asyncio.Lock()
        """Held while snapshots change their state, links or place; never while they are only read."""

    async def perform(  # noqa: PLR0911 - one return per action
        self, action: Action, state: RunState, *, seq: int, order: Order
    ) -> Event | None:
        """Carry out an action that ``state`` owes; ``seq`` is the journal entry that led to it.

        Returns:
            The outcome; None: it could not be done yet, or is owed no more, so look again at what is owed.
        """
        match action:
            case StopAttempt():
                return await self._stop(action, state)
            case WaitAndClassify():
                return await order.meanwhile(self._classify(action))
            case RollBack():
                return await self._patiently(partial(self._roll_back, action, seq, order), order, action.target)
            case ResumeNewest():
                return await self._patiently(partial(self._resume, action, state, seq, order), order)
            case Purge():
                return await self._purge(action)
            case WaitBackoff():
                return await order.meanwhile(self._back_off(action))
            case StartAttempt():
                return await self._start(action)
            case PromoteSnapshot():
                return await self._promote_for_person(action)
            case NoteWouldHave():
                return WouldHaveActed(words=action.words, trip_used=False)
        raise AssertionError(f"no effect for {action}")

    # The process --------------------------------------------------------------------------------------

    async def _stop(self, action: StopAttempt, state: RunState) -> Event:
        attempt, started = action.attempt, time.monotonic()
        try:
            handle = state.handle or await self._actuator.find(self.run, attempt, str(self.run_dir))
            if handle is None:
                return StopConfirmed(attempt=attempt, gpu="none")
            gone = await self._actuator.stop(handle, grace_seconds=self.config.stop.grace_seconds)
        except (ActuatorError, OSError) as error:
            return StopUnconfirmed(attempt=attempt, reason=str(error))
        if not gone.confirmed:
            return StopUnconfirmed(attempt=attempt, reason=gone.reason or "not every process is seen gone")
        seconds = time.monotonic() - started
        step = await self._last_step(attempt)
        self.endpoint.forget(attempt)
        return StopConfirmed(
            attempt=attempt, exit_code=gone.exit_code, seconds=seconds, killed=gone.killed, gpu=gone.gpu, step=step
        )

    async def _start(self, action: StartAttempt) -> Event:
        try:
            endpoint = await self.blocking(self.endpoint.assign, action.attempt)
            self.endpoint.listen_at(endpoint)
            _, host, port = endpoint
            parameters = parameters_of(self.run, action, self.config, self.run_dir, host=host, port=port)
            await self.blocking(self._prepare, action.attempt)
            await self._end_others(action.attempt)
            await self.blocking(parameters.write, self.run_dir)
            handle = await self._actuator.start(launch_of(parameters, self.config))
        except (ActuatorError, FusewireError, OSError) as error:
            self.endpoint.forget(action.attempt)
            return StartFailed(attempt=action.attempt, reason=str(error))
        return AttemptStarted(
            attempt=action.attempt,
            handle=handle,
            resume_from=action.resume_from,
            lr_scale=action.lr_scale,
            seed=action.seed,
        )

    async def _end_others(self, attempt: int) -> None:
        """End every other attempt of this run directory that lives: a journal that was lost knows none of them.

        Raises:
            ActuatorError: one of them cannot be seen gone.
        """
        for other in await self.blocking(self._attempts):
            if other == attempt:
                continue
            handle = await self._actuator.find(self.run, other, str(self.run_dir))
            if handle is None or (await self._actuator.status(handle)).phase == "exited":
                continue
            log.warning("run %s: attempt %d lives, unknown to the journal; it is stopped", self.run, other)
            gone = await self._actuator.stop(handle, grace_seconds=self.config.stop.grace_seconds)
            if not gone.confirmed:
                raise ActuatorError(f"attempt {other} still lives, unknown to the journal: {gone.reason}")

    async def watch(self, attempt: int, handle: Handle) -> ProcessExited:
        """Return when the attempt's process has ended.

        Raises:
            ActuatorError: it cannot be watched now.
        """
        status: Status = await self._actuator.wait(handle)
        folder = attempt_folder(self.run_dir, attempt)
        attached = await self._attached(attempt, folder)
        return ProcessExited(
            attempt=attempt,
            exit_code=status.exit_code,
            completed=await self.blocking((folder / COMPLETED_FILE).exists),
            attached=attached,
            reason=status.reason,
            seconds=status.seconds,
            last_line="" if attached else await self.blocking(last_line, self.run_dir, attempt),
        )

    async def _attached(self, attempt: int, folder: Path) -> bool:
        """Had the trainer attached? Any sign counts: a disk that was full for a while takes only some."""
        for name in (EXPORTER_FILE, LAST_VALUES_FILE):
            if await self.blocking((folder / name).exists):
                return True
        return await self._last_step(attempt) is not None

    async def _last_step(self, attempt: int) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STEP_SECONDS):
                return await self._evidence.last_step(self.run, attempt)
        return None

    async def _back_off(self, action: WaitBackoff) -> Event:
        await self._sleep(action.seconds)
        return TimerElapsed(name=action.name)

    async def _classify(self, action: WaitAndClassify) -> Event:
        await self._sleep(action.seconds)
        found = await self._evidence.exit_evidence(self.run, action.attempt, self.run_dir)
        return ExitClassified(
            attempt=action.attempt, failure_class=found.failure_class, evidence=found.reasons, step=found.step
        )

    def first_free_attempt(self) -> int:
        """Make the run directory; the lowest attempt number above all that it holds. Blocks on the disk."""
        (self.run_dir / ATTEMPTS).mkdir(parents=True, exist_ok=True)
        return max(self._attempts(), default=-1) + 1

    def _attempts(self) -> list[int]:
        return sorted(int(path.name) for path in (self.run_dir / ATTEMPTS).iterdir() if path.name.isdecimal())

    def _prepare(self, attempt: int) -> None:
        attempt_folder(self.run_dir, attempt).mkdir(parents=True, exist_ok=True)

    # Snapshots ----------------------------------------------------------------------------------------

    async def _roll_back(self, action: RollBack, seq: int, order: Order, last_try: bool) -> Event | None:
        target = action.target
        if target is not None:
            reading = self.blocking(self.store.verify, target, self.config.snapshots.verify)
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
        choice = await order.meanwhile(self._newest_clean(action.attempt, seq, pass_over_unread=last_try))
        if choice is None:
            return None
        reason = f"left behind by a restart: {action.reason}"
        outcome = await self._change(order, self._make_active, choice.target, reason, seq, unread=choice.unread)
        if outcome is None:
            return None
        there_were = bool(outcome.quarantined or state.promoted or state.active)
        return replace(outcome, none_usable=choice.target is None and there_were)

    async def _change(self, order: Order, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Change what lies on the disk, to the end, unless it is owed no more."""
        async with self.changing:
            return await self.blocking(change, *args, **kwargs) if order.stands() else None

    def _make_active(
        self,
        target: str | None,
        reason: str,
        seq: int,
        *,
        by_person: bool = False,
        unread: tuple[str, ...] = (),
    ) -> RolledBack:
        if target is not None and by_person:
            self.store.restore(target)
        moved = self.store.roll_back(target, reason=reason, journal_entry=seq, by_person=by_person, unread=unread)
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
                log.warning("run %s: tried again in %g s: %s", self.run, wait, error)
                await order.meanwhile(self._sleep(wait))
        return None

    async def _newest_clean(self, attempt: int, seq: int, *, pass_over_unread: bool) -> _Choice:
        """The newest verified snapshot that is promoted, or since which no trip alert was pending or firing.

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
                info = await self.blocking(self.store.newest_verified, (*passed, *unread), journal_entry=seq)
            except SnapshotError as error:
                if not (pass_over_unread and _unreadable(error) and error.snapshot):
                    raise
                log.warning("run %s: %s; an older one is looked for", self.run, error)
                unread[error.snapshot] = error
                continue
            if info is None:
                break
            choice = _Choice(target=info.name, unread=tuple(unread))
            if info.state == "promoted":
                return choice
            unclean = await self._evidence.unclean_since(self.run, attempt, info.name)
            if unclean is not None and not unclean:
                return choice
            if unclean is None and unknown is None:
                unknown = choice
            passed.append(info.name)
        if unknown is None and unread:
            raise next(iter(unread.values()))
        return unknown or _Choice(target=None)

    async def _purge(self, action: Purge) -> Event:
        config, watermark = self.config, None
        if action.target is not None:
            try:
                watermark = (await self.blocking(self.store.manifest, action.target)).replay_watermark
            except (FusewireError, OSError) as error:
                return PurgeFinished(exit_code=127, output=str(error))
        return await run_hook(
            purge_argv(config, run=self.run, run_dir=self.run_dir, watermark=watermark),
            cwd=config.cwd,
            environment=config.env,
            timeout_seconds=config.purge_timeout_seconds,
        )

    async def _promote_for_person(self, action: PromoteSnapshot) -> Event:
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
            info = await self.blocking(self.store.get, name)
        except (FusewireError, OSError) as error:
            return (str(error),), None
        if info.state == "quarantined":
            return (f"{name} is in quarantine ({info.why}): {info.path}",), info
        if not verify:
            return (), info
        verification = await self.blocking(self.store.verify, name, self.config.snapshots.verify)
        return (() if verification.ok else tuple(verification.problems)), info

    async def promote(
        self, name: str, *, by: str, evidence: dict[str, Any], baselines: dict[str, Any]
    ) -> SnapshotPromoted:
        """Promote on disk; what is to be journaled of it.

        Raises:
            FusewireError, OSError: it was not promoted, or nobody can say.
        """
        async with self.changing:
            info = await self.blocking(self._promote_now, name, by=by, evidence=evidence, baselines=baselines)
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
            log.warning("run %s: %s is promoted, but its link is not renewed yet: %s", self.run, name, error)
            return info
        return self.store.get(name)

    async def retain(self, attempt: int) -> tuple[str, ...]:
        """Apply the retention rules, with ``attempt`` as the present one; the names that were deleted.

        Raises:
            FusewireError, OSError: not everything could be deleted.
        """
        keep = self.config.snapshots
        policy = RetentionPolicy(
            keep_promoted=keep.keep_promoted,
            keep_total=keep.keep_total,
            keep_seconds=None if keep.keep_days is None else keep.keep_days * 86400,
            keep_bytes=keep.keep_bytes,
            keep_quarantined=keep.keep_quarantined,
            keep_quarantined_bytes=keep.keep_quarantined_bytes,
        )
        async with self.changing:
            return await self.blocking(self.store.apply_retention, policy, attempt=attempt)

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that blocks on the disk in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *args, **kwargs))


def _unreadable(error: Exception) -> bool:
    return isinstance(error, SnapshotError) and error.reason == "unreadable"
