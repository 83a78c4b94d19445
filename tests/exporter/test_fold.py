"""Step patience: the fold against a brute-force definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.fold import PATIENCE, StepFold
from fusewire.signals import STEPS

SIZE = 3

values = st.one_of(
    st.floats(-4, 4).map(lambda v: round(v, 1)), st.sampled_from([float("nan"), float("inf"), -float("inf")])
)
blocks = st.lists(
    st.tuples(
        st.sets(st.integers(0, SIZE - 1), min_size=1).map(sorted),
        st.lists(
            st.tuples(st.sampled_from([0.0, 0.125, 0.5, 3.0]), st.lists(values, min_size=SIZE, max_size=SIZE)),
            min_size=1,
            max_size=15,
        ),
    ),
    min_size=1,
    max_size=6,
)


def brute_force(reports: list[tuple[float, float]], n: int, edge: float) -> tuple[float, float]:
    """run_min and run_max by their definition: over runs that end from ``edge`` on or in the last 10 reports."""
    low, high = -np.inf, np.inf
    for end in range(n - 1, len(reports)):
        if reports[end][0] < edge and end < len(reports) - PATIENCE:
            continue
        run = [value for _, value in reports[end - n + 1 : end + 1]]
        low = max(low, min(-np.inf if np.isnan(v) else v for v in run))
        high = min(high, max(np.inf if np.isnan(v) else v for v in run))
    return low, high


def streak(reports: list[tuple[float, float]], edge: float) -> int:
    """Longest run of non-finite reports that ended in the window, by its definition."""
    longest = length = 0
    for number, (time, value) in enumerate(reports):
        length = 0 if np.isfinite(value) else length + 1
        if time >= edge or number >= len(reports) - PATIENCE:
            longest = max(longest, length)
    return longest


@settings(max_examples=100, deadline=None)
@given(blocks=blocks, window=st.sampled_from([1.0, 4.0, 16.0]), later=st.sampled_from([0.0, 0.25, 2.0, 40.0]))
def test_equals_the_definition(blocks: list[Any], window: float, later: float) -> None:
    """However reports are cut into blocks and spread over signals, the fold equals the brute-force one."""
    fold = StepFold(SIZE, window=window)
    reports: dict[int, list[tuple[float, float]]] = {column: [] for column in range(SIZE)}
    now = 100.0
    for columns, rows in blocks:
        times = []
        for gap, row in rows:
            now += gap
            times.append(now)
            for column in columns:
                reports[column].append((now, row[column]))
        fold.add(
            np.array(columns), np.array(times), np.array([[row[column] for column in columns] for _, row in rows])
        )
    now += later
    reading, edge = fold.read(now), fold.edge(now)
    assert now - 1.25 * window <= edge <= now - window
    for column, seen in reports.items():
        assert reading.reports[column] == len(seen)
        assert reading.nonfinite[column] == sum(not np.isfinite(value) for _, value in seen)
        assert reading.streak[column] == streak(seen, edge)
        if seen:
            np.testing.assert_equal(reading.last[column], seen[-1][1])
        for number, n in enumerate(STEPS):
            if len(seen) >= n:
                low, high = brute_force(seen, n, edge)
                assert reading.run_min[column][number] == low
                assert reading.run_max[column][number] == high


def fold_of(reports: list[float], *, every: float, window: float = 10.0) -> tuple[StepFold, float]:
    fold = StepFold(1, window=window)
    times = np.arange(len(reports)) * every
    fold.add(np.array([0]), times, np.array(reports)[:, None])
    return fold, float(times[-1])


@pytest.mark.parametrize("every", [0.001, 1.0, 50.0])
def test_three_in_a_row(every: float) -> None:
    """run_min{3} passes a threshold exactly when three reports in a row did, at any step rate."""
    two = [0.0] * 5 + [9.0, 9.0] + [0.0] * 3
    three = [0.0] * 5 + [9.0, 9.0, 9.0] + [0.0] * 3
    for reports, reached in ((two, 0.0), (three, 9.0)):
        fold, now = fold_of(reports, every=every)
        assert fold.read(now).run_min[0].tolist() == [9.0, reached, 0.0]


def test_a_slow_trainer_keeps_ten_reports() -> None:
    """At one step in 50 s and a window of 10 s, a run stays visible for 10 reports, then it is gone."""
    fold, now = fold_of([5.0] + [0.0] * 9, every=50.0)
    assert fold.read(now).run_min[0][0] == 5.0
    fold.add(np.array([0]), np.array([now + 50]), np.array([[0.0]]))
    assert fold.read(now + 50).run_min[0][0] == 0.0


def test_a_hung_trainer_keeps_its_last_reports() -> None:
    """However long nothing is reported, the last 10 reports stay visible."""
    fold, now = fold_of([1.0, 2.0, 3.0], every=1.0)
    assert fold.read(now + 1e6).run_min[0].tolist()[:2] == [3.0, 1.0]


def test_a_fast_trainer_keeps_the_window() -> None:
    """At 1,000 steps a second a single peak stays visible for the window, and no longer than 1.25 windows."""
    fold, now = fold_of([7.0] + [0.0] * 5000, every=0.001, window=10.0)
    for after, visible in ((9.9 - now, True), (12.6 - now, False)):
        later = now + after
        fold.add(np.array([0]), np.linspace(later - 0.01, later, 20), np.zeros((20, 1)))
        assert bool(fold.read(later).run_min[0][0] == 7.0) is visible


def test_a_larger_window_grows() -> None:
    """A window made larger keeps from then on what the smaller one would have forgotten."""
    fold, now = fold_of([7.0] + [0.0] * 100, every=0.01, window=4.0)
    fold.window = 40.0
    fold.add(np.array([0]), np.array([now + 20]), np.array([[0.0]]))
    assert fold.read(now + 20).run_min[0][0] == 7.0


def test_nan_reaches_nothing() -> None:
    """A NaN breaks a run on both sides: it neither exceeds nor stays under any threshold."""
    fold, now = fold_of([5.0, float("nan"), 5.0], every=1.0)
    reading = fold.read(now)
    assert reading.run_min[0].tolist()[:2] == [5.0, -np.inf]
    assert reading.run_max[0].tolist()[:2] == [5.0, np.inf]


def test_infinity_reaches_everything() -> None:
    """+Inf exceeds every threshold, as it should for an exploding loss."""
    fold, now = fold_of([float("inf")] * 3, every=1.0)
    assert fold.read(now).run_min[0].tolist()[:2] == [np.inf, np.inf]
