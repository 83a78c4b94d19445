"""Looks at the reports that are not finite, before they are folded.

A signal may have no value yet: healthy trainers report a NaN return until the first episode has ended. Such a
report is none; every other non-finite one is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fusewire.signals import Signal


class Screen:
    """Knows which signals are still waiting for their first finite value. For the training thread only."""

    def __init__(self, signals: Sequence[Signal], has_reported: Callable[[str], bool]) -> None:
        self._has_reported = has_reported
        self._never_finite = {signal.name for signal in signals if signal.absent_until_finite}
        self._awaiting: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether every row must be screened, because a signal's first finite value is awaited."""
        return bool(self._awaiting)

    def look(self, signals: Mapping[str, float]) -> tuple[Mapping[str, float], bool]:
        """The reports that count, and whether one of them is not finite."""
        bad = {name for name, value in signals.items() if not math.isfinite(value)}
        arrived = self._awaiting.intersection(signals) - bad
        self._awaiting -= arrived
        self._never_finite -= arrived
        suspects = self._never_finite & bad
        # Finite values of a signal that was never awaited went past us: its first one may lie long back.
        self._never_finite -= {name for name in suspects - self._awaiting if self._has_reported(name)}
        early = suspects & self._never_finite
        self._awaiting |= early
        if early:
            signals = {name: value for name, value in signals.items() if name not in early}
        return signals, bool(bad - early)
