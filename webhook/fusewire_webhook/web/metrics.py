"""Every metric of the webhook, declared once: name, help, labels. Renaming one is a breaking change.

What a run *is* and how often it tripped is read from the engine's views at scrape time: it cannot drift from them
and survives a restart of the webhook. What the webhook *does* is counted as it happens. Label sets are closed and
their children exist from the start: the first failure is a visible step from 0 to 1.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fusewire_webhook.breaker.events import (
    AttemptStarted,
    Event,
    FailureClass,
    SnapshotPromoted,
    StopConfirmed,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.watch.deadman import PARTS
from fusewire_webhook.watch.discovery import Outcome
from fusewire_webhook.web.auth import AuthReason
from fusewire_webhook.web.intake import PayloadReason

VERSION = importlib.metadata.version("fusewire")
STATES = ("closed", "open", "half_open", "locked", "completed")
FAILURE_CLASSES: tuple[str, ...] = get_args(FailureClass)

AlertOutcome = Literal["trip", "recorded", "unknown_run", "watchdog", "not_stored", "reconciled"]
Answer = Literal["pass", "fail", "inconclusive", "error"]
IntakeReason = Literal[PayloadReason, AuthReason, "too_large", "not_readable", "not_stored"]


Baselines = Mapping[str, Mapping[str, float]]
"""``{signal: {"median": …, "min": …, "max": …}}``, each in the signal's own unit."""

_STOP_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_RESTART_BUCKETS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """The webhook's own registry and everything that is counted into it.

    Args:
        views: every guarded run, as the engine sees it now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        views: Callable[[], Iterable[RunView]] = tuple,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._clock = clock
        self._opened: dict[str, float] = {}
        declared: dict[str, Any] = {"registry": self.registry}
        self._alerts = Counter(
            "fusewire_alerts_received_total", "Alerts that Alertmanager delivered.", ["outcome"], **declared
        )
        self._intake_errors = Counter(
            "fusewire_intake_errors_total", "Requests that were refused or not stored.", ["reason"], **declared
        )
        self._discovery = Counter(
            "fusewire_discovery_requests_total",
            "Requests for /sd, by what became of them.",
            ["outcome"],
            **declared,
        )
        self._events = Counter("fusewire_journal_events_total", "Events stored durably.", **declared)
        self._verdicts = Counter(
            "fusewire_snapshot_verdicts_total", "Judgements on snapshots.", ["run", "answer"], **declared
        )
        self._stop = Histogram(
            "fusewire_stop_seconds",
            "From the request to stop an attempt to its confirmed end, in seconds.",
            buckets=_STOP_BUCKETS,
            **declared,
        )
        self._restart = Histogram(
            "fusewire_restart_seconds",
            "From the end of normal running to the start of the next attempt, in seconds.",
            buckets=_RESTART_BUCKETS,
            **declared,
        )
        self._degraded = Gauge(
            "fusewire_monitoring_degraded", "1 while a part of the watch is degraded.", ["part"], **declared
        )
        self._watchdog_age = Gauge(
            "fusewire_watchdog_age_seconds", "Since the last beat of the watchdog, in seconds.", **declared
        )
        Gauge("fusewire_build_info", "Version of fusewire; always 1.", ["version"], **declared).labels(VERSION).set(
            1
        )
        self._runs = _Runs(views)
        self.registry.register(self._runs)
        for outcome in get_args(AlertOutcome):
            self._alerts.labels(outcome)
        for reason in get_args(IntakeReason):
            self._intake_errors.labels(reason)
        for outcome in get_args(Outcome):
            self._discovery.labels(outcome)
        for part in PARTS:
            self._degraded.labels(part)

    def alert(self, outcome: AlertOutcome) -> None:
        """One alert was taken in."""
        self._alerts.labels(outcome).inc()

    def intake_error(self, reason: IntakeReason) -> None:
        """One request was refused, or could not be stored."""
        self._intake_errors.labels(reason).inc()

    def discovery(self, outcome: Outcome) -> None:
        """One request for ``/sd``."""
        self._discovery.labels(outcome).inc()

    def verdict(self, run: str, answer: Answer) -> None:
        """The gate judged a snapshot."""
        self._verdicts.labels(run, answer).inc()

    def guard(self, run: str) -> None:
        """Create the children of a run, so that its first failure is a step from 0."""
        for answer in get_args(Answer):
            self._verdicts.labels(run, answer)

    def monitoring(self, degraded: Container[str], watchdog_age_seconds: float | None) -> None:
        """Which parts of the watch are degraded now; an age of None means that no beat ever came."""
        for part in PARTS:
            self._degraded.labels(part).set(part in degraded)
        self._watchdog_age.set(float("nan") if watchdog_age_seconds is None else watchdog_age_seconds)

    def promoted(self, run: str, at: float) -> None:
        """When the run's newest stable snapshot was promoted, in Unix seconds."""
        self._runs.promoted_at[run] = at

    def baselines(self, run: str, attempt: int, values: Baselines) -> None:
        """What the present attempt of the run is compared with, instead of all that was known of it."""
        self._runs.baselines[run] = (attempt, values)

    def stored(self, run: str, _seq: int, event: Event, state: RunState) -> None:
        """An event of a run was stored and folded into ``state``: the engine's listener."""
        self._events.inc()
        if state.phase == "locked":
            self._opened.pop(run, None)
        elif state.phase == "open" and run not in self._opened:
            self._opened[run] = self._clock()
        match event:
            case StopConfirmed():
                self._stop.observe(event.seconds)
            case SnapshotPromoted():
                self.promoted(run, event.at)
            case AttemptStarted():
                opened = self._opened.pop(run, None)
                if opened is not None:
                    self._restart.observe(self._clock() - opened)
            case _:
                pass


class _Runs(Collector):
    """What every run is now, read from the engine's views when Prometheus asks."""

    def __init__(self, views: Callable[[], Iterable[RunView]]) -> None:
        self._views = views
        self.promoted_at: dict[str, float] = {}
        self.baselines: dict[str, tuple[int, Baselines]] = {}

    def describe(self) -> Iterable[Metric]:
        """The families without samples: registering must not ask the engine."""
        return _Families().all()

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        for view in self._views():
            families.add(view)
            if view.promoted:
                families.promoted_step.add_metric([view.run], view.promoted[-1]["step"])
                if view.run in self.promoted_at:
                    families.promoted_at.add_metric([view.run], self.promoted_at[view.run])
            if view.run in self.baselines:
                families.add_baselines(view.run, *self.baselines[view.run])
        yield from families.all()


class _Families:
    """The metric families of one scrape."""

    def __init__(self) -> None:
        self.state = GaugeMetricFamily(
            "fusewire_run_state", "1 for the state that the run's breaker is in.", labels=["run", "state"]
        )
        self.paused = _gauge("fusewire_run_paused", "1 while somebody holds the automatic actions of the run.")
        self.attempt = _gauge("fusewire_attempt", "Number of the run's newest attempt; -1 before the first.")
        self.lr_scale = _gauge("fusewire_lr_scale_asked", "Learning-rate scale that the attempt was asked for.")
        self.divergences = _gauge(
            "fusewire_divergences_in_incident", "Divergences in the open incident; 0 outside an incident."
        )
        self.promoted_step = _gauge("fusewire_snapshot_promoted_step", "Step of the newest stable snapshot.")
        self.promoted_at = _gauge(
            "fusewire_snapshot_promoted_timestamp_seconds",
            "When the newest stable snapshot was promoted, in Unix seconds.",
        )
        self.baseline = GaugeMetricFamily(
            "fusewire_baseline",
            "Statistic of a signal over the validated window of the run's stable snapshot.",
            labels=["run", "attempt", "signal", "stat"],
        )
        self.trips = CounterMetricFamily(
            "fusewire_trips", "Times that the breaker of the run opened.", labels=["run", "failure_class"]
        )
        self.restarts = CounterMetricFamily(
            "fusewire_restarts", "Attempts started after a failure.", labels=["run", "failure_class"]
        )
        self.lockouts = CounterMetricFamily("fusewire_lockouts", "Times that the run was locked.", labels=["run"])

    def all(self) -> list[Metric]:
        return list(vars(self).values())

    def add(self, view: RunView) -> None:
        run = [view.run]
        for state in STATES:
            self.state.add_metric([view.run, state], view.state == state)
        self.paused.add_metric(run, view.paused)
        self.attempt.add_metric(run, view.attempt)
        self.lr_scale.add_metric(run, view.lr_scale)
        self.divergences.add_metric(run, view.divergences)
        for failure_class in FAILURE_CLASSES:
            self.trips.add_metric([view.run, failure_class], view.trips.get(failure_class, 0))
            self.restarts.add_metric([view.run, failure_class], view.restarts.get(failure_class, 0))
        self.lockouts.add_metric(run, view.lockouts)

    def add_baselines(self, run: str, attempt: int, values: Baselines) -> None:
        """Baselines carry the attempt that is judged by them, not the one that made them."""
        for signal, statistics in values.items():
            for stat, value in statistics.items():
                self.baseline.add_metric([run, str(attempt), signal, stat], value)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["run"])
