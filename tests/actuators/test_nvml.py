"""The real pynvml on a fake driver: what a stop says about GPU memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

import nvml_fake
from fusewire_webhook.actuators.gpu import INITIAL_PID_NAMESPACE
from nvml_fake import DRIVER_NOT_LOADED, GIB, LOST, Control, Gpu, Process

from .programs import ends

pytestmark = pytest.mark.skipif(
    Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE, reason="runs in a PID namespace"
)

STOPPER = """
import asyncio, json, sys
from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.local import LocalActuator

async def main():
    actuator = LocalActuator(gpu_release_seconds=float(sys.argv[2]), gpu_poll_seconds=0.01)
    launch = Launch(run="r", attempt=0, argv=("sleep", "600"), environment={}, run_dir=sys.argv[1])
    handle = await actuator.start(launch)
    print(handle["root"]["pid"], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    gone = await actuator.stop(handle, grace_seconds=30)
    print(json.dumps([gone.confirmed, gone.gpu]), flush=True)
    await actuator.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_fake.build(tmp_path_factory.mktemp("nvml"))


class Stopper:
    """A process that starts an attempt, and stops it when told, under the fake driver."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.control = Control(folder / "gpus")
        self._folder = folder
        self._library = library

    async def start(self, bound: float = 30.0) -> int:
        """PID of the attempt's root."""
        environment = os.environ | nvml_fake.environment(self._library, self.control)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STOPPER, str(self._folder / "r"), str(bound), env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return int(await self._line())

    async def stop(self) -> tuple[bool, str]:
        """Stop the attempt: confirmed? and what became of its GPU memory."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        confirmed, gpu = json.loads(await self._line())
        assert await asyncio.wait_for(self._process.wait(), 30) == 0
        return confirmed, gpu

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        return await asyncio.wait_for(self._process.stdout.readline(), 60)


@pytest.fixture
def stopper(tmp_path: Path, library: Path) -> Stopper:
    return Stopper(tmp_path, library)


async def test_memory_is_released(stopper: Stopper) -> None:
    """The stop waits until the driver no longer lists the trainer on any GPU."""
    stopper.control.write(gpus=[Gpu(), Gpu()])
    root = await stopper.start()
    stranger = Process(gpu=0, pid=1, used=GIB)
    stopper.control.write(gpus=[Gpu(), Gpu()], processes=[stranger, Process(gpu=1, pid=root, used=GIB)])
    stopping = asyncio.create_task(stopper.stop())
    assert await ends(root)
    await asyncio.sleep(1.0)
    assert not stopping.done()
    stopper.control.write(gpus=[Gpu(), Gpu()], processes=[stranger])
    assert await stopping == (True, "released")


async def test_memory_is_held(stopper: Stopper) -> None:
    """A driver that lists the ended trainer beyond the bound leaves the stop unconfirmed."""
    stopper.control.write(gpus=[Gpu()])
    root = await stopper.start(bound=0.2)
    stopper.control.write(gpus=[Gpu()], processes=[Process(gpu=0, pid=root, used=GIB)])
    assert await stopper.stop() == (False, "held")


async def test_no_gpu_was_used(stopper: Stopper) -> None:
    """A trainer that no GPU lists has nothing to release."""
    stopper.control.write(gpus=[Gpu()], processes=[Process(gpu=0, pid=1, used=GIB)])
    await stopper.start()
    assert await stopper.stop() == (True, "none")


async def test_no_driver(stopper: Stopper) -> None:
    """Without a loaded driver the answer is unknown, and the stop is confirmed."""
    stopper.control.write(gpus=[Gpu()], init=DRIVER_NOT_LOADED)
    await stopper.start()
    assert await stopper.stop() == (True, "unknown")


async def test_a_lost_gpu(stopper: Stopper) -> None:
    """A GPU that has fallen off the bus refuses to tell: unknown, and the stop is confirmed."""
    stopper.control.write(gpus=[Gpu(), Gpu(fail=LOST)])
    await stopper.start()
    assert await stopper.stop() == (True, "unknown")
