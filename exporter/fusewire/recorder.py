"""Reported steps on their way into the folds, and everything that is read from the folds.

The training thread puts each step's numbers into two lists (of floats only, which the garbage collector does not
visit) and folds every :data:`SLICE` steps; a scrape folds what is left. So memory is bounded
without a scraper, and a scrape costs the same at any step rate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.fold import Floats, Integers, Reading, StepFold
from fusewire.guard import Errors
from fusewire.lineage import ReturnLineage
from fusewire.segments import SLICE, Segment
from fusewire.signals import Signal
from fusewire.timing import StepTimes

TOTALS = ("env_steps", "episodes")
"""What a step may report besides signals: running totals."""


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


_Block = tuple[tuple[str, ...], Floats, Floats]
"""Names [C], times [R], values [R, C]."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How rows that report these names become columns."""

    known: Integers
    """Positions within the names that are signals."""
    columns: Integers
    """Their numbers."""
    returns: int | None
    """Which of these columns is the episode return."""
    totals: tuple[tuple[str, int], ...]
    """Running totals and their positions within the names."""


class Recorder:
    """Keeps and folds the steps of one run. One thread reports; any thread may read."""

    def __init__(
        self, signals: Sequence[Signal], *, started: float, window: float, return_window: int, errors: Errors
    ) -> None:
        self.signals = tuple(signals)
        self.segment = Segment([])
        """Where the next step goes. The reporting thread writes to it directly (:meth:`fusewire.Run.step`)."""
        self.step: Any = None
        """As it was last reported."""
        self._segments = [self.segment]
        self._numbers = {signal.name: number for number, signal in enumerate(self.signals)}
        self._lock = threading.Lock()
        self._errors = errors
        self._fold = StepFold(len(self.signals), window=window)
        self._times = StepTimes(started)
        self._lineage = ReturnLineage(return_window)
        self._totals: dict[str, float] = {}
        self._layouts: dict[tuple[str, ...], _Layout] = {}

    def append(self, time: float, step: int, signals: Mapping[str, float]) -> None:
        """Report one step."""
        self.step = step
        names = [*signals]
        segment = self.segment if names == self.segment.names else self.switch(names)
        try:
            segment.extend(signals.values())
            segment.tick(time)
        except BaseException:
            self.realign()
            raise
        if len(segment.times) >= SLICE:
            self.fold()

    def realign(self) -> None:
        """After an exception in the middle of a row: leave the row behind, in a segment that is given up."""
        segment = self.segment
        if len(segment.values) != len(segment.times) * len(segment.names):
            self.switch(segment.names)

    def switch(self, names: list[str]) -> Segment:
        """The next steps report other signals than the last one."""
        if len(self._segments) >= SLICE:
            self.fold()
        self.segment = Segment(names)
        self._segments.append(self.segment)
        return self.segment

    def fold(self, *, wait: bool = True) -> None:
        """Fold the steps that have come so far; without ``wait``, leave it to the thread that is folding now."""
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
                step=self._whole_step(),
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
        while blocks := self._take():
            try:
                for _, times, _ in blocks:
                    self._times.add(times)
                self._fold_blocks(blocks)
            except Exception as error:
                self._errors.note("step", error)

    def _take(self) -> list[_Block]:
        """At most :data:`SLICE` steps, in order."""
        blocks: list[_Block] = []
        room = SLICE
        while room:
            segment = self._segments[0]
            if segment.times:
                block = (tuple(segment.names), *segment.take(room))
                blocks.append(block)
                room -= len(block[1])
            elif len(self._segments) > 1:
                del self._segments[0]  # nobody writes to a segment that has a successor
            else:
                break
        return blocks

    def _fold_blocks(self, blocks: list[_Block]) -> None:
        """Fold together the signals that stand in the same blocks: most often all, in the only one."""
        if len(blocks) == 1:
            self._fold_block(*blocks[0])
            return
        places: dict[str, list[tuple[int, int]]] = {}
        for number, (names, _, _) in enumerate(blocks):
            for column, name in enumerate(names):
                places.setdefault(name, []).append((number, column))
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, found in places.items():
            groups.setdefault(tuple(number for number, _ in found), []).append(name)
        for numbers, names_of in groups.items():
            times = np.concatenate([blocks[number][1] for number in numbers])
            columns = [
                np.concatenate([blocks[number][2][:, column] for number, column in places[name]])
                for name in names_of
            ]
            self._fold_block(tuple(names_of), times, np.stack(columns, axis=1))

    def _whole_step(self) -> int | None:
        if self.step is None or isinstance(self.step, int):
            return self.step
        self._errors.note("value", f"the step is a {type(self.step).__name__}, not an int")
        return None

    def _fold_block(self, names: tuple[str, ...], times: Floats, values: Floats) -> None:
        layout = self._layout(names)
        for total, place in layout.totals:
            self._totals[total] = float(values[-1, place])
        if len(layout.known) < len(names):
            values = values[:, layout.known]
        if len(layout.columns):
            self._fold.add(layout.columns, times, values)
        if layout.returns is not None:
            self._lineage.add(values[:, layout.returns])

    def _layout(self, names: tuple[str, ...]) -> _Layout:
        layout = self._layouts.get(names)
        if layout is None:
            for name in set(names).difference(self._numbers, TOTALS):
                self._errors.note(
                    "signal",
                    f"signal {name!r} is not declared and not exported{_meant(name, self._numbers)}; "
                    f"declare a signal of your own with fusewire.attach(signals=[Signal(name={name!r}, help=…)])",
                )
            known = [place for place, name in enumerate(names) if name in self._numbers]
            columns = [self._numbers[names[place]] for place in known]
            returns = self._numbers.get("episode_return")
            layout = _Layout(
                known=np.array(known, np.int64),
                columns=np.array(columns, np.int64),
                returns=columns.index(returns) if returns in columns else None,
                totals=tuple((name, place) for place, name in enumerate(names) if name in TOTALS),
            )
            if len(self._layouts) < 256:
                self._layouts[names] = layout
        return layout


def _meant(name: str, known: Iterable[str]) -> str:
    """The question whether one of the known signals was meant; empty where none is like it."""
    from difflib import get_close_matches  # noqa: PLC0415 - a run that spells its signals right never needs it

    known = tuple(known)
    words = set(name.split("_"))
    like = get_close_matches(name, known, n=1, cutoff=0.7) or [
        signal for signal in known if words.issubset(signal.split("_"))
    ]
    return f": did you mean {' or '.join(map(repr, like))}?" if like else ""
