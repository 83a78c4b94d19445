"""The trainer as a process tree on this machine, started by a keeper that outlives the webhook.

Nothing here waits by polling: processes are awaited through pidfds. All file work happens in threads: the process
table, which answers at once, in a few of this actuator's own; a run's folder, which may lie on a file system that
hangs, in one thread per question. A stop waits for a folder within bounds only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from fusewire_webhook.actuators import Gone, Handle, Launch, Status
from fusewire_webhook.actuators.attempt_files import (
    MARK_SECONDS,
    Exit,
    KeptAttempt,
    attempt_folder,
    lives,
    mark_stop,
    stop_marked,
)
from fusewire_webhook.actuators.gpu import GpuMemory, NvmlGpuMemory
from fusewire_webhook.actuators.keeper import ENVIRONMENT_MARK
from fusewire_webhook.actuators.pidfd import Reaper, first_of, until_ended
from fusewire_webhook.actuators.spawn import spawn_keeper
from fusewire_webhook.actuators.threads import alone, bounded
from fusewire_webhook.actuators.tree import Process, ProcessId, ProcessTable, descendants
from fusewire_webhook.errors import ActuatorError

EXIT_FILE_SECONDS = 5.0
"""How long a keeper may take from the end of the root process to the exit file on the disk."""
ELSEWHERE_SECONDS = 1.0
"""Between two looks at an attempt that runs in another PID namespace, where no pidfd reaches."""
STOP_MARGIN_SECONDS = 60.0
"""What a stop may take beyond its own bounds (a machine under load) before it is given up as not confirmed."""
PROCESS_THREADS = 8

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Stopping:
    """The stops of one attempt, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    grace_over: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody does not even wait for what SIGTERM does to the rest of the tree."""


class LocalActuator:
    """Runs attempts as process trees of this machine."""

    def __init__(
        self,
        *,
        gpu: GpuMemory | None = None,
        kill_seconds: float = 10.0,
        gpu_release_seconds: float = 30.0,
        gpu_poll_seconds: float = 0.25,
        start_seconds: float = 30.0,
        stop_margin_seconds: float = STOP_MARGIN_SECONDS,
        proc: Path = Path("/proc"),
    ) -> None:
        """Args:
        gpu: tells who holds GPU memory; None: NVML.
        kill_seconds: between SIGTERM to the tree and SIGKILL, and again until everything must be gone.
        gpu_release_seconds: bound on waiting for the tree's GPU memory.
        gpu_poll_seconds: between two questions to NVML in that time.
        start_seconds: bound on the keeper's answer.
        stop_margin_seconds: what a whole stop may take beyond grace and these bounds.
        proc: the process table.
        """
        self._table = ProcessTable(proc)
        self._gpu: GpuMemory = NvmlGpuMemory(proc=proc) if gpu is None else gpu
        self._kill_seconds = kill_seconds
        self._gpu_release_seconds = gpu_release_seconds
        self._gpu_poll_seconds = gpu_poll_seconds
        self._start_seconds = start_seconds
        self._stop_margin_seconds = stop_margin_seconds
        self._stopping: dict[Path, _Stopping] = {}
        self._reaper = Reaper()
        self._threads = ThreadPoolExecutor(PROCESS_THREADS, thread_name_prefix="fusewire-processes")

    async def start(self, launch: Launch) -> Handle:
        """Start the attempt, or adopt it where this very attempt was started already.

        Raises:
            ActuatorError: the command cannot be executed, or the run directory cannot be written.
        """
        kept = await asyncio.to_thread(self._read, launch.run_dir, launch.attempt)
        if kept is None:
            spawned = await asyncio.to_thread(spawn_keeper, launch, seconds=self._start_seconds)
            self._reaper.adopt(spawned.pid)
            if spawned.state == "failed":
                raise _not_started(launch, spawned.error)
            kept = await asyncio.to_thread(self._read, launch.run_dir, launch.attempt)
        if kept is None:
            raise _not_started(launch, "the keeper's file is gone; leave the run directory alone")
        failure = await asyncio.to_thread(self._start_failure, kept)
        if failure:
            raise _not_started(launch, failure)
        return kept.handle()

    async def find(self, run: str, attempt: int, run_dir: str) -> Handle | None:
        """The handle of an attempt that was started; None: its command never ran."""
        del run  # the run directory is the run's own
        kept = await alone(self._read, run_dir, attempt)
        if kept is None:
            return None
        failure = await alone(self._start_failure, kept)
        return None if failure else kept.handle()

    async def status(self, handle: Handle) -> Status:
        """``running`` or ``exited``; the code is None where the keeper was killed before its trainer ended."""
        return await alone(self._status, KeptAttempt.from_handle(handle))

    async def wait(self, handle: Handle) -> Status:
        """Return once the root process has exited (descendants may live on)."""
        kept = KeptAttempt.from_handle(handle)
        while True:
            status = await alone(self._status, kept)
            if status.phase == "exited" and status.seconds is not None:
                return status
            where = await alone(self._whereabouts, kept)
            if status.phase == "exited" and where != "here":
                return status
            if where == "elsewhere":
                await asyncio.sleep(ELSEWHERE_SECONDS)
                continue
            await self._until_ended([kept.root])
            found = await self._exit(kept)
            return self._exited(found, asked=await alone(stop_marked, kept.folder))

    async def stop(self, handle: Handle, *, grace_seconds: float, at_once: bool = False) -> Gone:
        """End the whole tree, as docs/architecture.md §5 says; takes at most grace + 2 × kill + GPU seconds.

        Calls at the same time are one stop, with the shortest grace of all; ``at_once`` leaves out the waits before
        SIGKILL. ``confirmed=False`` names what is left, or says that the stop hangs: it is given up
        ``stop_margin_seconds`` after these bounds.
        """
        kept = KeptAttempt.from_handle(handle)
        stopping = self._stopping.setdefault(kept.folder, _Stopping())
        timer = asyncio.get_running_loop().call_later(grace_seconds, stopping.grace_over.set)
        if at_once:
            stopping.grace_over.set()
            stopping.kill.set()
        try:
            async with stopping.lock:
                return await self._within_bounds(kept, stopping, grace_seconds)
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Let go of resources; attempts run on."""
        self._reaper.close()
        self._threads.shutdown(wait=False)

    async def _within_bounds(self, kept: KeptAttempt, stopping: _Stopping, grace_seconds: float) -> Gone:
        seconds = grace_seconds + 2 * self._kill_seconds + self._gpu_release_seconds + self._stop_margin_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._stop(kept, stopping)
        except TimeoutError:
            return Gone(confirmed=False, reason=f"the stop of {kept.folder} did not end within {seconds:g} s")

    async def _stop(self, kept: KeptAttempt, stopping: _Stopping) -> Gone:
        where = await alone(self._whereabouts, kept)
        if where == "elsewhere":
            return Gone(
                confirmed=False,
                reason=f"{kept.folder} runs in another PID namespace (container); stop it there",
            )
        if where == "gone":
            found = await bounded(EXIT_FILE_SECONDS, Exit.read, kept.folder)
            return Gone(confirmed=True, exit_code=found.code if found else None)
        killed: set[ProcessId] = set()
        # 1. SIGTERM to the root at once; then see who belongs to it; grace
        root_runs = await self._quick(self._table.runs, kept.root)
        if root_runs:
            await bounded(MARK_SECONDS, mark_stop, kept.folder)
            await self._signal([kept.root], signal.SIGTERM)
        tree = await self._quick(self._members, kept)
        pids = {kept.root.pid, *(process.id.pid for process in tree)}
        before = asyncio.create_task(self._gpu_holders(set(pids)))
        if root_runs:
            await first_of(self._until_ended([kept.root]), stopping.grace_over.wait())
            tree = await self._quick(self._members, kept)
        # 2. SIGTERM to what is left of the tree
        if tree:
            pids.update(process.id.pid for process in tree)
            ids = [process.id for process in tree]
            await self._signal(ids, signal.SIGTERM)
            await first_of(self._until_ended(ids, self._kill_seconds), stopping.kill.wait())
        # 3. SIGKILL, and whatever was forked meanwhile, until nothing is left
        deadline = time.monotonic() + self._kill_seconds
        while left := await self._quick(self._members, kept):
            if time.monotonic() > deadline:
                break
            ids = [process.id for process in left]
            pids.update(process.pid for process in ids)
            killed.update(ids)
            await self._signal(ids, signal.SIGKILL)
            if not await self._until_ended(ids, min(1.0, self._kill_seconds)):
                await asyncio.sleep(0.05)
        if not left:
            # 4. a keeper that runs has no descendant left when it ends: the kernel's own word for "all gone"
            await self._signal([kept.keeper], signal.SIGCONT)
            await self._until_ended([kept.keeper], EXIT_FILE_SECONDS)
            left = await self._quick(self._members, kept)
        code = (await self._exit(kept)).code
        if left:
            names = ", ".join(str(process) for process in left[:5])
            before.cancel()
            reason = f"{len(left)} processes did not end after SIGKILL: {names}"
            return Gone(confirmed=False, exit_code=code, killed=len(killed), reason=reason)
        # 5. its GPU memory
        gpu = await self._gpu_released(pids, bool(await before))
        return Gone(
            confirmed=gpu != "held",
            exit_code=code,
            killed=len(killed),
            gpu=gpu,
            reason="GPU memory of ended processes is still held" if gpu == "held" else "",
        )

    async def _signal(self, processes: Sequence[ProcessId], number: signal.Signals) -> None:
        def send() -> None:
            for process in processes:
                with contextlib.suppress(PermissionError):  # shows as a process that did not end
                    self._table.send(process, number)

        await self._quick(send)

    async def _gpu_holders(self, pids: set[int]) -> bool | None:
        holders = await bounded(max(1.0, self._gpu_release_seconds), self._gpu.holders)
        return None if holders is None else not pids.isdisjoint(holders)

    async def _gpu_released(self, pids: set[int], seen: bool) -> Literal["released", "none", "unknown", "held"]:
        deadline = time.monotonic() + self._gpu_release_seconds
        while True:
            held = await self._gpu_holders(pids)
            if held is None:
                return "unknown"
            if not held:
                return "released" if seen else "none"
            seen = True
            if time.monotonic() > deadline:
                return "held"
            await asyncio.sleep(self._gpu_poll_seconds)

    async def _exit(self, kept: KeptAttempt) -> Exit:
        """How the root ended, once it has: from the exit file, which the keeper writes within milliseconds."""
        deadline = time.monotonic() + EXIT_FILE_SECONDS
        while True:
            found = await bounded(max(0.0, deadline - time.monotonic()), Exit.read, kept.folder)
            if found is not None:
                return found
            keeper_runs = await self._quick(self._table.runs, kept.keeper)
            if not keeper_runs or time.monotonic() > deadline:
                return await bounded(1.0, self._exit_without_keeper, kept) or Exit(code=None)
            await asyncio.sleep(0.01)

    async def _quick(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call that only reads the process table, or signals."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))

    def _until_ended(
        self, processes: Sequence[ProcessId], seconds: float | None = None
    ) -> Coroutine[Any, Any, bool]:
        return until_ended(self._table, processes, seconds, executor=self._threads)

    # Blocking, for threads -------------------------------------------------------------------------------

    def _status(self, kept: KeptAttempt) -> Status:
        asked = stop_marked(kept.folder)
        found = Exit.read(kept.folder)
        if found is not None:
            return self._exited(found, asked=asked)
        where = self._whereabouts(kept)
        if where == "gone":
            return self._exited(Exit.read(kept.folder) or Exit(code=None), asked=asked)
        if where == "elsewhere":
            return Status(phase="running")
        root = self._table.find(kept.root)
        if root is not None and not (root.ended and (root.wait_status or not self._table.runs(kept.keeper))):
            return Status(phase="running")
        return self._exited(self._exit_without_keeper(kept), asked=asked)

    def _exit_without_keeper(self, kept: KeptAttempt) -> Exit:
        root = self._table.find(kept.root)
        if root is not None and root.ended and root.wait_status:
            return Exit.from_wait_status(root.wait_status)
        return Exit.read(kept.folder) or Exit(code=None)

    def _whereabouts(self, kept: KeptAttempt) -> Literal["here", "elsewhere", "gone"]:
        """Can its PIDs be looked up here? After a boot they are gone, in another PID namespace they mean others."""
        if kept.boot != self._table.boot_id():
            return "gone"
        if kept.pid_namespace == self._table.pid_namespace():
            return "here"
        return "elsewhere" if lives(kept.folder) else "gone"

    def _members(self, kept: KeptAttempt) -> list[Process]:
        """Every process of the attempt that has not ended, the keeper excepted."""
        table = self._table.scan()
        here = [process for process in (table.get(kept.keeper.pid), table.get(kept.root.pid)) if process]
        ancestors = [process.id.pid for process in here if process.id in {kept.keeper, kept.root}]
        keeper = table.get(kept.keeper.pid)
        if keeper is None or keeper.id != kept.keeper or keeper.ended:
            # Orphans of a killed keeper are init's children: their environment still tells whose they are.
            marked = self._table.marked(ENVIRONMENT_MARK, str(kept.folder)) - {os.getpid()}
            ancestors += sorted(marked & table.keys() - set(ancestors))
        found = {process.id: process for process in descendants(table, ancestors)}
        found.update((table[pid].id, table[pid]) for pid in ancestors)
        found.pop(kept.keeper, None)
        return [process for process in found.values() if not process.ended]

    @staticmethod
    def _read(run_dir: str, attempt: int) -> KeptAttempt | None:
        return KeptAttempt.read(attempt_folder(run_dir, attempt))

    @staticmethod
    def _start_failure(kept: KeptAttempt) -> str:
        found = Exit.read(kept.folder)
        return found.error if found is not None else ""

    @staticmethod
    def _exited(found: Exit, *, asked: bool) -> Status:
        reason = found.reason(asked=asked)
        return Status(phase="exited", exit_code=found.code, reason=reason, seconds=found.seconds)


def _not_started(launch: Launch, failure: str) -> ActuatorError:
    return ActuatorError(f"command of {launch.run} attempt {launch.attempt} cannot be started: {failure}")
