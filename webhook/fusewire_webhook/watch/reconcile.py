"""Finds trip alerts that fire in Prometheus and were not delivered: after an outage of webhook or Alertmanager.

What fires now for a live attempt is acted on like a delivered alert; what has fired and is over is only recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from fusewire_webhook.breaker.events import AlertReported, AlertStatus, Command, Event
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.errors import PrometheusError, WebhookError
from fusewire_webhook.watch.prometheus import ActiveAlert, Prometheus, Sample, duration

log = logging.getLogger(__name__)

START_LOOKBACK_SECONDS = 900.0
"""How far back alerts that are over are looked for when the webhook starts."""

Key = tuple[str, int, str]
"""Run, attempt, alert name: an attempt trips at most once, so ``startsAt`` says nothing."""


class Runs(Protocol):
    """What reconciliation needs of the engine."""

    def views(self) -> Iterable[RunView]: ...

    def submit(self, run: str, event: Event) -> Awaitable[Any]: ...


class Reconciler:
    """Compares what fires with what was delivered.

    Args:
        interval: seconds between looks.
        confirm: seconds that Alertmanager gets to deliver what was just found firing.
        silences: reads what people have silenced and pauses what is: asked before anything is reported, as what
            Alertmanager mutes is not delivered either.
        on_found: told the run of each alert that had not been delivered.
    """

    def __init__(
        self,
        engine: Runs,
        *,
        prometheus: Prometheus,
        interval: float = 10.0,
        confirm: float = 2.0,
        silences: Callable[[], Awaitable[object]] | None = None,
        on_found: Callable[[str], object] | None = None,
    ) -> None:
        self._engine = engine
        self._prometheus = prometheus
        self._interval = interval
        self._confirm = confirm
        self._silences = silences
        self._on_found = on_found
        self._delivered: set[Key] = set()
        self._lookback = START_LOOKBACK_SECONDS

    def stored(self, run: str, event: Event) -> None:
        """An event of a run was journaled: the engine's listener."""
        if isinstance(event, AlertReported) and event.action == "trip" and event.attempt is not None:
            self._delivered.add((run, event.attempt, event.alertname))
        elif isinstance(event, Command) and event.verb in {"resume", "reset"}:
            # what was delivered during a pause or a lock was not acted on: it counts if it still fires
            self._delivered = {key for key in self._delivered if key[0] != run}

    async def run(self) -> None:
        """Look at once and then again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except PrometheusError as error:
                log.warning("what fires could not be compared with what was delivered: %s", error)
            except WebhookError as error:
                log.error("what fires is not acted on yet: %s", error)
            except Exception:
                log.exception("a look at the firing alerts failed")
            await asyncio.sleep(self._interval)

    async def look(self) -> int:
        """Compare once; the number of alerts that had not been delivered.

        Raises:
            PrometheusError: Prometheus did not answer.
            WebhookError: a silence was found and its pause could not be stored; nothing was reported.
        """
        views = {view.run: view for view in self._engine.views()}
        self._delivered = {key for key in self._delivered if key[0] in views and key[1] >= views[key[0]].attempt}
        fired = await self._fired()
        if not self._undelivered(fired, views):
            self._lookback = 3 * self._interval
            return 0
        await asyncio.sleep(self._confirm)
        await self._mind_silences()
        views = {view.run: view for view in self._engine.views()}
        fired, firing = await self._fired(), await self._prometheus.query(_FIRING)
        now_firing = {_identity(sample.labels) for sample in firing}
        annotations = {_identity(alert.labels): alert for alert in await self._prometheus.alerts()}
        found = self._undelivered(fired, views)
        reports = []
        for (run, attempt, _), sample in found.items():
            identity = _identity(sample.labels)
            status: AlertStatus = "firing" if identity in now_firing else "resolved"
            reports.append(self._report(run, attempt, sample, status, annotations.get(identity)))
        await asyncio.gather(*reports)
        self._lookback = 3 * self._interval
        return len(found)

    async def _mind_silences(self) -> None:
        """Where Alertmanager does not answer nothing is known to be silenced: its outage disarms no run."""
        if self._silences is not None:
            try:
                await self._silences()
            except PrometheusError as error:
                log.warning("what fires is acted on without knowing whether it is silenced: %s", error)

    async def _fired(self) -> list[Sample]:
        return await self._prometheus.query(
            f'last_over_time(ALERTS{{action="trip",alertstate="firing"}}[{duration(self._lookback)}])'
        )

    def _undelivered(self, fired: Iterable[Sample], views: Mapping[str, RunView]) -> dict[Key, Sample]:
        """Alerts of live attempts that have not tripped; one without an attempt speaks of the present one."""
        found: dict[Key, Sample] = {}
        for sample in fired:
            view = views.get(sample.labels.get("run", ""))
            if view is None or not view.live or view.tripped:
                continue
            label = sample.labels.get("attempt", "")
            key = (view.run, view.attempt, sample.labels.get("alertname", ""))
            if label in {"", str(view.attempt)} and key not in self._delivered:
                found[key] = sample
        return found

    async def _report(
        self, run: str, attempt: int, sample: Sample, status: AlertStatus, alert: ActiveAlert | None
    ) -> None:
        labels = dict(_identity(sample.labels))
        annotations = dict(alert.annotations) if alert is not None else {}
        event = AlertReported(
            alertname=labels.get("alertname", ""),
            status=status,
            attempt=attempt if labels.get("attempt") else None,
            action="trip",
            failure_class=labels.get("class", ""),
            severity=labels.get("severity", ""),
            summary=annotations.get("summary", ""),
            labels=labels,
            annotations=annotations,
            starts_at=alert.active_at if alert is not None else "",
            source="reconcile",
        )
        log.warning("%s of run %s was %s and had not been delivered", event.alertname, run, status)
        try:
            await self._engine.submit(run, event)
        except WebhookError as error:
            log.error("%s of run %s could not be stored: %s", event.alertname, run, error)
            return
        self._delivered.add((run, attempt, event.alertname))
        if self._on_found is not None:
            self._on_found(run)


_FIRING = 'ALERTS{action="trip",alertstate="firing"}'


def _identity(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The labels of an alert, without those that the series ``ALERTS`` adds."""
    return frozenset((name, value) for name, value in labels.items() if name not in {"__name__", "alertstate"})
