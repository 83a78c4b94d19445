"""Data of a signal's plot, asked of Prometheus, and which signals an alert speaks of.

Only signals of the catalogue can be asked for, and the run's name is quoted: no request reaches Prometheus as a
query of its own.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fusewire.signals import CATALOGUE, by_name
from fusewire_webhook.watch.prometheus import Prometheus, RuleGroup, matchers

POINTS = 300
"""Points of a plot: more than a screen shows, and few for Prometheus."""
LONGEST_SECONDS = 31 * 86_400.0

_NAMES = {signal.name: re.compile(rf"(?<![a-z]){signal.name}(?![a-z])") for signal in CATALOGUE}


def catalogue() -> list[dict[str, str]]:
    """Every signal that can be plotted, with its help text."""
    return [{"name": signal.name, "help": signal.help} for signal in CATALOGUE]


def known(signal: str) -> bool:
    """Whether the catalogue has it."""
    return signal in by_name()


def named_by_alerts(groups: list[RuleGroup]) -> dict[str, list[str]]:
    """For each alert the catalogue's signals that its expression names, in their order there."""
    named: dict[str, list[str]] = {}
    for rule in (rule for group in groups for rule in group.rules if rule.kind == "alerting"):
        found = {name: match.start() for name, regex in _NAMES.items() if (match := regex.search(rule.query))}
        named.setdefault(rule.name, sorted(found, key=lambda name: found[name]))
    return named


async def plot(
    prometheus: Prometheus, run: str, signal: str, *, start: float, end: float, now: float, scrape_interval: float
) -> dict[str, Any]:
    """The signal of each attempt from ``start`` to ``end`` (Unix seconds of Prometheus' clock).

    Nothing after ``now`` is asked for: Prometheus would go on with the last value for minutes. Points are ``[time,
    value]``; what is not finite comes as ``"NaN"``, ``"Inf"`` or ``"-Inf"``.

    Raises:
        PrometheusError: it did not answer.
    """
    step = max(scrape_interval, (end - start) / POINTS)
    expr = f"max by (attempt) (rl_{signal}{matchers(run=run)})"
    last = min(end, now)
    series = await prometheus.query_range(expr, start=start, end=last, step=step) if last > start else []
    return {
        "run": run,
        "signal": signal,
        "help": by_name()[signal].help,
        "expr": expr,
        "start": start,
        "end": end,
        "step": step,
        "series": [
            {"attempt": one.labels.get("attempt", ""), "points": [[at, _plain(value)] for at, value in one.points]}
            for one in sorted(series, key=lambda one: _number(one.labels.get("attempt", "")))
        ],
    }


def _plain(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Inf" if value > 0 else "-Inf"


def _number(attempt: str) -> int:
    return int(attempt) if attempt.isascii() and attempt.isdecimal() else -1
