"""GPU memory of a stopped tree: released, none, held, or not to be known."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusewire_webhook.actuators.gpu import INITIAL_PID_NAMESPACE, NvmlGpuMemory
from fusewire_webhook.actuators.local import LocalActuator

from .programs import shell


class Driver:
    """Answers one question after the other; the last answer stays."""

    def __init__(self, *answers: frozenset[int] | None) -> None:
        self._answers = list(answers)

    def holders(self) -> frozenset[int] | None:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def stop(tmp_path: Path, driver: Any, **settings: float) -> tuple[bool, str, str]:
    actuator = LocalActuator(gpu=driver, kill_seconds=5.0, gpu_poll_seconds=0.01, **settings)
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    driver.root = handle["root"]["pid"]
    gone = await actuator.stop(handle, grace_seconds=30)
    await actuator.close()
    return gone.confirmed, gone.gpu, gone.reason


class HeldByRoot:
    """The root's memory is seen in the first ``times`` answers."""

    def __init__(self, times: int) -> None:
        self.root = 0
        self._left = times

    def holders(self) -> frozenset[int]:
        self._left -= 1
        return frozenset({self.root, 1}) if self._left >= 0 else frozenset({1})


async def test_released(tmp_path: Path) -> None:
    """Memory that was held before and is seen free afterwards is "released", however long the driver takes."""
    assert await stop(tmp_path, HeldByRoot(times=5)) == (True, "released", "")


async def test_none(tmp_path: Path) -> None:
    """A tree that never held GPU memory is "none"; other people's processes do not matter."""
    assert await stop(tmp_path, Driver(frozenset({1, 2}))) == (True, "none", "")


async def test_held(tmp_path: Path) -> None:
    """Memory that is not released within the bound cannot be confirmed."""
    confirmed, gpu, reason = await stop(tmp_path, HeldByRoot(times=10**9), gpu_release_seconds=0.1)
    assert (confirmed, gpu) == (False, "held")
    assert reason == "GPU memory of ended processes is still held"


@pytest.mark.parametrize("answers", [(None,), (frozenset({1}), None)])
async def test_refusal(tmp_path: Path, answers: Iterable[frozenset[int] | None]) -> None:
    """A driver that does not tell is "unknown" and no failure."""
    assert await stop(tmp_path, Driver(*answers)) == (True, "unknown", "")


async def test_a_driver_that_hangs(tmp_path: Path) -> None:
    """A driver call that never returns is "unknown" after the bound, and does not hold up the stop."""

    class Hanging:
        released = threading.Event()

        def holders(self) -> None:
            self.released.wait(60)

    driver = Hanging()
    answer = await stop(tmp_path, driver, gpu_release_seconds=0.1)
    driver.released.set()
    assert answer == (True, "unknown", "")


class NvmlError(Exception):
    pass


def nvml(compute: dict[int, list[int]], refuses: str = "") -> Any:
    """The functions of pynvml that are used, with these processes per device; ``refuses`` names one that fails."""

    def processes(device: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in compute[device]]

    def refuse(*_: object) -> None:
        raise NvmlError

    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(compute),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
    }
    return SimpleNamespace(NVMLError=NvmlError, **{**functions, **({refuses: refuse} if refuses else {})})


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in a PID namespace that is not the host's."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").write_text("")
    return tmp_path / "proc"


@pytest.mark.skipif(
    Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE, reason="runs in a PID namespace"
)
def test_every_device_is_asked() -> None:
    """The holders are those of all devices."""
    assert NvmlGpuMemory(nvml=nvml({0: [4, 5], 1: [6], 2: []})).holders() == {4, 5, 6}


def test_a_container_cannot_tell(proc: Path) -> None:
    """Within a PID namespace NVML's PIDs are other people's: with a GPU the answer is "unknown"."""
    assert NvmlGpuMemory(proc=proc, nvml=nvml({0: []})).holders() is None
    assert NvmlGpuMemory(proc=proc, nvml=nvml({})).holders() == frozenset()


@pytest.mark.parametrize(
    "refuses",
    ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetComputeRunningProcesses"],
)
def test_any_refusal_is_unknown(refuses: str) -> None:
    """A driver that refuses any question leaves the answer unknown."""
    assert NvmlGpuMemory(nvml=nvml({0: [4]}, refuses=refuses)).holders() is None
