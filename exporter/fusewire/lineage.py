"""Peak and floor of the smoothed episode return: they belong to a snapshot's lineage, not to a process.

A run-wide peak fires on the recovering attempt, and a peak that starts anew with each attempt forgets what the
restored policy could do. So the snapshot's manifest keeps them and a resumed attempt starts from there.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from fusewire.fold import Floats

SMOOTHING = 10
"""The smoothed return is the mean of this many finite reports (of fewer at the very start)."""

_WEIGHTS = np.full(SMOOTHING, 1 / SMOOTHING)


class ReturnLineage:
    """Smoothed return with rolling extremes.

    ``smoothed`` exists from the first finite report; ``peak`` and ``floor`` look at means of a full
    :data:`SMOOTHING` reports only (the first lucky episode is no peak), over the last ``window`` of them.
    Restored extremes count until the window has moved past them. Not thread-safe.
    """

    def __init__(self, window: int) -> None:
        self._recent: Floats = np.zeros(0)
        self._smoothed: deque[float] = deque(maxlen=max(window, 1))
        self._reports = 0
        self._inherited: list[tuple[float, int]] = []
        """(smoothed value, number of the report from which on it is forgotten)"""

    def add(self, values: Floats) -> None:
        """Further reports [R], in order; non-finite ones are no returns."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return
        series = np.concatenate((self._recent, finite))
        self._recent = series[-SMOOTHING:]
        self._reports += len(finite)
        if len(series) >= SMOOTHING:
            # The mean that ended with the last report of the former call is in already.
            means = np.convolve(series[-len(finite) - SMOOTHING + 1 :], _WEIGHTS, "valid")
            self._smoothed.extend(means[-self._window_size :].tolist())

    @property
    def smoothed(self) -> float | None:
        """Mean of the last finite reports; None before the first."""
        return float(self._recent.mean()) if len(self._recent) else None

    @property
    def peak(self) -> float | None:
        """Highest smoothed return of the window; None before there is one."""
        return max(self._window(), default=None)

    @property
    def floor(self) -> float | None:
        """Lowest smoothed return of the window; None before there is one."""
        return min(self._window(), default=None)

    def state(self) -> dict[str, Any]:
        """JSON for a snapshot's manifest.

        ``return_peak`` and ``return_floor`` are for people. The extremes with their ages, and those that will be
        the extremes once older ones are forgotten, are in ``return_extremes``: [value, age in reports].
        """
        aged = self._aged()
        state: dict[str, Any] = {"recent_returns": self._recent.tolist(), "return_extremes": _extremes(aged)}
        if aged:
            state |= {"return_peak": self.peak, "return_floor": self.floor}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a manifest's state. What is missing there or not finite is left out."""
        recent = np.asarray(state.get("recent_returns", ()), dtype=np.float64)
        self._recent = recent[np.isfinite(recent)][-SMOOTHING:]
        self._inherited = [
            (float(value), self._reports + self._window_size - int(age))
            for value, age in state.get("return_extremes", ())
            if math.isfinite(value)
        ]

    @property
    def _window_size(self) -> int:
        return self._smoothed.maxlen or 1

    def _window(self) -> list[float]:
        inherited = [value for value, until in self._inherited if self._reports < until]
        return [*self._smoothed, *inherited]

    def _aged(self) -> list[tuple[float, int]]:
        own = [(value, age) for age, value in enumerate(reversed(self._smoothed))]
        size = self._window_size
        return own + [(v, self._reports + size - until) for v, until in self._inherited if self._reports < until]


def _extremes(aged: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Those values that are higher or lower than all newer ones: no other can become an extreme."""
    kept: list[tuple[float, int]] = []
    highest, lowest = -math.inf, math.inf
    for value, age in sorted(aged, key=lambda item: item[1]):
        if value > highest or value < lowest:
            kept.append((value, age))
        highest, lowest = max(highest, value), min(lowest, value)
    return kept
