"""Steps that were really watched: the probation clock of an incident.

Pure but for its own memory. A step counts when it was seen between two looks at which the whole watch was healthy;
what passed across a look that was blind, paused or degraded does not.
"""

from __future__ import annotations


class WatchedSteps:
    """Counts the watched steps of one attempt."""

    def __init__(self) -> None:
        self._previous: int | None = None

    def count(self, step: int | None) -> int:
        """The steps that were watched since the last look; None: this look does not count."""
        previous, self._previous = self._previous, step
        return 0 if step is None or previous is None else max(0, step - previous)
