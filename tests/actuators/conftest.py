"""No test leaves a process behind, whatever went wrong in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from fusewire_webhook.actuators.keeper import ENVIRONMENT_MARK
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.actuators.tree import ProcessTable

from .programs import NoGpu


@pytest.fixture(autouse=True)
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Kill what a failed test has left running."""
    yield
    table = ProcessTable()
    for folder in tmp_path.glob("**/attempts/*"):
        for pid in table.marked(ENVIRONMENT_MARK, str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def blocking_calls() -> Iterator[None]:
    """A blocking call of the actuators on the event loop is an error."""
    detector = BlockBuster("fusewire_webhook")
    detector.activate()
    yield
    detector.deactivate()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of the actuator's business."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
async def actuator() -> AsyncIterator[LocalActuator]:
    actuator = LocalActuator(gpu=NoGpu(), kill_seconds=5.0)
    yield actuator
    await actuator.close()
    await asyncio.sleep(0)
