"""What the engine asks the outside world before it decides about an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fusewire_webhook.breaker.events import FailureClass


@dataclass(frozen=True, kw_only=True)
class ExitEvidence:
    """Why an attempt ended, as far as its alerts and its last values say."""

    failure_class: FailureClass
    """``divergence`` where a value was non-finite or a divergence alert was pending or firing."""
    reasons: tuple[str, ...] = ()
    """What was found, for people; empty: nothing but the exit itself."""
    step: int | None = None
    """Last step that the attempt reported; None: unknown."""


class Evidence(Protocol):
    """Prometheus and the run directory, asked by the engine. No method raises: what is unknown is said so."""

    async def exit_evidence(self, run: str, attempt: int, run_dir: Path) -> ExitEvidence:
        """Classify an exit that nobody here asked for, after the settle period."""
        ...

    async def last_step(self, run: str, attempt: int) -> int | None:
        """The furthest step that was seen of the attempt; None where nobody knows."""
        ...

    async def unclean_since(self, run: str, attempt: int, snapshot: str) -> tuple[str, ...] | None:
        """Alerts that doubt the weights, pending or firing, since the snapshot was written, up to ``attempt``.

        Empty: none; None: nobody can say.
        """
        ...
