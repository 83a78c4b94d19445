"""The CUDA caching allocator of the trainer's torch; torch is neither imported nor initialised here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import core
from prometheus_client.registry import Collector

from fusewire import metrics
from fusewire.guard import Errors


class TorchMemoryCollector(Collector):
    """Reads the allocator's own counters: host memory only, no synchronisation."""

    def __init__(self, errors: Errors, find_torch: Callable[[], Any] = lambda: sys.modules.get("torch")) -> None:
        self._errors = errors
        self._find_torch = find_torch

    def describe(self) -> Iterable[core.Metric]:
        """Nothing: whether there is CUDA shows later."""
        return ()

    def collect(self) -> Iterator[core.Metric]:
        """Bytes in tensors and bytes reserved, of each CUDA device."""
        try:
            cuda = getattr(self._find_torch(), "cuda", None)
            if cuda is None or not cuda.is_initialized():
                return
            devices = range(cuda.device_count())
            allocated = [((str(device),), float(cuda.memory_allocated(device))) for device in devices]
            reserved = [((str(device),), float(cuda.memory_reserved(device))) for device in devices]
        except Exception as error:
            self._errors.note("collector", error)
            return
        yield metrics.TORCH_ALLOCATED.family(allocated)
        yield metrics.TORCH_RESERVED.family(reserved)
