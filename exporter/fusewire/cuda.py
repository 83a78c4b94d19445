"""Reading 0-dimensional CUDA tensors without ever waiting for the GPU.

The tensors of one step are stacked once, copied once into pinned memory, and followed by one event. The event is
polled from the training thread only, and nothing is done while a CUDA graph is being captured (copies would
become part of the graph, and polling an event makes the capture fail).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class CaptureError(RuntimeError):
    """The values of a step that is being captured into a CUDA graph do not exist yet."""


class Copy:
    """Values on their way from one or more devices."""

    def __init__(self, parts: list[tuple[Any, Any, list[int]]], size: int) -> None:
        self._parts = parts
        self._size = size

    def poll(self) -> list[float] | None:
        """The values once all have arrived, else None. Never blocks."""
        if not all(event.query() for _, event, _ in self._parts):
            return None
        values = [0.0] * self._size
        for host, _, places in self._parts:
            for place, value in zip(places, host.tolist(), strict=True):
                values[place] = float(value)
        return values


class Readback:
    """Starts asynchronous copies; ``torch`` is the module that the trainer has imported."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def start(self, tensors: Sequence[Any]) -> Copy:
        """Start to copy one-element CUDA tensors.

        Raises:
            CaptureError: a CUDA graph is being captured.
        """
        if self.capturing():
            raise CaptureError("CUDA tensors reported while a CUDA graph is being captured have no values yet")
        by_device: dict[Any, list[int]] = {}
        for place, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append(place)
        return Copy([self._copy(device, places, tensors) for device, places in by_device.items()], len(tensors))

    def _copy(self, device: Any, places: list[int], tensors: Sequence[Any]) -> tuple[Any, Any, list[int]]:
        torch = self._torch
        values = [tensors[place].detach().reshape(()) for place in places]
        if len({value.dtype for value in values}) > 1:
            values = [value.to(torch.float64) for value in values]
        stacked = torch.stack(values)
        host = torch.empty(len(values), dtype=stacked.dtype, pin_memory=True)
        host.copy_(stacked, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return host, event, places
