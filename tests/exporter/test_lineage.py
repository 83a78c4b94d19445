"""Smoothed return, its peak and floor, and what a snapshot takes along."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.lineage import SMOOTHING, ReturnLineage

returns = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=60)


def after(*parts: list[float], window: int = 100) -> ReturnLineage:
    lineage = ReturnLineage(window)
    for part in parts:
        lineage.add(np.array(part, np.float64))
    return lineage


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(returns, max_size=4), window=st.integers(1, 20))
def test_equals_the_definition(parts: list[list[float]], window: int) -> None:
    """However the reports are cut, peak and floor are the extremes of the last ``window`` means of 10."""
    lineage = after(*parts, window=window)
    finite = [value for part in parts for value in part if math.isfinite(value)]
    means = [math.fsum(finite[end - SMOOTHING : end]) / SMOOTHING for end in range(SMOOTHING, len(finite) + 1)]
    if not finite:
        assert lineage.smoothed is None
    else:
        last = finite[-SMOOTHING:]
        np.testing.assert_allclose(lineage.smoothed, math.fsum(last) / len(last), rtol=1e-9, atol=1e-6)
    if not means:
        assert lineage.peak is None
        assert lineage.floor is None
    else:
        np.testing.assert_allclose(lineage.peak, max(means[-window:]), rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(lineage.floor, min(means[-window:]), rtol=1e-9, atol=1e-6)


def test_the_first_lucky_episode_is_no_peak() -> None:
    """Before ten reports there is a smoothed return, but neither peak nor floor."""
    lineage = after([500.0] * 9)
    assert (lineage.smoothed, lineage.peak, lineage.floor) == (500.0, None, None)


def test_a_resumed_attempt_goes_on() -> None:
    """Restored from a manifest (through JSON), it knows peak, floor and the recent returns."""
    before = after([100.0] * 10 + [300.0] * 10 + [200.0] * 10)
    resumed = ReturnLineage(100)
    resumed.restore(json.loads(json.dumps(before.state())))
    assert (resumed.peak, resumed.floor, resumed.smoothed) == (before.peak, before.floor, before.smoothed)
    both = np.array([250.0])
    before.add(both)
    resumed.add(both)
    assert math.isclose(resumed.smoothed or 0, before.smoothed or 1)


def test_an_inherited_peak_is_forgotten_in_time() -> None:
    """It counts until the window has moved past it, just as it would have in the attempt that saw it."""
    before = after([300.0] * 10 + [100.0] * 15, window=30)
    resumed = ReturnLineage(30)
    resumed.restore(before.state())
    for more in range(40):
        assert resumed.peak == before.peak, more
        for lineage in (before, resumed):
            lineage.add(np.array([100.0]))
    assert math.isclose(resumed.peak or 0, 100.0)


def test_state_of_a_resumed_attempt() -> None:
    """A snapshot taken soon after a resume hands the inherited extremes on, with their age."""
    first = after([300.0] * 10 + [100.0] * 15, window=30)
    second, third = ReturnLineage(30), ReturnLineage(30)
    second.restore(first.state())
    second.add(np.array([100.0] * 3))
    third.restore(second.state())
    first.add(np.array([100.0] * 3))
    assert third.state()["return_peak"] == 300.0
    assert third.state()["return_extremes"] == first.state()["return_extremes"]


def test_a_manifest_of_somebody_else() -> None:
    """Missing and non-finite values are left out, without an error."""
    lineage = ReturnLineage(10)
    lineage.restore({"return_extremes": [[math.nan, 0]], "recent_returns": [math.inf, 3.0]})
    assert (lineage.peak, lineage.smoothed) == (None, 3.0)
