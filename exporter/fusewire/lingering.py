"""Nothing that a trainer did may go unseen: one that dies, or has finished, waits to be scraped once more."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType


class Scrapes:
    """When the exporter was scraped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._last_begun: float | None = None
        self._gaps: deque[float] = deque(maxlen=3)

    def finished(self, begun: float) -> None:
        """A scrape that began at ``begun`` was answered in full."""
        with self._changed:
            if self._last_begun is not None and begun > self._last_begun:
                self._gaps.append(begun - self._last_begun)
            self._last_begun = max(begun, self._last_begun or begun)
            self._changed.notify_all()

    @property
    def interval(self) -> float | None:
        """Seconds between scrapes: the longest of the last gaps, as a stranger's scrape cuts one in two.

        None before there are two scrapes.
        """
        return max(self._gaps, default=None)

    def expected(self, now: float, *, first: float, second: float) -> float:
        """For how many seconds to wait for the next scrape: two intervals; 0: nobody scrapes (any more).

        Args:
            first: the answer before the first scrape.
            second: before the second one: the first tells no interval.
        """
        interval = self.interval
        if self._last_begun is None:
            return first
        if interval is None:
            return second
        return 2 * interval if now - self._last_begun <= 2 * interval else 0.0

    def wait_since(self, moment: float, timeout: float, give_up: Callable[[], bool]) -> bool:
        """Wait until a scrape that began after ``moment`` was answered; False: it never came."""
        end = self._clock() + timeout
        with self._changed:
            while not (self._last_begun is not None and self._last_begun > moment):
                rest = end - self._clock()
                if rest <= 0 or give_up():
                    return False
                self._changed.wait(min(rest, 0.1))  # signals are handled between two waits
        return True


class CrashHook:
    """Calls ``on_crash`` after the traceback of an unhandled exception (never for Ctrl-C), in the main thread.

    It runs in ``sys.excepthook``, not at exit: there, threads can still be started, and the exporter needs that.
    """

    def __init__(self, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self._previous = sys.excepthook
        self._hook = self._excepthook  # one bound method, to compare with `is`

    def install(self) -> None:
        """Chain the hook in."""
        self._previous = sys.excepthook
        sys.excepthook = self._hook

    def uninstall(self) -> None:
        """Take it out again, unless somebody else has chained theirs behind it."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous

    def _excepthook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._previous(kind, error, traceback)
        if not issubclass(kind, KeyboardInterrupt):
            self._on_crash()
