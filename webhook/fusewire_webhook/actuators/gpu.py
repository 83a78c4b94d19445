"""Which processes hold GPU memory, as the driver tells it through NVML."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

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
