"""``last-values.json``: what a trainer reported last, for a process that died before it could be scraped."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fusewire.files import write_json
from fusewire.recorder import Recorder

SHORTEST_SECONDS = 1.0
"""Between two writings from within the training loop."""


class LastValues:
    """Writes the file when something new was reported. It survives the process, not a power cut."""

    def __init__(
        self, path: Path, recorder: Recorder, *, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._recorder = recorder
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._written_updates = 0
        self._from_loop_at = -math.inf

    def write(self) -> None:
        """Write the present values if there are new ones.

        Raises:
            OSError: the file could not be written.
        """
        with self._lock:
            self._write()

    def write_from_loop(self) -> None:
        """The same, at most once in :data:`SHORTEST_SECONDS`."""
        now = self._clock()
        if now - self._from_loop_at >= SHORTEST_SECONDS:
            self._from_loop_at = now
            self.write()

    def _write(self) -> None:
        view = self._recorder.view(self._clock())
        if view.updates == self._written_updates:
            return
        names = [signal.name for signal in self._recorder.signals]
        reading = view.signals
        value = {
            "step": view.step,
            "time": self._wall(),
            "values": {
                name: _json(last)
                for name, last, reports in zip(names, reading.last.tolist(), reading.reports.tolist(), strict=True)
                if reports
            },
            "nonfinite": {
                name: count for name, count in zip(names, reading.nonfinite.tolist(), strict=True) if count
            },
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, value, durable=False)
        self._written_updates = view.updates


def _json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return value
