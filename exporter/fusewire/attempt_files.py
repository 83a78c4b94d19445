"""The files of an attempt in its run directory: ``<run>/attempts/003/`` holds them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fusewire.files import write_json

ATTEMPTS = "attempts"
EXPORTER_FILE = "exporter.json"
COMPLETED_FILE = "completed.json"
LAST_VALUES_FILE = "last-values.json"
OUTPUT_FILE = "output.log"
"""What the trainer prints; a supervisor writes it."""


def attempt_folder(run_dir: Path, attempt: int) -> Path:
    """What belongs to one attempt."""
    return run_dir / ATTEMPTS / f"{attempt:03d}"


class AttemptFiles:
    """Names and writes them. A process that is not the main one (another rank, a role) has its address only."""

    def __init__(self, run_dir: Path, attempt: int, *, rank: int = 0, role: str | None = None) -> None:
        self._attempt = attempt
        self._rank = rank
        self._role = role
        self.main = rank == 0 and role is None
        self.folder = attempt_folder(run_dir, attempt)

    @property
    def last_values(self) -> Path:
        """See :mod:`fusewire.evidence`."""
        return self.folder / LAST_VALUES_FILE

    def prepare(self) -> None:
        """Make the folder; an earlier process of the same attempt has not completed this one.

        Raises:
            OSError: also by the other methods.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.main:
            (self.folder / COMPLETED_FILE).unlink(missing_ok=True)

    def write_address(self, host: str, port: int) -> None:
        """Say where the exporter listens."""
        address = {"host": host, "port": port, "pid": os.getpid(), "attempt": self._attempt}
        name = EXPORTER_FILE
        if not self.main:
            address |= {"rank": self._rank, "role": self._role or ""}
            name = f"exporter-{self._role or 'rank'}-{self._rank}.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / name, address, durable=False)

    def write_completed(self, step: int | None) -> None:
        """Say that the training has finished on purpose."""
        if self.main:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / COMPLETED_FILE, {"step": step, "time": time.time()})
