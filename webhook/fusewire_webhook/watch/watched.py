"""Steps that were really watched: the probation clock of an incident.

Pure but for its own memory. A step counts when it was seen between two looks at which the whole watch was healthy;
what passed across a look that was blind, paused or degraded does not.
"""

from __future__ import annotations

from fusewire_webhook.breaker.events import StepsWatched

SUBMIT_SECONDS = 5.0
"""A run's watched steps are journaled at most this often."""


class WatchedSteps:
    """Counts the watched steps of one attempt and says when to journal them. Times in monotonic seconds."""

    def __init__(self, *, attempt: int = -1, submit_seconds: float = SUBMIT_SECONDS) -> None:
        self.attempt = attempt
        self._submit_seconds = submit_seconds
        self._previous: int | None = None
        self._furthest = 0
        self._held = 0
        self._submitted: float | None = None

    def look(self, step: float | None, now: float, *, every_steps: int) -> StepsWatched | None:
        """One look: ``step`` as Prometheus saw it, None where this look does not count.

        Returns the event to journal once ``every_steps`` are held back and the last event is old enough.
        """
        if step is None:
            self._previous = None
            return None
        present = int(step)
        if self._previous is not None and present > self._previous:
            self._held += present - self._previous
        self._previous = present
        self._furthest = max(self._furthest, present)
        if self._submitted is not None and now - self._submitted < self._submit_seconds:
            return None
        return self.flush(now) if self._held >= every_steps else None

    def flush(self, now: float) -> StepsWatched | None:
        """The event of all steps that are held back; None: there are none."""
        if self._held == 0:
            return None
        event = StepsWatched(attempt=self.attempt, step=self._furthest, watched=self._held)
        self._held, self._submitted = 0, now
        return event
