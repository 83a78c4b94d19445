"""A thread that does what neither the training loop nor a scrape should wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fusewire.guard import Errors


class Housekeeping:
    """Calls each task about once in ``interval`` seconds, in a daemon thread. A task that raises is noted."""

    def __init__(self, tasks: dict[str, Callable[[], None]], errors: Errors, interval: float = 1.0) -> None:
        """``tasks``: by the place that their errors are counted at."""
        self._tasks = tasks
        self._errors = errors
        self._interval = interval
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fusewire-housekeeping", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a task that is running is not waited for longer than a second."""
        self._closed.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        while True:
            for where, task in self._tasks.items():
                try:
                    task()
                except Exception as error:
                    self._errors.note(where, error)
            if self._closed.wait(self._interval):
                return
