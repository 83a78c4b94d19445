"""Small commands with a known behaviour, and ways to see what became of them."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.tree import Process, ProcessTable


class NoGpu:
    """A machine whose driver answers and on which nobody holds GPU memory."""

    def holders(self) -> frozenset[int]:
        return frozenset()


def launch(tmp_path: Path, *argv: str, attempt: int = 0, **environment: str) -> Launch:
    return Launch(run="r", attempt=attempt, argv=argv, environment=environment, run_dir=str(tmp_path / "r"))


def shell(tmp_path: Path, script: str, attempt: int = 0) -> Launch:
    """A shell script that finds the folder ``$T``."""
    return launch(tmp_path, "sh", "-c", script, attempt=attempt, T=str(tmp_path))


def python(tmp_path: Path, script: str, attempt: int = 0) -> Launch:
    """A Python script that finds the folder ``T`` in its environment; it imports no site packages."""
    return launch(tmp_path, sys.executable, "-I", "-S", "-c", script, attempt=attempt, T=str(tmp_path))


async def appears(path: Path, seconds: float = 60.0) -> str:
    """The content of a file, once it has one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await asyncio.to_thread(path.exists):
            text = await asyncio.to_thread(path.read_text)
            if text:
                return text
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


async def look(pid: int) -> Process | None:
    """Who has this PID now."""
    return await asyncio.to_thread(ProcessTable().look, pid)


async def alive(pid: int) -> bool:
    """Is there a process with this PID that has not ended?"""
    found = await look(pid)
    return found is not None and not found.ended


async def ends(pid: int, seconds: float = 30.0) -> bool:
    """Does it end within this time?"""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not await alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


async def is_reaped(pid: int, seconds: float = 30.0) -> bool:
    """Does even its zombie go within this time?"""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await look(pid) is None:
            return True
        await asyncio.sleep(0.01)
    return False
