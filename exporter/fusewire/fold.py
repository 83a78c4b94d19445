"""Exact step patience at any step rate: ``run_min``, ``run_max`` and non-finite streaks over a window.

Definitions. A signal's steps are its own reports: a step that does not report it is no step of that signal. A
*run* is n consecutive reports. It is *visible* while it ended within the last ``window`` seconds, or while fewer
than 10 reports came after it (so the window is the longer of the two). Over the visible runs,

- ``run_min(n)`` = the highest min(run): ``run_min(3) > x`` exactly when three reports in a row exceeded x;
- ``run_max(n)`` = the lowest max(run): ``run_max(3) < x`` exactly when three reports in a row stayed under x;
- NaN reaches nothing: it counts as −Inf for run_min and as +Inf for run_max. ±Inf count as they are.

Time is kept in buckets of a quarter window, so the far edge is coarse: never nearer than ``window``, never
further than 1.25 × ``window`` (:meth:`StepFold.edge` tells it). Memory does not depend on the number of reports.

The arithmetic: run_max(v) = −run_min(−v), so both are kept as one array of keys ``[v, −v]`` whose running minimum
over n reports is maximised over the window. Shapes: R reports, C reported columns, S signals, N run lengths; time
runs along the last axis, where numpy is fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusewire.signals import STEPS

PATIENCE = 10
"""A run stays visible for this many reports, however slow they come."""


BUCKETS_PER_WINDOW = 4

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Bucket:
    """What a stretch of time saw: the best key of the runs that ended in it, and the longest streak."""

    start: float
    end: float
    reach: Floats  # [2S, N]
    streak: Integers  # [S]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The fold at one instant, by signal index."""

    last: Floats
    """[S], as reported."""
    reports: Integers
    """[S]: number of reports so far; a run of n exists from n reports on."""
    run_min: Floats
    """[S, N]."""
    run_max: Floats
    """[S, N]."""
    nonfinite: Integers
    """[S], since the start."""
    streak: Integers
    """[S]: longest run of non-finite reports that ended in the window."""


class StepFold:
    """Folds blocks of reports; see the module's definitions. Not thread-safe."""

    def __init__(self, size: int, *, window: float, steps: Sequence[int] = STEPS) -> None:
        self._size = size
        self._steps = tuple(steps)
        self._longest = max(steps)
        self._keep = PATIENCE + self._longest - 1
        self._tail: Floats = np.full((2 * size, self._keep), -np.inf)
        self._tail_streak: Integers = np.zeros((size, PATIENCE), np.int64)
        self._buckets: dict[tuple[float, int], _Bucket] = {}
        self._last: Floats = np.full(size, np.nan)
        self._reports: Integers = np.zeros(size, np.int64)
        self._nonfinite: Integers = np.zeros(size, np.int64)
        self._scratch = _Scratch()
        self.window = window
        """Seconds. A larger one grows from then on: what was already forgotten does not come back."""

    def add(self, columns: Integers, times: Floats, values: Floats) -> None:
        """Fold reports of the signals ``columns`` [C] at ``times`` [R] (not decreasing), ``values`` [R, C]."""
        rows = len(times)
        keep = self._keep
        wide = np.concatenate((columns, columns + self._size))
        history = self._scratch.array(0, len(wide), keep + rows)
        history[:, :keep] = self._tail[wide]
        history[: len(columns), keep:] = values.T
        np.negative(values.T, out=history[len(columns) :, keep:])
        finite = np.isfinite(history[: len(columns), keep:])
        sound = bool(finite.all())
        if not sound:
            history[np.isnan(history)] = -np.inf
        self._tail[wide] = history[:, -keep:]
        self._last[columns] = values[-1]
        self._reports[columns] += rows
        streaks = None if sound and not self._tail_streak.any() else self._fold_streaks(columns, finite)
        segments = self._segments(times)
        bests = [np.empty((len(wide), len(self._steps))) for _ in segments]
        for number, n in enumerate(self._steps):
            runs = self._running_min(history[:, keep - n + 1 :], n)
            for (start, end, _), best in zip(segments, bests, strict=True):
                runs[:, start:end].max(axis=1, out=best[:, number])
        for (start, end, bucket), best in zip(segments, bests, strict=True):
            bucket.reach[wide] = np.maximum(bucket.reach[wide], best)
            if streaks is not None:
                longest = streaks[:, start:end].max(axis=1)
                bucket.streak[columns] = np.maximum(bucket.streak[columns], longest)

    def read(self, now: float) -> Reading:
        """The fold as of ``now``, in the seconds of ``times``."""
        runs = [self._running_min(self._tail[:, self._longest - n :], n).max(axis=1) for n in self._steps]
        reach = np.stack(runs, axis=1)
        streak = self._tail_streak.max(axis=1)
        for bucket in self._visible(now):
            reach = np.maximum(reach, bucket.reach)
            streak = np.maximum(streak, bucket.streak)
        return Reading(
            last=self._last.copy(),
            reports=self._reports.copy(),
            run_min=reach[: self._size],
            run_max=-reach[self._size :],
            nonfinite=self._nonfinite.copy(),
            streak=streak,
        )

    def edge(self, now: float) -> float:
        """Time of the window's far edge as of ``now``: between 1 and 1.25 windows ago."""
        return min(now - self.window, *(bucket.start for bucket in self._visible(now)), np.inf)

    def _fold_streaks(self, columns: Integers, finite: npt.NDArray[np.bool_]) -> Integers:
        """Length of the non-finite streak at each report, [C, R]; counts them too."""
        reports = np.arange(finite.shape[1])
        before = -1 - self._tail_streak[columns, -1:]
        streaks: Integers = reports - np.maximum.accumulate(np.where(finite, reports, before), axis=1)
        self._nonfinite[columns] += (~finite).sum(axis=1)
        history = np.concatenate((self._tail_streak[columns], streaks), axis=1)
        self._tail_streak[columns] = history[:, -PATIENCE:]
        return streaks

    def _segments(self, times: Floats) -> list[tuple[int, int, _Bucket]]:
        """The rows of each bucket that is still visible at the last of them, as (from, to, bucket)."""
        width = self.window / BUCKETS_PER_WINDOW
        newest = float(times[-1])
        self._forget(newest)
        if times[0] // width == newest // width:
            return [(0, len(times), self._bucket(width, int(newest // width)))]
        indices = np.floor_divide(times, width).astype(np.int64)
        starts = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist()]
        ends = [*starts[1:], len(times)]
        return [
            (start, end, self._bucket(width, int(indices[start])))
            for start, end in zip(starts, ends, strict=True)
            if (indices[start] + 1) * width > newest - self.window
        ]

    def _bucket(self, width: float, index: int) -> _Bucket:
        bucket = self._buckets.get((width, index))
        if bucket is None:
            bucket = self._buckets[width, index] = _Bucket(
                start=index * width,
                end=(index + 1) * width,
                reach=np.full((2 * self._size, len(self._steps)), -np.inf),
                streak=np.zeros(self._size, np.int64),
            )
        return bucket

    def _visible(self, now: float) -> list[_Bucket]:
        return [bucket for bucket in self._buckets.values() if bucket.end > now - self.window]

    def _forget(self, now: float) -> None:
        if len(self._buckets) > BUCKETS_PER_WINDOW:
            self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.end > now - self.window}

    def _running_min(self, values: Floats, n: int) -> Floats:
        """Minimum over each n consecutive columns, by doubling; valid until the next call."""
        reached = 1
        target = 1
        while reached < n:
            step = min(reached, n - reached)
            out = self._scratch.array(target, len(values), values.shape[1] - step)
            values = np.minimum(values[:, :-step], values[:, step:], out=out)
            reached += step
            target = 3 - target
        return values


class _Scratch:
    """Three work areas that are kept: fresh ones of this size cost more in page faults than the arithmetic."""

    def __init__(self) -> None:
        self._areas: list[Floats] = [np.empty(0), np.empty(0), np.empty(0)]

    def array(self, area: int, rows: int, columns: int) -> Floats:
        """An uninitialised array [rows, columns] in one of the areas."""
        if len(self._areas[area]) < rows * columns:
            self._areas[area] = np.empty(rows * columns)
        return self._areas[area][: rows * columns].reshape(rows, columns)
