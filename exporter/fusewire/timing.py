"""Step durations, their usual value, and the time since the last step, all without declared phases."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from fusewire.fold import Floats

BOUNDS: tuple[float, ...] = (
    0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 600, 1800, 3600, 14400,
)  # fmt: skip
"""Seconds: a step is a CartPole update of a millisecond or an LLM update of hours."""

_BOUNDS = np.array(BOUNDS)

RECENT = 64
"""Steps whose median is the usual duration."""


class StepTimes:
    """Folds the times at which steps were reported, in seconds of a monotonic clock. Not thread-safe."""

    def __init__(self, started: float) -> None:
        self._last = started
        self._counts = np.zeros(len(BOUNDS) + 1, np.int64)
        self._recent: Floats = np.zeros(0)
        self.sum = 0.0
        """Sum of all durations, in seconds."""
        self.steps = 0
        """Steps so far. The first has no duration: what came before it was the start-up."""

    def add(self, times: Floats) -> None:
        """Fold the times [R] of further steps."""
        durations = times[1:] - times[:-1]
        if self.steps:
            durations = np.concatenate(([times[0] - self._last], durations))
        self._last = float(times[-1])
        self.steps += len(times)
        self._counts += np.bincount(np.searchsorted(_BOUNDS, durations), minlength=len(BOUNDS) + 1)
        self.sum += float(durations.sum())
        self._recent = np.concatenate((self._recent, durations[-RECENT:]))[-RECENT:]

    def pause(self, start: float, end: float) -> None:
        """Leave out a phase that lasted from ``start`` to ``end``."""
        self._last = self._last + end - start if self._last < start else end

    def since(self, now: float, paused_at: float | None = None) -> float:
        """Seconds since the last step; the clock stands while a phase that began at ``paused_at`` lasts."""
        return max(0.0, (now if paused_at is None else min(now, paused_at)) - self._last)

    @property
    def usual(self) -> float | None:
        """Median duration of the recent steps, in seconds; None before there are two steps."""
        return float(np.median(self._recent)) if len(self._recent) else None

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), the last one ``+Inf``."""
        bounds = [*(str(float(bound)) for bound in BOUNDS), "+Inf"]
        return list(zip(bounds, (float(n) for n in accumulate(self._counts.tolist())), strict=True))
