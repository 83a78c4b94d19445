"""Output that can hold nobody up: readers of ``fusewire run`` come and go, its runs stay guarded."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import queue
import threading
import time
from typing import TextIO

WAITING = 1000
"""Pieces of output that wait for a reader who does not read; further ones are dropped."""
DRAIN_SECONDS = 1.0


class Outlet(io.TextIOBase):
    """A stream in front of a descriptor that may be blocked (Ctrl-S, a full pipe) or gone (a closed terminal).

    A thread writes; :meth:`write` never waits and never raises. What nobody reads is lost.

    Args:
        stream: None, or one without a descriptor: all is lost.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._encoding, self._terminal = "utf-8", False
        self._descriptor = _descriptor_of(stream)
        if stream is not None:
            stream.flush()
            self._encoding, self._terminal = stream.encoding or "utf-8", stream.isatty()
        self._queue: queue.Queue[bytes] = queue.Queue(WAITING)
        threading.Thread(target=self._pass_on, name="fusewire-output", daemon=True).start()
        atexit.register(self.drain)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as an attribute
        """As the stream's."""
        return self._encoding

    def isatty(self) -> bool:
        """Was the stream a terminal?"""
        return self._terminal

    def fileno(self) -> int:
        """The descriptor behind it."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Hand over to the thread."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(text.encode(self._encoding, "replace"))
        return len(text)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until all is written, but not for a reader who does not read."""
        deadline = time.monotonic() + seconds
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks and (left := deadline - time.monotonic()) > 0:
                self._queue.all_tasks_done.wait(left)

    def _pass_on(self) -> None:
        # Not through the stream: its lock, held here for ever, would abort the interpreter when it ends.
        while True:
            data = self._queue.get()
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                pass
            finally:
                self._queue.task_done()


def _descriptor_of(stream: TextIO | None) -> int:
    """A descriptor of our own, so that nobody closes it, or gives its number to another file, while we write."""
    if stream is not None:
        with contextlib.suppress(io.UnsupportedOperation):
            return os.dup(stream.fileno())
    return os.open(os.devnull, os.O_WRONLY)
