"""SIGTERM asks the loop to end; the handler that was there before is called too."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stopping:
    """Whether the trainer should stop. The handler needs the main thread; all else works without signals."""

    def __init__(self) -> None:
        self.requested = False
        """A plain attribute: it is read in every turn of the loop and written by a signal handler."""
        self.by_signal = False
        self._previous: Any = None
        self._installed = False
        self._pid = os.getpid()

    def install(self) -> bool:
        """Chain the handler in; False: this is not the main thread, so only :meth:`request` will work."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True
        return True

    def uninstall(self) -> None:
        """Put the former handler back, unless somebody else has chained theirs behind ours."""
        ours = self._installed and signal.getsignal(signal.SIGTERM) == self._handle
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
            self._installed = False

    def request(self) -> None:
        """Ask for a stop from within."""
        self.requested = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child (a data-loader worker) that is told to end must end.
            self.uninstall()
            signal.raise_signal(signum)
            return
        self.requested = True
        self.by_signal = True
        if callable(self._previous):
            self._previous(signum, frame)
