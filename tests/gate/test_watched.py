"""Watched steps: the probation clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.watch.watched import WatchedSteps


@given(st.lists(st.tuples(st.integers(-5, 50), st.booleans()), max_size=60))
def test_steps_count_between_two_healthy_looks_in_a_row(looks: list[tuple[int, bool]]) -> None:
    """Each such step once, no other step, and none backwards."""
    watched, step, expected, found, healthy_before = WatchedSteps(), 0, 0, 0, False
    for advance, healthy in looks:
        step += advance
        expected += max(0, advance) if healthy and healthy_before else 0
        healthy_before = healthy
        found += watched.count(step if healthy else None)
    assert found == expected
