"""How the rows of a log become time: the exporter and the rules live in seconds, most logs do not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fusewire_webhook.backtest.model import Floats, LogError, RunLog

MOST_SCRAPES = 100_000
"""More would take promtool many minutes for one run."""


@dataclass(frozen=True, kw_only=True)
class RowClock:
    """``rows``: each row lies one scrape after the last. ``log``: the log's time. ``fixed``: a given step time."""

    kind: str = "rows"
    step_seconds: float = 1.0
    """Of ``fixed``."""

    def __str__(self) -> str:
        return {"rows": "one row = one scrape", "log": "the log's own time"}.get(
            self.kind, f"one row = {self.step_seconds:g} s"
        )


def parse_clock(text: str) -> RowClock:
    """``rows``, ``log``, or the seconds that a row takes.

    Raises:
        ValueError: ``text`` is none of them.
    """
    if text in ("rows", "log"):
        return RowClock(kind=text)
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no number of seconds")
    return RowClock(kind="fixed", step_seconds=seconds)


def times(log: RunLog, clock: RowClock, *, scrape_seconds: float) -> Floats:
    """Seconds at which each row was reported, from 0 on, not decreasing.

    Raises:
        LogError: the log has no usable time, or it would take too many scrapes.
    """
    if clock.kind == "log":
        seconds = _own_times(log)
    else:
        step = scrape_seconds if clock.kind == "rows" else clock.step_seconds
        seconds = np.arange(log.rows, dtype=np.float64) * np.float64(step)
    if seconds[-1] / scrape_seconds > MOST_SCRAPES:
        raise LogError(
            f"{log.id}: {log.rows} rows make {seconds[-1] / scrape_seconds:,.0f} scrapes, more than "
            f"{MOST_SCRAPES:,}; several rows fit into one scrape with --time SECONDS, such as --time "
            f"{_fitting(log.rows, scrape_seconds):g} (patience in updates stays exact)"
        )
    return seconds


def _fitting(rows: int, scrape_seconds: float) -> float:
    """A step time with one significant digit that makes about a tenth of the scrapes that are allowed."""
    seconds = MOST_SCRAPES / 10 * scrape_seconds / rows
    return float(f"{seconds:.0e}")


def _own_times(log: RunLog) -> Floats:
    if log.seconds is None or not np.isfinite(log.seconds).any():
        raise LogError(f"{log.id}: has no time of its own; use --time rows or --time SECONDS")
    known = np.isfinite(log.seconds)
    # A row without a time happened with the row before it.
    latest = np.maximum.accumulate(np.where(known, np.arange(log.rows), -1))
    seconds = np.where(latest >= 0, log.seconds[np.maximum(latest, 0)], log.seconds[known][0])
    back = np.flatnonzero(np.diff(seconds) < 0)
    if len(back):
        raise LogError(f"{log.id}: its time goes back at row {back[0] + 1}; use --time rows or --time SECONDS")
    return np.asarray(seconds - seconds[0], dtype=np.float64)
