"""Which processes hold GPU memory, as the driver tells it through NVML."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the kernel's first PID namespace (``PROC_PID_INIT_INO``)."""


class GpuMemory(Protocol):
    """Tells who holds GPU memory. May block."""

    def holders(self) -> frozenset[int] | None:
        """PIDs that hold memory of any GPU; None: cannot be known here."""
        ...


class NvmlGpuMemory:
    """Asks NVML. No library, no driver, a device that refuses: all of that is "cannot be known", never an error.

    NVML names processes by the PIDs of the host. Inside a container these are not the PIDs that the container sees,
    so there the answer is "cannot be known" too.
    """

    def __init__(self, *, proc: Path = Path("/proc"), nvml: Any = None) -> None:
        """``nvml`` is the module ``pynvml`` or something with its functions."""
        self._proc = proc
        self._nvml = nvml

    def holders(self) -> frozenset[int] | None:
        """PIDs with a compute or graphics context on any GPU; None: NVML cannot tell."""
        nvml = self._load()
        if nvml is None:
            return None
        try:
            nvml.nvmlInit()
            try:
                return self._ask(nvml)
            finally:
                nvml.nvmlShutdown()
        except nvml.NVMLError:
            return None

    def _ask(self, nvml: Any) -> frozenset[int] | None:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if devices and (self._proc / "self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE:
            return None
        pids: set[int] = set()
        for device in devices:
            pids.update(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device))
            pids.update(process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(device))
        return frozenset(pids)

    def _load(self) -> Any:
        if self._nvml is None:
            try:
                import pynvml  # noqa: PLC0415 (loaded only where a stop needs it)
            except ImportError:
                return None
            self._nvml = pynvml
        return self._nvml


async def bounded(call: Callable[[], T], seconds: float) -> T | None:
    """What ``call`` returns, from a thread of its own; None where it takes longer (a driver that hangs).

    A thread that hangs is left behind as a daemon: it must hold up neither the event loop nor its end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(set_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            set_answer(value)

    def work() -> None:
        set_answer: Callable[[Any], None] = answer.set_result
        try:
            value: Any = call()
        except Exception as error:
            set_answer, value = answer.set_exception, error
        try:
            loop.call_soon_threadsafe(deliver, set_answer, value)
        except RuntimeError:  # the loop ended before the driver answered
            return

    threading.Thread(target=work, name="fusewire-gpu", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        return None
