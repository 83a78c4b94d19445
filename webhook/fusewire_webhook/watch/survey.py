"""One look at everything: a handful of questions to Prometheus that answer for all runs at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.gate import TRIPS, step_query, updates_query
from fusewire_webhook.watch.prometheus import Prometheus, Sample
from fusewire_webhook.watch.triprules import RuleSet, inspect


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What Prometheus said about all runs."""

    now: float
    """Monotonic seconds before the first question."""
    rules: RuleSet | None = None
    server: str = ""
    """Changes when Prometheus restarts or reloads its configuration."""
    steps: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Last ``rl_step`` by run and attempt, of those that were scraped lately."""
    updates: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Updates that were reported, likewise: an attempt that has only attached is among them, with 0."""
    alerts: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """Active trip alerts by run; hold alerts among them as pending."""
    errors: tuple[str, ...] = ()
    """Questions that were not answered."""
    degraded: tuple[str, ...] = ()
    """What the dead man's switch says against the watch."""

    @property
    def healthy(self) -> bool:
        """Is nothing to be said against the watch?"""
        return not (self.errors or self.degraded or self.rules is None or self.rules.problems)

    def active(self, run: str, attempt: int, state: str) -> tuple[str, ...]:
        """Trip alerts in this state that speak of the attempt, or of the run without an attempt."""
        return tuple(
            sample.labels.get("alertname", "")
            for sample in self.alerts.get(run, ())
            if sample.labels.get("attempt", "") in {"", str(attempt)} and sample.labels.get("alertstate") == state
        )


async def survey(
    prometheus: Prometheus,
    *,
    scrape_interval: float,
    degraded: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Survey:
    """Ask once. Never raises for an unanswered question: it stands in ``errors``."""
    now = clock()
    try:
        runtime = await prometheus.runtime()
        at = await prometheus.now()
        rules = inspect(await prometheus.rules(), now=at)
        steps = await prometheus.query(step_query(scrape_interval))
        updates = await prometheus.query(updates_query(scrape_interval))
        alerts = await prometheus.query(TRIPS)
    except PrometheusError as error:
        return Survey(now=now, errors=(str(error),), degraded=degraded)
    return Survey(
        now=now,
        rules=rules,
        server=f"{runtime.start_time} {runtime.last_config_time}",
        steps=_by_attempt(steps),
        updates=_by_attempt(updates),
        alerts=_by_run(alerts),
        degraded=degraded,
    )


def _by_attempt(samples: Iterable[Sample]) -> dict[tuple[str, int], float]:
    return {
        (sample.labels.get("run", ""), int(text)): sample.value
        for sample in samples
        if (text := sample.labels.get("attempt", "")).isdecimal() and len(text) < 10
    }


def _by_run(samples: Iterable[Sample]) -> dict[str, tuple[Sample, ...]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.labels.get("run", ""), []).append(sample)
    return {run: tuple(group) for run, group in found.items()}
