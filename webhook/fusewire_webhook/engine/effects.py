"""How each action of the breaker is carried out for one run, and the event that tells its outcome.

Every effect may be repeated after a crash at any point of it. None of them journals: the engine does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fusewire.errors import FusewireError
from fusewire.snapshots import SnapshotStore
from fusewire_webhook.actuators import Actuator
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
from fusewire_webhook.breaker.events import Event, PurgeFinished, WouldHaveActed
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.engine.blocking import Blocking
from fusewire_webhook.engine.evidence_protocol import Evidence
from fusewire_webhook.engine.launching import purge_argv
from fusewire_webhook.engine.order import Order
from fusewire_webhook.engine.ports import PortAllocator
from fusewire_webhook.engine.process_effects import ProcessEffects
from fusewire_webhook.engine.purge import run_hook
from fusewire_webhook.engine.snapshot_effects import SnapshotEffects
from fusewire_webhook.settings.config import RunConfig


class Effects:
    """The effects on one run: those on its processes, those on its snapshots, and the purge hook.

    Args:
        store: the run's snapshots.
        blocking: runs what blocks on the disk.
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
        blocking: Blocking,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.run = run
        self.config = config
        self.run_dir = run_dir
        self.blocking = blocking
        self.processes = ProcessEffects(
            run,
            config,
            run_dir,
            actuator=actuator,
            evidence=evidence,
            ports=ports,
            blocking=blocking,
            sleep=sleep,
        )
        self.snapshots = SnapshotEffects(run, config, store, evidence=evidence, blocking=blocking, sleep=sleep)

    async def perform(  # noqa: PLR0911 - one return per action
        self, action: Action, state: RunState, *, seq: int, order: Order
    ) -> Event | None:
        """Carry out an action that ``state`` owes; ``seq`` is the journal entry that led to it.

        Returns:
            The outcome; None: it is owed no more.
        """
        match action:
            case StopAttempt():
                return await self.processes.stop(action, state)
            case WaitAndClassify():
                return await order.meanwhile(self.processes.classify(action))
            case RollBack():
                return await self.snapshots.roll_back(action, seq, order)
            case ResumeNewest():
                return await self.snapshots.resume(action, state, seq, order)
            case Purge():
                return await self._purge(action)
            case WaitBackoff():
                return await order.meanwhile(self.processes.back_off(action))
            case StartAttempt():
                return await self.processes.start(action)
            case PromoteSnapshot():
                return await self.snapshots.promote_for_person(action)
            case NoteWouldHave():
                return WouldHaveActed(words=action.words, trip_used=False)
        raise AssertionError(f"no effect for {action}")

    async def _purge(self, action: Purge) -> Event:
        config, watermark = self.config, None
        if action.target is not None:
            try:
                watermark = (await self.blocking(self.snapshots.store.manifest, action.target)).replay_watermark
            except (FusewireError, OSError) as error:
                return PurgeFinished(exit_code=127, output=str(error))
        return await run_hook(
            purge_argv(config, run=self.run, run_dir=self.run_dir, watermark=watermark),
            cwd=config.cwd,
            environment=config.env,
            timeout_seconds=config.purge_timeout_seconds,
        )
