"""The audit: usual causes of a divergence, each judged from the attempt's own data. Pure functions.

``pass`` means that the data were there and showed nothing, ``suspicious`` that somebody should look, ``unknown``
that the data do not say. No verdict is a proof; each bound in ``checks.py`` and ``schedule.py`` is a place to start
reading, no law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fusewire_webhook.postmortem.observed import Traces
from fusewire_webhook.postmortem.traces import Trace

Verdict = Literal["pass", "suspicious", "unknown"]

FEWEST = 4
"""Samples below which a series says nothing about a trend."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One item of the audit."""

    item: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True, kw_only=True)
class ReplayFindings:
    """What a replay buffer found among the rows that the attempt wrote."""

    rows: int
    invalid_rewards: int
    """Rewards that are NaN, infinite, or outside the bounds that the environment states."""
    across_crashes: int
    """Transitions whose two states lie on different sides of an environment's crash or reset."""
    note: str = ""


class ReplayAudit(Protocol):
    """A replay buffer that can look at what an attempt wrote into it."""

    def audit(self, run: str, attempt: int, watermark: Any) -> ReplayFindings:
        """Look at the attempt's rows after ``watermark`` (of the snapshot it started from; None: from the first).

        Raises:
            Exception: it could not look; the postmortem says so.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Start:
    """A restart from a snapshot, as far as the learning rate goes."""

    attempt: int
    asked: float
    """Scale that the attempt was asked for."""
    parent_asked: float
    """Scale of the attempt that wrote the snapshot."""
    reported_scale: float | None = None
    """``rl_lr_scale`` of the attempt."""
    rate: float | None = None
    """First learning rate that the attempt reported."""
    parent_rate: float | None = None
    """Learning rate at the snapshot's step, in the attempt that wrote it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """What the audit reads: one attempt, up to its trip."""

    algorithm: str = ""
    signals: Traces = field(default_factory=dict)
    """By name, without the prefix ``rl_``."""
    starts: tuple[Start, ...] = ()
    """Of this attempt and the next one, where they resumed from a snapshot."""
    replay: ReplayFindings | None = None
    replay_problem: str = ""
    last: Mapping[str, float] = field(default_factory=dict)
    """Last reported values from the trainer's own file, for when Prometheus has none."""

    def get(self, name: str) -> Trace | None:
        """The trace of a signal that has samples; None: there is none."""
        found = self.signals.get(name)
        return found if found is not None and len(found) else None


def finding(item: str, reasons: Sequence[str], told: Sequence[str], *, otherwise: Verdict = "pass") -> Finding:
    """Suspicious where there is a reason."""
    evidence = " ".join(text for text in (*reasons, *told) if text)
    return Finding(item=item, verdict="suspicious" if reasons else otherwise, evidence=evidence)


def not_finite(signal: str, trace: Trace) -> str:
    """How much of a signal is NaN or infinite, in words."""
    return f"{trace.bad} of {len(trace)} samples of {signal} are not finite."


def absent(data: RunData, item: str, signal: str) -> Finding:
    """Unknown, because the signal says too little, unless the last value that the trainer kept is not finite."""
    if signal in data.last and not math.isfinite(data.last[signal]):
        words = f"The last value of {signal} in the trainer's file is {data.last[signal]}."
        return Finding(item=item, verdict="suspicious", evidence=words)
    last = f" Last value in the trainer's file: {data.last[signal]:.4g}." if signal in data.last else ""
    few = "too few samples of" if data.get(signal) is not None else "no samples of"
    return Finding(item=item, verdict="unknown", evidence=f"There are {few} {signal}.{last}")
