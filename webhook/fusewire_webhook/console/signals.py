"""Data of a signal's plot, asked of Prometheus, and which signals an alert speaks of.

Only signals of the catalogue and the step can be asked for, and the run's name is quoted: no request reaches
Prometheus as a query of its own.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fusewire.signals import CATALOGUE
from fusewire_webhook.watch.prometheus import Prometheus, RuleGroup, matchers

POINTS = 300
"""Points of a plot: more than a screen shows, and few for Prometheus."""
LONGEST_SECONDS = 31 * 86_400.0

_PLOTTED = {signal.name: signal.help for signal in CATALOGUE} | {"step": "Policy update that the trainer is at."}
"""Signals of the catalogue, and what shows a stall: ``rl_<name>``, with the words for it."""
_NAMES = {name: re.compile(rf"(?<![a-z]){name}(?![a-z])") for name in _PLOTTED}


def catalogue() -> list[dict[str, str]]:
    """Every signal that can be plotted, with its help text."""
    return [{"name": name, "help": words} for name, words in _PLOTTED.items()]


def known(signal: str) -> bool:
    """Whether it can be plotted."""
    return signal in _PLOTTED


def named_by_alerts(groups: list[RuleGroup]) -> dict[str, list[str]]:
    """For each alert the signals that its expression names and that can be plotted, in their order there."""
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
        "help": _PLOTTED[signal],
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
