"""An actuator without processes, for tests and simulations: attempts are entries in a table.

It keeps the protocol's promises (the contract suite runs on it), outlives the engine that uses it as a machine
outlives the webhook, and refuses what must never happen: a second living attempt of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fusewire_webhook.actuators import Gone, Handle, Launch, Status
from fusewire_webhook.errors import ActuatorError


@dataclass(kw_only=True)
class FakeProcess:
    """One attempt as the fake machine sees it."""

    launch: Launch
    status: Status = field(default_factory=lambda: Status(phase="running"))
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        """It has not exited."""
        return self.status.phase != "exited"


class FakeActuator:
    """A machine whose trainers a test starts, ends and makes stubborn.

    Args:
        on_start: called with each new process; may write files as a trainer would.
        stop_seconds: how long a stop takes.
        exit_on_stop: exit code of a process that is stopped.
    """

    def __init__(
        self,
        *,
        on_start: Callable[[FakeProcess], None] | None = None,
        stop_seconds: float = 0.0,
        exit_on_stop: int = 143,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.processes: dict[tuple[str, int], FakeProcess] = {}
        self.stops: list[tuple[str, int]] = []
        """Every call of :meth:`stop` that met a living process."""
        self.unstoppable: set[str] = set()
        """Runs whose processes no signal ends."""
        self.broken: dict[str, str] = {}
        """Runs that cannot be started, and why."""
        self.stop_seconds = stop_seconds
        self.on_start = on_start
        self._exit_on_stop = exit_on_stop
        self._sleep = sleep

    def alive(self, run: str) -> list[int]:
        """The living attempts of a run."""
        return [attempt for (name, attempt), process in self.processes.items() if name == run and process.alive]

    def exit(self, run: str, attempt: int, code: int | None, *, reason: str = "") -> None:
        """The attempt's process ends by itself."""
        process = self.processes[run, attempt]
        process.status = Status(phase="exited", exit_code=code, reason=reason)
        process.ended.set()

    async def start(self, launch: Launch) -> Handle:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        key = launch.run, launch.attempt
        if launch.run in self.broken:
            raise ActuatorError(self.broken[launch.run])
        if key not in self.processes:
            if others := self.alive(launch.run):
                raise AssertionError(f"attempt {launch.attempt} of {launch.run} starts while {others} lives")
            process = self.processes[key] = FakeProcess(launch=launch)
            if self.on_start is not None:
                self.on_start(process)
        return _handle(*key)

    async def status(self, handle: Handle) -> Status:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return self._process(handle).status

    async def wait(self, handle: Handle) -> Status:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        process = self._process(handle)
        await process.ended.wait()
        return process.status

    async def stop(
        self,
        handle: Handle,
        *,
        grace_seconds: float,  # noqa: ARG002 - the protocol's
        at_once: bool = False,  # noqa: ARG002 - the protocol's
    ) -> Gone:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        process = self._process(handle)
        if process.alive:
            key = process.launch.run, process.launch.attempt
            self.stops.append(key)
            await self._sleep(self.stop_seconds)
            if process.launch.run in self.unstoppable:
                return Gone(confirmed=False, gpu="held", reason="process 4711 is in uninterruptible sleep")
            if process.alive:
                self.exit(*key, self._exit_on_stop)
        return Gone(confirmed=True, exit_code=process.status.exit_code, gpu="none")

    async def find(self, run: str, attempt: int, run_dir: str) -> Handle | None:  # noqa: ARG002 - the protocol's
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return _handle(run, attempt) if (run, attempt) in self.processes else None

    async def close(self) -> None:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""

    def _process(self, handle: Handle) -> FakeProcess:
        try:
            return self.processes[handle["run"], handle["attempt"]]
        except KeyError as error:
            raise ActuatorError(f"handle {handle!r} is none of the fake actuator") from error


def _handle(run: str, attempt: int) -> Handle:
    return {"actuator": "fake", "run": run, "attempt": attempt}
