"""A signal over time, as numpy arrays, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Samples of one signal, oldest first."""

    times: Floats
    """Unix seconds of Prometheus' clock."""
    values: Floats
    """As reported: NaN and infinities too."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def finite(self) -> Floats:
        """The finite values, in order."""
        return self.values[np.isfinite(self.values)]

    @property
    def bad(self) -> int:
        """How many samples are NaN or infinite."""
        return int(len(self.values) - len(self.finite))

    def until(self, time: float) -> Trace:
        """The samples up to ``time``, in Unix seconds."""
        keep = self.times <= time
        return Trace(times=self.times[keep], values=self.values[keep])

    def at(self, time: float) -> float | None:
        """The last value up to ``time``; None: there is none."""
        index = int(np.searchsorted(self.times, time, side="right")) - 1
        return float(self.values[index]) if index >= 0 else None

    def to_json(self) -> dict[str, Any]:
        """Start, offsets in seconds, and values of six figures; non-finite ones as text."""
        start = float(self.times[0]) if len(self) else 0.0
        return {
            "start": start,
            "offsets": [round(float(time) - start, 3) for time in self.times],
            "values": [_json(value) for value in self.values.tolist()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trace:
        """The inverse of :meth:`to_json`; raises KeyError, TypeError, ValueError on anything else."""
        offsets = np.array(value["offsets"], dtype=np.float64)
        values = np.array([float(item) for item in value["values"]], dtype=np.float64)
        if offsets.shape != values.shape:
            raise ValueError("as many offsets as values")
        return cls(times=offsets + float(value["start"]), values=values)


def trace(points: Sequence[tuple[float, float]]) -> Trace:
    """A trace of (Unix seconds, value) pairs."""
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    return Trace(times=array[:, 0].copy(), values=array[:, 1].copy())


def _json(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
