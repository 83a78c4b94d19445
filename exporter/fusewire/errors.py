"""Errors of the trainer-side library.

Every error carries a machine-readable ``reason`` that logs and metrics use, and a one-line message that
names the file or key and the remedy. None of them is raised into a training loop by :class:`fusewire.Run`:
there they become a counter and a warning. They are raised by the functions that people call directly.
"""

from __future__ import annotations


class FusewireError(Exception):
    """Something about fusewire's own files or settings is wrong."""

    reason = "fusewire"


class AttemptError(FusewireError):
    """The attempt parameters (``attempt.json`` or ``FUSEWIRE_*``) cannot be used."""

    reason = "attempt"


class RunNameError(FusewireError):
    """A run name is not a plain name."""

    reason = "run_name"


class SnapshotError(FusewireError):
    """A snapshot could not be written, or cannot be used."""

    reason = "snapshot"

    def __init__(self, message: str, *, reason: str = "snapshot", snapshot: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.snapshot = snapshot
        """Name of the one that it speaks of, where the caller did not name it."""
