"""The effects on a run's processes: an attempt is started, watched and stopped, and the end of one explained.

See ``effects.py`` for what holds for every effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from fusewire.attempt_files import ATTEMPTS, COMPLETED_FILE, EXPORTER_FILE, LAST_VALUES_FILE, attempt_folder
from fusewire.errors import FusewireError
from fusewire_webhook.actuators import Actuator, Handle, Status
from fusewire_webhook.breaker.actions import StartAttempt, StopAttempt, WaitAndClassify, WaitBackoff
from fusewire_webhook.breaker.events import (
    AttemptStarted,
    Event,
    ExitClassified,
    ProcessExited,
    StartFailed,
    StopConfirmed,
    StopUnconfirmed,
    TimerElapsed,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.engine.blocking import Blocking
from fusewire_webhook.engine.endpoint import ExporterEndpoint
from fusewire_webhook.engine.evidence_protocol import Evidence
from fusewire_webhook.engine.launching import launch_of, parameters_of
from fusewire_webhook.engine.output import last_line
from fusewire_webhook.engine.ports import PortAllocator
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import RunConfig
from fusewire_webhook.settings.placing import place_of

log = logging.getLogger(__name__)

LAST_STEP_SECONDS = 5.0
"""Longest wait for the last step of an attempt that has ended: it sharpens a figure, or is one sign of several."""


class ProcessEffects:
    """See the module's docstring.

    Args:
        sleep: as ``asyncio.sleep``.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        run_dir: Path,
        *,
        actuator: Actuator,
        evidence: Evidence,
        ports: PortAllocator,
        blocking: Blocking,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.endpoint = ExporterEndpoint(run_dir, ports, place=place_of(run, config))
        self._run = run
        self._config = config
        self._run_dir = run_dir
        self._actuator = actuator
        self._evidence = evidence
        self._blocking = blocking
        self._sleep = sleep

    async def stop(self, action: StopAttempt, state: RunState) -> Event:
        """Stop the attempt, whose handle a crash may have kept out of the journal."""
        attempt, started = action.attempt, time.monotonic()
        try:
            handle = state.handle or await self._actuator.find(self._run, attempt, str(self._run_dir))
            if handle is None:
                return StopConfirmed(attempt=attempt, gpu="none")
            gone = await self._actuator.stop(handle, grace_seconds=self._config.stop.grace_seconds)
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

    async def start(self, action: StartAttempt) -> Event:
        """Start the attempt, or adopt the one that a crash kept out of the journal."""
        try:
            endpoint = await self._blocking(self.endpoint.assign, action.attempt)
            self.endpoint.listen_at(endpoint)
            _, host, port = endpoint
            parameters = parameters_of(self._run, action, self._config, self._run_dir, host=host, port=port)
            await self._blocking(self._prepare, action.attempt)
            await self._end_others(action.attempt)
            await self._blocking(parameters.write, self._run_dir)
            handle = await self._actuator.start(launch_of(parameters, self._config))
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
        for other in await self._blocking(self._attempts):
            if other == attempt:
                continue
            handle = await self._actuator.find(self._run, other, str(self._run_dir))
            if handle is None or (await self._actuator.status(handle)).phase == "exited":
                continue
            log.warning("run %s: attempt %d lives, unknown to the journal; it is stopped", self._run, other)
            gone = await self._actuator.stop(handle, grace_seconds=self._config.stop.grace_seconds)
            if not gone.confirmed:
                raise ActuatorError(f"attempt {other} still lives, unknown to the journal: {gone.reason}")

    async def watch(self, attempt: int, handle: Handle) -> ProcessExited:
        """Return when the attempt's process has ended.

        Raises:
            ActuatorError: it cannot be watched now.
        """
        status: Status = await self._actuator.wait(handle)
        folder = attempt_folder(self._run_dir, attempt)
        attached = await self._attached(attempt, folder)
        return ProcessExited(
            attempt=attempt,
            exit_code=status.exit_code,
            completed=await self._blocking((folder / COMPLETED_FILE).exists),
            attached=attached,
            reason=status.reason,
            seconds=status.seconds,
            last_line="" if attached else await self._blocking(last_line, self._run_dir, attempt),
        )

    async def _attached(self, attempt: int, folder: Path) -> bool:
        """Had the trainer attached? Any sign counts: a disk that was full for a while takes only some."""
        for name in (EXPORTER_FILE, LAST_VALUES_FILE):
            if await self._blocking((folder / name).exists):
                return True
        return await self._last_step(attempt) is not None

    async def _last_step(self, attempt: int) -> int | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STEP_SECONDS):
                return await self._evidence.last_step(self._run, attempt)
        return None

    async def back_off(self, action: WaitBackoff) -> Event:
        """Wait before the next attempt."""
        await self._sleep(action.seconds)
        return TimerElapsed(name=action.name)

    async def classify(self, action: WaitAndClassify) -> Event:
        """Wait for the evidence on an exit, then ask for it."""
        await self._sleep(action.seconds)
        found = await self._evidence.exit_evidence(self._run, action.attempt, self._run_dir)
        return ExitClassified(
            attempt=action.attempt, failure_class=found.failure_class, evidence=found.reasons, step=found.step
        )

    def first_free_attempt(self) -> int:
        """Make the run directory; the lowest attempt number above all that it holds. Blocks on the disk."""
        (self._run_dir / ATTEMPTS).mkdir(parents=True, exist_ok=True)
        return max(self._attempts(), default=-1) + 1

    def _attempts(self) -> list[int]:
        return sorted(int(path.name) for path in (self._run_dir / ATTEMPTS).iterdir() if path.name.isdecimal())

    def _prepare(self, attempt: int) -> None:
        attempt_folder(self._run_dir, attempt).mkdir(parents=True, exist_ok=True)
