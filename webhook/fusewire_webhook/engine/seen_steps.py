"""How far a run's attempt has come: kept in memory, and journaled where a decision rests on it, else rarely.

Pure. The journal stays the truth: what is only here decides nothing, and the first look after a restart of the
webhook brings it back. Times in monotonic seconds.
"""

from __future__ import annotations

from fusewire_webhook.breaker.events import StepsWatched
from fusewire_webhook.breaker.state import RunState

JOURNAL_SECONDS = 60.0
"""Where nothing rests on them, watched steps are journaled at most this often."""
PROBATION_SECONDS = 5.0
"""Likewise on probation, whose clock they are."""
FRESH_SECONDS = 10.0
"""A step that was seen longer ago says only how far the attempt had come at least."""


class SeenSteps:
    """The steps of one run's present attempt, as the watch saw them."""

    def __init__(self) -> None:
        self._attempt = -1
        self._step = 0
        self._seen: float | None = None
        self._watched = 0
        """Not handed to the journal yet."""
        self._journaled_step = 0
        self._journaled: float | None = None

    def look(self, look: StepsWatched, now: float) -> None:
        """Take in one look: how far the attempt is, and the steps that were watched since the last one."""
        if look.attempt != self._attempt:
            self._attempt, self._step, self._watched = look.attempt, 0, 0
            self._journaled_step, self._journaled = 0, None
        self._step, self._seen = max(self._step, look.step), now
        self._watched += look.watched

    def furthest(self, state: RunState) -> int:
        """The furthest step that is known of the present attempt."""
        return max(state.step, self._step) if self._attempt == state.attempt else state.step

    def fresh(self, attempt: int, now: float) -> int | None:
        """The step of the attempt; None where it was not seen just now."""
        seen_now = self._seen is not None and now - self._seen <= FRESH_SECONDS
        return self._step if seen_now and attempt == self._attempt else None

    def due(self, state: RunState, now: float) -> bool:
        """Are they to be journaled although nothing rests on them?"""
        wait = PROBATION_SECONDS if state.phase == "half_open" else JOURNAL_SECONDS
        return self._watched >= max(1, state.policy.watch_steps // 4) and (
            self._journaled is None or now - self._journaled >= wait
        )

    def take(self, state: RunState, now: float) -> StepsWatched | None:
        """The event of all that the journal does not have; None: there is nothing.

        While an action is in flight nothing rests on them, and how far the attempt came is told at its end.
        """
        news = self._watched or self._step > max(state.step, self._journaled_step)
        if not news or self._attempt != state.attempt or not state.live or state.procedure is not None:
            return None
        event = StepsWatched(attempt=self._attempt, step=self._step, watched=self._watched)
        self._watched, self._journaled_step, self._journaled = 0, self._step, now
        return event

    def give_back(self, event: StepsWatched) -> None:
        """It could not be stored: it goes with the next one."""
        if event.attempt == self._attempt:
            self._watched += event.watched
            self._journaled_step = 0
