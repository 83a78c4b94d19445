"""Baselines: how each signal behaved over the window that validated a snapshot.

A restarted attempt's own series have no past, so relative rules compare with these (docs/architecture.md, section
3). They are frozen in the snapshot's ``promotion.json`` and exported as ``fusewire_baseline``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fusewire_webhook.watch.prometheus import Prometheus, duration, label_value

Baselines = dict[str, dict[str, float]]
"""``{signal: {"median": …, "min": …, "max": …}}`` in the signal's own unit."""


def baseline_queries(run: str, attempt: int, signals: Iterable[str], seconds: float, step: float) -> dict[str, str]:
    """PromQL of each statistic over the last ``seconds``; ``step`` is the scrape interval in seconds.

    Extremes come from the exporter's folds, which have seen every update; the median is one of the scraped values.
    """
    names = "|".join(sorted(signals))
    where = f"run={label_value(run)},attempt={label_value(str(attempt))}"
    window = f"[{duration(seconds)}:{duration(max(step, seconds / 200))}]"

    def named(suffix: str, extra: str = "") -> str:
        series = f"{{__name__=~{label_value(f'rl_({names}){suffix}')},{where}{extra}}}"
        return f'label_replace({series}, "signal", "$1", "__name__", {label_value(f"rl_(.+?){suffix}")})'

    first = ',steps="1"'
    return {
        "median": f"avg by (signal) (quantile_over_time(0.5, {named('')}{window}))",
        "min": f"min by (signal) (min_over_time({named('_run_max', first)}{window}))",
        "max": f"max by (signal) (max_over_time({named('_run_min', first)}{window}))",
    }


async def ask_baselines(
    prometheus: Prometheus, *, run: str, attempt: int, signals: Iterable[str], seconds: float, step: float
) -> Baselines:
    """The statistics of the validated window; a signal without a finite value for one of them lacks that one.

    Raises:
        PrometheusError: a question was not answered.
    """
    names = sorted(signals)
    found: Baselines = {}
    if not names:
        return found
    for stat, query in baseline_queries(run, attempt, names, seconds, step).items():
        for sample in await prometheus.query(query):
            signal = sample.labels.get("signal", "")
            if signal and math.isfinite(sample.value):
                found.setdefault(signal, {})[stat] = sample.value
    return found


def clean_baselines(values: Mapping[str, Any]) -> Baselines:
    """Baselines as a ``promotion.json`` holds them; what is not a finite number is left out."""
    return {
        str(signal): {str(stat): float(value) for stat, value in stats.items() if _finite(value)}
        for signal, stats in values.items()
        if isinstance(stats, Mapping)
    }


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
