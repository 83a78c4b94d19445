"""What a snapshot writer tells while it works; :class:`fusewire.Run` turns it into metrics."""

from __future__ import annotations

from typing import Protocol

FAILURE_REASONS: tuple[str, ...] = (
    "in_flight",
    "nonfinite",
    "no_space",
    "read_only",
    "io",
    "state",
    "exists",
    "body",
    "error",
)
"""Every reason that :meth:`SnapshotObserver.failed` is called with: the snapshot before is still being written; a
parameter is NaN or infinite; disk or quota full; no permission or read-only; another fault of the file system; a
value that cannot be stored; the name is taken; the code inside ``with run.snapshot()`` raised; anything else."""


class SnapshotObserver(Protocol):
    """Called from the training thread or the writer's; must neither block nor raise."""

    def staged(self, step: int, size: int, seconds: float) -> None:
        """A snapshot of ``size`` bytes is complete and durable, ``seconds`` after it was asked for."""
        ...

    def failed(self, reason: str, error: BaseException) -> None:
        """A snapshot was not written (``reason`` is one of :data:`FAILURE_REASONS`)."""
        ...

    def stalled(self, seconds: float) -> None:
        """The training loop was held for ``seconds`` by one call."""
        ...

    def in_flight(self, count: int) -> None:
        """So many snapshots are being written now (0 or 1)."""
        ...


class NullObserver:
    """Tells nobody."""

    def staged(self, step: int, size: int, seconds: float) -> None:
        """Ignored."""

    def failed(self, reason: str, error: BaseException) -> None:
        """Ignored."""

    def stalled(self, seconds: float) -> None:
        """Ignored."""

    def in_flight(self, count: int) -> None:
        """Ignored."""
