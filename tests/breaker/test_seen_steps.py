"""Steps that the watch saw: kept in memory, journaled where something rests on them and else rarely."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.breaker.events import StepsWatched
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import Phase, Procedure, RunState
from fusewire_webhook.engine.seen_steps import FRESH_SECONDS, SeenSteps

LIVE = RunState(declared=True, attempt=3, live=True, policy=Policy(watch_steps=100))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans(), st.booleans()), max_size=60))
def test_no_watched_step_is_lost_or_counted_twice(looks: list[tuple[int, int, bool, bool]]) -> None:
    """Whatever is journaled when, and refused by the disk: the events sum up to what was seen."""
    seen, stored, step = SeenSteps(), [], 0
    for now, (advance, watched, take, refused) in enumerate(looks):
        step += advance
        seen.look(StepsWatched(attempt=3, step=step, watched=watched), now)
        if take and (event := seen.take(LIVE, now)) is not None:
            seen.give_back(event) if refused else stored.append(event)
    last = seen.take(LIVE, len(looks))
    stored += [last] if last is not None else []
    assert sum(event.watched for event in stored) == sum(watched for _, watched, _, _ in looks)
    assert max((event.step for event in stored), default=0) == step == seen.furthest(LIVE)


@pytest.mark.parametrize(
    ("phase", "rate", "entries"),
    [("closed", 1000.0, 10), ("closed", 0.1, 2), ("half_open", 1000.0, 120), ("half_open", 0.1, 2)],
)
def test_the_journal_stays_small(phase: Phase, rate: float, entries: int) -> None:
    """A fast trainer is journaled once a minute, on probation once in 5 s; a slow one once in 25 steps."""
    seen, state, journaled, before = SeenSteps(), LIVE.but(phase=phase), 0, 0
    for tick in range(6000):
        step = int(tick * 0.1 * rate)
        seen.look(StepsWatched(attempt=3, step=step, watched=step - before), tick * 0.1)
        before = step
        if seen.due(state, tick * 0.1):
            journaled += seen.take(state, tick * 0.1) is not None
    assert journaled == entries


def test_nothing_new_is_no_entry() -> None:
    """A trainer that stands still writes nothing, nor do steps that the journal has already."""
    seen = SeenSteps()
    seen.look(StepsWatched(attempt=3, step=70, watched=20), 0.0)
    assert seen.take(LIVE, 0.0) == StepsWatched(attempt=3, step=70, watched=20)
    seen.look(StepsWatched(attempt=3, step=70, watched=0), 1.0)
    assert seen.take(LIVE, 1.0) is None
    assert SeenSteps().take(LIVE, 0.0) is None


@pytest.mark.parametrize(
    "state",
    [
        LIVE.but(procedure=Procedure(cause="divergence", reason="KLSpike", stages=("stop",))),
        LIVE.but(live=False),
        LIVE.but(attempt=4),
    ],
    ids=["a stop is under way", "it has ended", "another attempt"],
)
def test_what_nothing_rests_on_is_not_journaled(state: RunState) -> None:
    """While an attempt is being stopped and once it has ended, the end itself tells how far it came."""
    seen = SeenSteps()
    seen.look(StepsWatched(attempt=3, step=500, watched=500), 0.0)
    assert seen.take(state, 0.0) is None


def test_a_step_is_fresh_for_a_while_and_of_its_attempt_only() -> None:
    """What was seen too long ago, or of another attempt, says nothing about now."""
    seen = SeenSteps()
    assert seen.fresh(3, 0.0) is None
    seen.look(StepsWatched(attempt=3, step=500, watched=0), 100.0)
    assert seen.fresh(3, 100.0 + FRESH_SECONDS) == 500
    assert seen.fresh(3, 100.1 + FRESH_SECONDS) is None
    assert seen.fresh(4, 100.0) is None
    seen.look(StepsWatched(attempt=4, step=20, watched=0), 101.0)
    assert (seen.fresh(4, 101.0), seen.furthest(LIVE.but(attempt=4, step=10))) == (20, 20)
