"""GPUs through NVML. Calls can be slow: a background thread makes them, and a scrape shows what came last."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from prometheus_client import core
from prometheus_client.registry import Collector

from fusewire import metrics
from fusewire.guard import Errors

RETRY_SECONDS = 60.0
"""Before NVML is tried again after it could not be initialised."""


class NvmlCollector(Collector):
    """GPU metrics by NVML number. :meth:`refresh` asks NVML, :meth:`collect` shows what it answered last.

    ``gpu_up`` is 1 only while every GPU looked at tells its memory; a GPU that does not, and values that a GPU
    does not have, are left out without touching the others.
    """

    def __init__(
        self,
        errors: Errors,
        *,
        gpus: Literal["visible", "all"] = "visible",
        environ: Mapping[str, str] = os.environ,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gpus="visible"``: those in ``CUDA_VISIBLE_DEVICES`` (numbers in PCI order, or UUIDs)."""
        self._errors = errors
        self._visible = environ.get("CUDA_VISIBLE_DEVICES") if gpus == "visible" else None
        self._load = load
        self._pid = os.getpid() if pid is None else pid
        self._clock = clock
        self._nvml: Any = None
        self._retry_at = -math.inf
        self._up = False
        self._values: dict[metrics.Metric, list[tuple[tuple[str], float]]] = {}

    def describe(self) -> Iterable[core.Metric]:
        """Nothing: what the GPUs have shows later."""
        return ()

    def collect(self) -> Iterator[core.Metric]:
        """The values of the last refresh."""
        yield metrics.GPU_UP.value(float(self._up))
        for metric, samples in self._values.items():
            yield metric.family(samples)

    def refresh(self) -> None:
        """Ask NVML. Never raises."""
        try:
            nvml = self._initialised()
            if nvml is None:
                self._up, self._values = False, {}
                return
            self._refresh(nvml)
        except Exception as error:
            self._up, self._values = False, {}
            self._errors.note("collector", error)

    def _initialised(self) -> Any:
        if self._nvml is None and self._clock() >= self._retry_at:
            self._retry_at = self._clock() + RETRY_SECONDS
            try:
                nvml = self._load()
            except ImportError:
                return None
            try:
                nvml.nvmlInit()
            except nvml.NVMLError:  # no GPU on this machine, or no driver: said by gpu_up, not an error of ours
                return None
            self._nvml = nvml
        return self._nvml

    def _refresh(self, nvml: Any) -> None:
        values: dict[metrics.Metric, list[tuple[tuple[str], float]]] = {}
        up = True
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                if not self._is_visible(number, nvml, handle):
                    continue
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError:
                up = False
                continue
            label = (str(number),)
            values.setdefault(metrics.GPU_MEMORY_USED, []).append((label, float(memory.used)))
            values.setdefault(metrics.GPU_MEMORY_TOTAL, []).append((label, float(memory.total)))
            for metric, read in _READERS:
                try:
                    value = read(nvml, handle, self._pid)
                except nvml.NVMLError:  # not supported by this GPU
                    continue
                if value is not None:
                    values.setdefault(metric, []).append((label, value))
        self._up, self._values = up, values

    def _is_visible(self, number: int, nvml: Any, handle: Any) -> bool:
        if self._visible is None:
            return True
        names = [name.strip() for name in self._visible.split(",")]
        if str(number) in names:
            return True
        uuid = nvml.nvmlDeviceGetUUID(handle)
        return any(name.startswith("GPU-") and uuid.startswith(name) for name in names)


def _process_memory(nvml: Any, handle: Any, pid: int) -> float | None:
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == pid and process.usedGpuMemory is not None:
            return float(process.usedGpuMemory)
    return None


def _utilization(nvml: Any, handle: Any, _pid: int) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100


def _temperature(nvml: Any, handle: Any, _pid: int) -> float:
    return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def _energy(nvml: Any, handle: Any, _pid: int) -> float:
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def _ecc_errors(nvml: Any, handle: Any, _pid: int) -> float:
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


_READERS: tuple[tuple[metrics.Metric, Callable[[Any, Any, int], float | None]], ...] = (
    (metrics.GPU_PROCESS_MEMORY, _process_memory),
    (metrics.GPU_UTILIZATION, _utilization),
    (metrics.GPU_TEMPERATURE, _temperature),
    (metrics.GPU_ENERGY, _energy),
    (metrics.GPU_ECC, _ecc_errors),
)
