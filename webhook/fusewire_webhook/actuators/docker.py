"""The trainer as a container that the webhook creates, watches and stops through the Docker Engine API.

The engine outlives the webhook and keeps the exit status, so no keeper is needed. What identifies an attempt is
its container's name together with a mark that stands both in a label and in ``attempts/NNN/docker.json``: written
before the container is created, so that a webhook that was killed at any point finds exactly what it had begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from fusewire_webhook.actuators import Gone, Handle, Launch, Status
from fusewire_webhook.actuators.attempt_files import (
    MARK_SECONDS,
    Exit,
    attempt_folder,
    log_file,
    mark_stop,
    stop_marked,
)
from fusewire_webhook.actuators.docker_api import EngineApi, EngineError
from fusewire_webhook.actuators.docker_files import Contained, keep, moment
from fusewire_webhook.actuators.docker_spec import (
    ATTEMPT_LABEL,
    FOLDER_LABEL,
    RUN_LABEL,
    START_LABEL,
    candidates,
    container,
    container_name,
)
from fusewire_webhook.actuators.threads import alone, bounded
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import DockerConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Between two questions where the engine's answer to a wait was no end."""
FOLDER_SECONDS = 5.0
"""How long the end of a container waits for its run's folder, which may lie on a file system that hangs."""
_ENDED = {"exited", "dead", "removing"}
_NOT_RUNNING = {*_ENDED, "created"}


@dataclass(frozen=True, kw_only=True)
class _Stopping:
    """The stops of one attempt, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    grace_over: asyncio.Event = field(default_factory=asyncio.Event)


class DockerActuator:
    """Runs attempts as containers.

    Args:
        runs: the ``docker:`` section of each run.
        kill_seconds: after SIGKILL, until the container must be gone.
        away_seconds: how long everything but :meth:`status` waits for an engine, or a proxy, that restarts.
    """

    def __init__(
        self, runs: Mapping[str, DockerConfig], *, kill_seconds: float = 10.0, away_seconds: float = 60.0
    ) -> None:
        self._runs = dict(runs)
        self._kill_seconds = kill_seconds
        self._away_seconds = away_seconds
        self._engines: dict[str, EngineApi] = {}
        self._starting: dict[Path, asyncio.Lock] = {}
        self._stopping: dict[Path, _Stopping] = {}

    async def start(self, launch: Launch) -> Handle:
        """Start the attempt, or adopt it where this very attempt was started already.

        Raises:
            ActuatorError: no such image or command, the engine does not answer, or the name is another's.
        """
        folder = await alone(attempt_folder, launch.run_dir, launch.attempt)
        async with self._starting.setdefault(folder, asyncio.Lock()):
            try:
                return (await self._patiently(lambda: self._start(launch, folder))).handle()
            except OSError as error:
                raise ActuatorError(f"{folder}: cannot be written: {error.strerror}") from error

    async def find(self, run: str, attempt: int, run_dir: str) -> Handle | None:
        """The handle of an attempt that was started; None: its command never ran."""
        del run  # the run directory is the run's own
        kept = await alone(lambda: Contained.read(attempt_folder(run_dir, attempt)))
        if kept is None:
            return None
        if not kept.id:
            begun = kept
            inspected = await self._patiently(lambda: self._inspect(begun))
            if inspected is None or inspected["State"]["Status"] == "created":
                return None
            kept = await self._known(kept, inspected["Id"])
        return kept.handle()

    async def status(self, handle: Handle) -> Status:
        """``starting``, ``running`` or ``exited``; the code is None where the container was removed by others."""
        kept = Contained.from_handle(handle)
        found = await self._look(kept)
        if isinstance(found, Exit):
            return await self._exited(kept, found)
        return Status(phase="starting" if found == "created" else "running")

    async def wait(self, handle: Handle) -> Status:
        """Return once the container has ended.

        Raises:
            ActuatorError: the engine has not answered for a while.
        """
        kept = Contained.from_handle(handle)
        return await self._exited(kept, await self._ended(kept))

    async def stop(self, handle: Handle, *, grace_seconds: float, at_once: bool = False) -> Gone:
        """SIGTERM, grace, SIGKILL; with the container's first process everything in it ends.

        Calls at the same time are one stop, with the shortest grace of all, none with ``at_once``. Whether GPU
        memory is free cannot be seen through the engine: with GPUs the answer is ``unknown``.
        """
        kept = Contained.from_handle(handle)
        stopping = self._stopping.setdefault(kept.folder, _Stopping())
        timer = asyncio.get_running_loop().call_later(0.0 if at_once else grace_seconds, stopping.grace_over.set)
        try:
            async with stopping.lock:
                return await self._patiently(lambda: self._stop(kept, stopping.grace_over))
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Let go of resources; containers run on."""
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            await engine.close()

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it, again and again while the engine is away: for what may be repeated at any point of it."""
        deadline = time.monotonic() + self._away_seconds
        while True:
            try:
                return await act()
            except EngineError as error:
                if not error.away or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def _start(self, launch: Launch, folder: Path) -> Contained:
        try:
            docker = self._runs[launch.run]
        except KeyError:
            raise ActuatorError(f"run {launch.run} has no docker section") from None
        engine = self._engine_at(docker.endpoint)
        # 1. the mark is durable before anything that bears it exists
        kept = await alone(Contained.read, folder)
        if kept is None:
            kept = Contained(
                folder=folder,
                run=launch.run,
                name=container_name(launch.run, launch.attempt),
                start=secrets.token_hex(8),
                endpoint=docker.endpoint,
                output=str(await alone(log_file, launch)),
            )
            await alone(kept.write)
        # 2. the container, unless it is there
        inspected = await self._inspect(kept)
        if inspected is None and kept.id:
            return kept  # it ran, and somebody has removed it
        if inspected is None:
            await self._clear_away(engine, launch)
            try:
                inspected = await self._created(engine, kept, launch, docker)
            except EngineError as error:
                if error.away:
                    raise
                await self._never_started(engine, kept)
                raise _not_started(launch, _remedy(error, docker)) from error
        # 3. start it, unless it was
        if inspected["State"]["Status"] == "created":
            try:
                await self._check_command(engine, kept.name, inspected, launch, docker)
                await engine.start(kept.name)
            except ActuatorError as error:
                if isinstance(error, EngineError) and error.away:
                    raise
                await self._never_started(engine, kept)
                raise _not_started(launch, str(error)) from error
        return await self._known(kept, inspected["Id"])

    async def _created(
        self, engine: EngineApi, kept: Contained, launch: Launch, docker: DockerConfig
    ) -> dict[str, Any]:
        await engine.create(kept.name, container(launch, docker, start=kept.start))
        inspected = await self._inspect(kept)
        if inspected is None:
            raise EngineError(f"container {kept.name} vanished as soon as it was created")
        return inspected

    async def _check_command(
        self, engine: EngineApi, name: str, inspected: dict[str, Any], launch: Launch, docker: DockerConfig
    ) -> None:
        """An init at PID 1 starts whether or not the command exists, so look before."""
        for path in candidates(launch.argv[0], inspected):
            if await engine.executable(name, path):
                return
        raise ActuatorError(f"image {docker.image} has no command {launch.argv[0]}")

    async def _clear_away(self, engine: EngineApi, launch: Launch) -> None:
        """Remove the containers of the run's other attempts, which have ended: what they leave is in its directory.

        Raises:
            ActuatorError: one of them runs, or one of this name that is another's.
        """
        for old in await engine.labelled(RUN_LABEL, launch.run):
            labels = old["Labels"]
            attempt = int(labels[ATTEMPT_LABEL])
            if labels[FOLDER_LABEL] != launch.run_dir or attempt == launch.attempt:
                continue
            if old["State"] not in _NOT_RUNNING:
                raise _not_started(launch, f"attempt {attempt} still runs in {container_name(launch.run, attempt)}")
            await engine.remove(container_name(launch.run, attempt))
        name = container_name(launch.run, launch.attempt)
        same_name = await engine.inspect(name)
        if same_name is None:
            return
        if same_name["State"]["Status"] not in _NOT_RUNNING:
            raise _not_started(
                launch, f"a container {name} runs that is not of {launch.run_dir}; stop it, or rename the run"
            )
        await engine.remove(name)

    async def _never_started(self, engine: EngineApi, kept: Contained) -> None:
        inspected = await self._inspect(kept)
        if inspected is not None:
            with contextlib.suppress(EngineError):
                await engine.remove(kept.name)
        await alone(kept.forget)

    async def _inspect(self, kept: Contained) -> dict[str, Any] | None:
        """The attempt's own container, by name: that is how the socket proxy knows what is ours."""
        inspected = await self._engine(kept).inspect(kept.name)
        if inspected is None or inspected["Config"]["Labels"].get(START_LABEL) != kept.start:
            return None
        return inspected

    async def _known(self, kept: Contained, identifier: str) -> Contained:
        if kept.id == identifier:
            return kept
        known = Contained.from_handle(kept.handle() | {"id": identifier})
        await alone(known.write)
        return known

    async def _stop(self, kept: Contained, grace_over: asyncio.Event) -> Gone:
        engine = self._engine(kept)
        inspected = await self._inspect(kept)
        gpus = inspected is not None and bool(inspected["HostConfig"].get("DeviceRequests"))
        gpu: Literal["unknown", "none"] = "unknown" if gpus else "none"
        found = await self._exit(kept, inspected)
        if isinstance(found, Exit):
            return Gone(confirmed=True, exit_code=found.code, gpu=gpu)
        # 1. SIGTERM, grace
        await bounded(MARK_SECONDS, mark_stop, kept.folder)
        await engine.kill(kept.name, "SIGTERM")
        ended = await _within(self._ended(kept), grace_over.wait())
        # 2. SIGKILL
        if not ended:
            await engine.kill(kept.name, "SIGKILL")
            await _within(self._ended(kept), asyncio.sleep(self._kill_seconds))
        # 3. see that it is gone
        found = await self._look(kept)
        if isinstance(found, Exit):
            return Gone(confirmed=True, exit_code=found.code, killed=0 if ended else 1, gpu=gpu)
        reason = f"container {kept.name} is {found} after SIGKILL"
        return Gone(confirmed=False, killed=1, gpu=gpu, reason=reason)

    async def _ended(self, kept: Contained) -> Exit:
        pause = 0.0
        while not isinstance(found := await self._patiently(lambda: self._look(kept)), Exit):
            await asyncio.sleep(pause)
            with contextlib.suppress(EngineError):  # a long wait may be cut off; the next look tells
                await self._engine(kept).wait(kept.name)
            pause = PAUSE_SECONDS
        return found

    async def _look(self, kept: Contained) -> Exit | str:
        """How it ended, else the container's state."""
        return await self._exit(kept, await self._inspect(kept))

    @staticmethod
    async def _exited(kept: Contained, found: Exit) -> Status:
        asked = await alone(stop_marked, kept.folder)
        return Status(phase="exited", exit_code=found.code, reason=found.reason(asked=asked))

    async def _exit(self, kept: Contained, inspected: dict[str, Any] | None) -> Exit | str:
        """How it ended, which is kept in the run directory together with its output; else the container's state."""
        if inspected is not None and inspected["State"]["Status"] not in _ENDED:
            return str(inspected["State"]["Status"])
        found = await bounded(FOLDER_SECONDS, Exit.read, kept.folder)
        if found is not None or inspected is None:
            return found or Exit(code=None)
        state = inspected["State"]
        ended = Exit(code=int(state["ExitCode"]), oom_kills=int(bool(state.get("OOMKilled"))))
        try:
            output = await self._engine(kept).output(kept.name)
            await bounded(FOLDER_SECONDS, keep, kept, ended, output, at=moment(state.get("FinishedAt")))
        except (EngineError, OSError) as error:  # the engine still has both
            log.warning("%s: output and exit status are not kept (%s)", kept.folder, error)
        return ended

    def _engine(self, kept: Contained) -> EngineApi:
        """The engine as it is reached today: its address may have changed since the attempt was started."""
        docker = self._runs.get(kept.run)
        return self._engine_at(kept.endpoint if docker is None else docker.endpoint)

    def _engine_at(self, endpoint: str) -> EngineApi:
        return self._engines.setdefault(endpoint, EngineApi(endpoint))


async def _within(awaited: Awaitable[object], end: Awaitable[object]) -> bool:
    """Whether ``awaited`` came before ``end``.

    Raises:
        ActuatorError: ``awaited`` did.
    """
    work, bound = asyncio.ensure_future(awaited), asyncio.ensure_future(end)
    try:
        await asyncio.wait({work, bound}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        return work.done()
    finally:
        work.cancel()
        bound.cancel()
        await asyncio.gather(work, bound, return_exceptions=True)


def _remedy(error: EngineError, docker: DockerConfig) -> str:
    if error.status == 404 and "image" in str(error).lower():
        return f"{error}; build or pull {docker.image} on the Docker host first"
    return str(error)


def _not_started(launch: Launch, failure: str) -> ActuatorError:
    return ActuatorError(f"container of {launch.run} attempt {launch.attempt} cannot be started: {failure}")
