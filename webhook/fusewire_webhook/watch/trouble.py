"""What fails again and again is told once, and once more when it works again."""

from __future__ import annotations

import logging


class Trouble:
    """The trouble of one task that looks again and again.

    Args:
        over: what is said when a look works again.
    """

    def __init__(self, log: logging.Logger, *, over: str) -> None:
        self._log = log
        self._over = over
        self._told: set[str] = set()

    def tell(self, level: int, message: str, error: Exception, *, trace: bool = False) -> None:
        """``message`` with the error as its one argument, unless it was told since a look last worked."""
        if message not in self._told:
            self._told.add(message)
            self._log.log(level, message + " (told once until it works again)", error, exc_info=trace)

    def end(self) -> None:
        """A look worked."""
        if self._told:
            self._told.clear()
            self._log.warning("%s", self._over)
