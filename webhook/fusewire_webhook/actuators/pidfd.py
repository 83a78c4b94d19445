"""Awaiting processes on the event loop, through pidfds."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

from fusewire_webhook.actuators.tree import ProcessId, ProcessTable


async def until_ended(
    table: ProcessTable, processes: Sequence[ProcessId], seconds: float | None = None, *, executor: Executor
) -> bool:
    """Wait until every one of these processes has ended; False: ``seconds`` passed first.

    ``executor`` is where the process table is read.
    """
    fds = await _open(table, processes, executor)
    try:
        async with asyncio.timeout(seconds):
            for fd in fds:
                await readable(fd)
    except TimeoutError:
        return False
    finally:
        _close(fds)
    return True


async def _open(table: ProcessTable, processes: Sequence[ProcessId], executor: Executor) -> list[int]:
    """pidfds of those of the processes that were not reaped; a cancelled caller leaves none open."""

    def open_all() -> list[int]:
        return [fd for process in processes if (fd := table.open(process)) is not None]

    opening = asyncio.get_running_loop().run_in_executor(executor, open_all)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda opened: _close(opened.result()))
        raise


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


async def readable(fd: int) -> None:
    """Wait until ``fd`` can be read; a pidfd can once its process has ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return once one of these waits has ended; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Reaper:
    """Reaps children that were started behind asyncio's back."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, asyncio.AbstractEventLoop]] = {}

    def adopt(self, pid: int) -> None:
        """Reap this child when it ends."""
        loop = asyncio.get_running_loop()
        fd = os.pidfd_open(pid)
        self._waiting[fd] = (pid, loop)
        loop.add_reader(fd, self._reap, fd)

    def close(self) -> None:
        """Reap what has ended and forget the rest: init inherits it when this process ends."""
        for fd in list(self._waiting):
            self._reap(fd)

    def _reap(self, fd: int) -> None:
        pid, loop = self._waiting.pop(fd)
        loop.remove_reader(fd)
        os.close(fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
