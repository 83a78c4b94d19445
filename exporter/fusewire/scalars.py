"""What a trainer may report as a number, and the way of a report into the recorder.

Floats and ints are taken as they are; numpy scalars and CPU tensors of one element are copied at once (their
owner may change them); CUDA tensors come back later (:mod:`fusewire.cuda`), and later rows wait behind them, so
that the order of the reports is the trainer's. torch is never imported, only found if the trainer has.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusewire.cuda import Copy, Readback
from fusewire.guard import Errors

WAITING_ROWS = 1024
"""Rows that may wait for the GPU; beyond that the values of the oldest are given up."""

MINIBATCHES = 4096
"""Minibatches with CUDA tensors kept per step and signal."""


@dataclass(slots=True)
class Minibatches:
    """Minibatch reports of one signal since the last step: floats folded, CUDA tensors kept."""

    total: float = 0.0
    largest: float = float("nan")
    count: int = 0
    tensors: list[Any] = field(default_factory=list)

    def add(self, value: float) -> None:
        """One more value; the largest passes over NaN, the mean does not."""
        self.total += value
        self.count += 1
        if value > self.largest or self.largest != self.largest:
            self.largest = value

    @property
    def mean(self) -> float:
        """Mean of the values so far."""
        return self.total / self.count


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A row whose values are not all here."""

    moment: float
    step: int
    signals: dict[str, float]
    minibatches: dict[str, Minibatches]
    names: list[str]
    """Owner of each value that the copy brings: a signal, or a signal with minibatches."""
    copy: Copy | None


Accept = Callable[[float, int, Mapping[str, float], Mapping[str, float]], None]
"""Called with the time, the step, the signals and the largest of their minibatches."""


def _torch() -> Any:
    return sys.modules.get("torch")


class Scalars:
    """Turns reports into rows, in order. For the training thread only."""

    def __init__(self, errors: Errors, accept: Accept) -> None:
        self._errors = errors
        self._accept = accept
        self._minibatches: dict[str, Minibatches] = {}
        self._waiting: deque[_Waiting] = deque()
        self._readback: Readback | None = None

    @property
    def waiting(self) -> bool:
        """Whether rows wait for values from the GPU."""
        return bool(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether rows must come through here: something is waiting, or CUDA tensors are the custom."""
        return bool(self._waiting or self._minibatches or self._readback)

    def minibatch(self, signals: Mapping[str, Any]) -> None:
        """Keep the values of one minibatch until the step."""
        for name, value in signals.items():
            kept = self._minibatches.setdefault(name, Minibatches())
            number = self._number(name, value)
            if isinstance(number, float):
                kept.add(number)
            elif number is not None:
                if len(kept.tensors) < MINIBATCHES:
                    # A clone: the trainer may change the tensor in place before the step is reported.
                    kept.tensors.append(number.detach().clone())
                else:
                    self._errors.note("cuda", f"more than {MINIBATCHES} minibatches in one step")

    def report(self, moment: float, step: int, signals: Mapping[str, Any]) -> None:
        """One step, with values of any kind."""
        numbers: dict[str, float] = {}
        minibatches, self._minibatches = self._minibatches, {}
        names: list[str] = []
        tensors: list[Any] = []
        for name, value in signals.items():
            minibatches.pop(name, None)
            number = self._number(name, value)
            if isinstance(number, float):
                numbers[name] = number
            elif number is not None:
                names.append(name)
                tensors.append(number)
        for name, kept in minibatches.items():
            names += [name] * len(kept.tensors)
            tensors += kept.tensors
            kept.tensors = []
        copy = self._start(tensors) if tensors else None
        waiting = _Waiting(moment, step, numbers, minibatches, names if copy else [], copy)
        if copy is None and not self._waiting:
            self._finish(waiting, [])
            return
        self._waiting.append(waiting)
        self.poll(give_up=len(self._waiting) > WAITING_ROWS)

    def poll(self, *, give_up: bool = False) -> None:
        """Pass on the rows whose values have come; with ``give_up`` the oldest row goes on without them."""
        while self._waiting and not (self._readback and self._readback.capturing()):
            oldest = self._waiting[0]
            values: list[float] | None = []
            if oldest.copy is not None:
                values = self._poll(oldest.copy)
            if values is None and not give_up:
                return
            if values is None:
                self._errors.note("cuda", "values given up: the GPU is too many steps behind")
            self._waiting.popleft()
            self._finish(oldest, values or [])
            give_up = False

    def _poll(self, copy: Copy) -> list[float] | None:
        try:
            return copy.poll()
        except Exception as error:  # a CUDA error stays with the process: its values never come
            self._errors.note("cuda", error)
            return []

    def _start(self, tensors: list[Any]) -> Copy | None:
        if self._readback is None:
            self._readback = Readback(_torch())
        try:
            return self._readback.start(tensors)
        except Exception as error:
            self._errors.note("cuda", error)
            return None

    def _finish(self, waiting: _Waiting, values: list[float]) -> None:
        signals, largest = waiting.signals, {}
        for name, value in zip(waiting.names, values, strict=False):
            if name in waiting.minibatches:
                waiting.minibatches[name].add(value)
            else:
                signals[name] = value
        for name, kept in waiting.minibatches.items():
            if kept.count:
                signals[name], largest[name] = kept.mean, kept.largest
        self._accept(waiting.moment, waiting.step, signals, largest)

    def _number(self, name: str, value: Any) -> Any:
        """A float, a CUDA tensor to be read later, or None where there is no value."""
        if value is None or type(value) is float:
            return value
        torch = _torch()
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(name, value)
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            self._errors.note("value", f"signal {name!r} is a {type(value).__name__}, not a number", kind=name)
            return None

    def _tensor(self, name: str, value: Any) -> Any:
        device = value.device.type
        if value.numel() != 1:
            self._errors.note("value", f"signal {name!r} has {value.numel()} elements, not one", kind=name)
        elif device == "cpu":
            return float(value.detach().item())
        elif device == "cuda":
            return value
        else:
            self._errors.note("value", f"signal {name!r} is on {device}, not on CPU or CUDA", kind=name)
        return None
