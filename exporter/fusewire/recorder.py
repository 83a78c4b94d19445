"""Rows of reported steps, and everything that is folded from them.

The training thread appends a row per step (an atomic list append) and folds every :data:`SLICE` rows; a scrape
folds what is left. So memory is bounded without a scraper, and a scrape costs the same at any step rate.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from operator import itemgetter
from typing import Any

import numpy as np

from fusewire.fold import Floats, Integers, Reading, StepFold
from fusewire.guard import Errors
from fusewire.lineage import ReturnLineage
from fusewire.signals import Signal
from fusewire.timing import StepTimes

SLICE = 512
"""Rows folded at once: large enough that numpy's overhead vanishes, small enough for a fraction of a millisecond."""

Row = tuple[float, int, int | None, int | None, Mapping[str, float]]
"""Time, step, environment steps so far, episodes so far, signals."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that was folded, at one instant."""

    signals: Reading
    step: int | None
    updates: int
    env_steps: float | None
    episodes: float | None
    since_step: float
    usual: float | None
    duration_buckets: list[tuple[str, float]]
    duration_sum: float
    return_smoothed: float | None
    return_peak: float | None
    return_floor: float | None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How rows that report these names become columns."""

    names: tuple[str, ...]
    known: Integers
    """Positions within ``names`` that are signals."""
    columns: Integers
    """Their numbers."""


class Recorder:
    """Keeps and folds the rows of one run. ``rows.append`` may be called without the lock, from one thread."""

    def __init__(
        self, signals: Sequence[Signal], *, started: float, window: float, return_window: int, errors: Errors
    ) -> None:
        self.rows: list[Row] = []
        self.signals = tuple(signals)
        self._numbers = {signal.name: number for number, signal in enumerate(self.signals)}
        self._lock = threading.Lock()
        self._errors = errors
        self._fold = StepFold(len(self.signals), window=window)
        self._times = StepTimes(started)
        self._lineage = ReturnLineage(return_window)
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._step: int | None = None
        self._totals: dict[str, float] = {}

    def fold(self, *, wait: bool = True) -> None:
        """Fold the rows that have come so far; without ``wait``, leave it to the thread that is folding now."""
        if self._lock.acquire(wait):
            try:
                self._drain()
            finally:
                self._lock.release()

    def view(self, now: float, *, paused_at: float | None = None) -> View:
        """Fold, then read everything as of ``now``; a declared phase has lasted since ``paused_at``."""
        with self._lock:
            self._drain()
            return View(
                signals=self._fold.read(now),
                step=self._step,
                updates=self._times.steps,
                env_steps=self._totals.get("env_steps"),
                episodes=self._totals.get("episodes"),
                since_step=self._times.since(now, paused_at),
                usual=self._times.usual,
                duration_buckets=self._times.buckets,
                duration_sum=self._times.sum,
                return_smoothed=self._lineage.smoothed,
                return_peak=self._lineage.peak,
                return_floor=self._lineage.floor,
            )

    def pause(self, start: float, end: float) -> None:
        """A declared phase lasted from ``start`` to ``end``: no part of any step's duration."""
        with self._lock:
            self._drain()
            self._times.pause(start, end)

    def has_reported(self, name: str) -> bool:
        """Whether a value of this signal was ever accepted."""
        with self._lock:
            self._drain()
            number = self._numbers.get(name)
            return number is not None and bool(self._fold.read(0.0).reports[number])

    def set_window(self, seconds: float) -> None:
        """Keep runs visible for ``seconds``; a larger window grows from now on."""
        if seconds != self._fold.window:
            with self._lock:
                self._drain()
                self._fold.window = seconds

    def lineage(self) -> dict[str, Any]:
        """What a snapshot's manifest keeps (see :class:`fusewire.lineage.ReturnLineage`)."""
        with self._lock:
            self._drain()
            return self._lineage.state()

    def restore_lineage(self, state: dict[str, Any]) -> None:
        """Go on from the lineage in the restored snapshot's manifest."""
        with self._lock:
            self._lineage.restore(state)

    def _drain(self) -> None:
        while rows := self.rows[:SLICE]:
            del self.rows[: len(rows)]  # appends of the training thread land behind them
            try:
                self._fold_rows(rows)
            except Exception as error:
                self._errors.note("step", error)

    def _fold_rows(self, rows: list[Row]) -> None:
        stamps, steps, env_steps, episodes, signals = zip(*rows, strict=True)
        times = np.array(stamps)
        self._times.add(times)
        for name, totals in (("env_steps", env_steps), ("episodes", episodes)):
            total = next((value for value in reversed(totals) if value is not None), None)
            if isinstance(total, Real):
                self._totals[name] = float(total)
            elif total is not None:
                self._errors.note("value", f"{name} is a {type(total).__name__}, not a number")
        if isinstance(steps[-1], int):
            self._step = steps[-1]
        else:
            self._errors.note("value", f"the step is a {type(steps[-1]).__name__}, not an int")
        self._fold_signals(times, signals)

    def _fold_signals(self, times: Floats, signals: tuple[Mapping[str, float], ...]) -> None:
        names = tuple(signals[0])
        if set(map(len, signals)) != {len(names)}:
            return self._fold_mixed(times, signals)
        if not names:
            return None
        pick = itemgetter(*names)
        try:
            picked = map(pick, signals)
            flat = chain.from_iterable(picked) if len(names) > 1 else picked
            values = np.fromiter(flat, np.float64, len(signals) * len(names))
        except KeyError:
            return self._fold_mixed(times, signals)
        return self._fold_block(names, times, values.reshape(len(signals), len(names)))

    def _fold_mixed(self, times: Floats, signals: tuple[Mapping[str, float], ...]) -> None:
        """Rows that report different signals: fold those together that stand in the same rows."""
        places: dict[str, list[int]] = {}
        for number, row in enumerate(signals):
            for name in row:
                places.setdefault(name, []).append(number)
        blocks: dict[tuple[int, ...], list[str]] = {}
        for name, numbers in places.items():
            blocks.setdefault(tuple(numbers), []).append(name)
        for numbers_of, names in blocks.items():
            values = np.array([[signals[number][name] for name in names] for number in numbers_of], np.float64)
            self._fold_block(tuple(names), times[list(numbers_of)], values)

    def _fold_block(self, names: tuple[str, ...], times: Floats, values: Floats) -> None:
        layout = self._layout(names)
        if len(layout.known) < len(names):
            values = values[:, layout.known]
        if len(layout.columns):
            self._fold.add(layout.columns, times, values)
            if "episode_return" in names:
                number = self._numbers["episode_return"]
                self._lineage.add(values[:, layout.columns.tolist().index(number)])

    def _layout(self, names: tuple[str, ...]) -> _Layout:
        layout = self._layouts.get(names)
        if layout is None:
            known = [place for place, name in enumerate(names) if name in self._numbers]
            for name in set(names).difference(self._numbers):
                self._errors.note(
                    "signal",
                    f"signal {name!r} is not declared and not exported; "
                    f"declare it with fusewire.attach(signals=[Signal(name={name!r}, help=…)])",
                )
            layout = _Layout(
                names=names,
                known=np.array(known, np.int64),
                columns=np.array([self._numbers[names[place]] for place in known], np.int64),
            )
            if len(self._layouts) < 256:
                self._layouts[names] = layout
        return layout
