"""Steps on their way into the folds: in order, whole, and from two threads at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from fusewire.guard import Errors
from fusewire.recorder import Recorder
from fusewire.segments import SLICE
from fusewire.signals import Signal


def recorder() -> Recorder:
    signals = [Signal(name="a", help="A."), Signal(name="b", help="B.")]
    return Recorder(signals, started=0.0, window=10.0, return_window=10, errors=Errors())


def test_a_reader_beside_the_trainer() -> None:
    """While one thread reports and another reads all the time, no step is lost, doubled or torn."""
    subject = recorder()
    steps = 60_000
    done = threading.Event()
    seen = []

    def read() -> None:
        while not done.is_set():
            view = subject.view(0.0)
            seen.append((view.updates, view.signals.last.tolist()))

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, steps + 1):
        if step % 1000 < 900:
            subject.append(step * 1e-4, step, {"a": float(step), "b": -float(step)})
        else:
            subject.append(step * 1e-4, step, {"b": -float(step), "a": float(step)})
    done.set()
    reader.join()
    assert subject.view(0.0).updates == steps
    assert [updates for updates, _ in seen] == sorted(updates for updates, _ in seen)
    for updates, (a, b) in seen:
        if updates:
            assert (a, b) == (updates, -updates)


@pytest.mark.parametrize("steps", [1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE])
def test_cut_anywhere(steps: int) -> None:
    """Whatever the number of steps, all are folded and in order."""
    subject = recorder()
    for step in range(steps):
        subject.append(float(step), step, {"a": float(step)})
    view = subject.view(float(steps))
    assert view.updates == steps
    assert view.signals.last[0] == steps - 1
    assert view.signals.run_min[0][0] == steps - 1
    assert view.signals.reports.tolist() == [steps, 0]


def test_a_row_that_was_interrupted() -> None:
    """An exception (Ctrl-C) between a row's values and its time leaves the rows before and after whole."""
    subject = recorder()

    def interrupted(time: float) -> None:
        raise KeyboardInterrupt

    subject.append(1.0, 1, {"a": 1.0, "b": -1.0})
    subject.segment.tick = interrupted
    with pytest.raises(KeyboardInterrupt):
        subject.append(2.0, 2, {"a": 99.0, "b": 99.0})
    for step in (3, 4):
        subject.append(float(step), step, {"a": float(step), "b": -float(step)})
    view = subject.view(5.0)
    assert view.updates == 3
    assert view.signals.last.tolist() == [4.0, -4.0]
    np.testing.assert_array_equal(view.signals.run_min[:, :2], [[4.0, 1.0], [-1.0, -4.0]])


def test_memory_is_bounded() -> None:
    """Without a reader, no more than a slice of steps is kept, also when each reports other signals."""
    subject = recorder()
    for step in range(20 * SLICE):
        values: dict[str, Any] = {"a": 1.0} if step % 2 else {"b": 1.0}
        subject.append(float(step), step, values)
    waiting = sum(len(segment.times) for segment in subject._segments)
    assert waiting <= SLICE
    assert len(subject._segments) <= SLICE + 1
    assert subject.view(0.0).signals.reports.tolist() == [10 * SLICE, 10 * SLICE]
