"""Watched steps: the probation clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.breaker.events import StepsWatched
from fusewire_webhook.watch.watched import WatchedSteps


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.floats(0.1, 9.0)), max_size=60), st.integers(1, 40))
def test_journaled_steps_sum_up_to_what_was_seen_between_healthy_looks(
    looks: list[tuple[int, bool, float]], every: int
) -> None:
    """The events' sum is exact: each step between two healthy looks in a row once, no other step."""
    watched, events = WatchedSteps(attempt=3), []
    step, now, expected, healthy_before = 0, 0.0, 0, False
    for advance, healthy, wait in looks:
        step, now = step + advance, now + wait
        expected += advance if healthy and healthy_before else 0
        healthy_before = healthy
        events.append(watched.look(float(step) if healthy else None, now, every_steps=every))
    events.append(watched.flush(now))
    found = [event for event in events if event is not None]
    assert sum(event.watched for event in found) == expected
    assert all(event.attempt == 3 and event.step <= step for event in found)


def test_the_journal_stays_small() -> None:
    """A fast trainer is journaled once in 5 s, a slow one once in ``every_steps``."""
    fast, slow = WatchedSteps(attempt=0), WatchedSteps(attempt=0)
    fast_events: list[StepsWatched] = []
    slow_events: list[StepsWatched] = []
    for tick in range(600):
        if (event := fast.look(tick * 100.0, tick * 0.1, every_steps=25)) is not None:
            fast_events.append(event)
        if (event := slow.look(tick // 20, tick * 0.1, every_steps=10)) is not None:
            slow_events.append(event)
    assert len(fast_events) == 12
    assert [event.watched for event in slow_events] == [10, 10]
