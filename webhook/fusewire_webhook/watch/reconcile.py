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
from fusewire_webhook.watch.prometheus import ActiveAlert, Prometheus, duration
from fusewire_webhook.watch.trouble import Trouble

log = logging.getLogger(__name__)

START_LOOKBACK_SECONDS = 900.0
"""How far back alerts that are over are looked for when the webhook starts."""

Key = tuple[str, int, str]
"""Run, attempt, alert name: an attempt trips at most once. ``startsAt`` matters only of what was dismissed."""

Identity = frozenset[tuple[str, str]]
"""The labels of one series of an alert."""

_FIRING = 'ALERTS{action="trip",alertstate="firing"}'


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
        self._held: set[Key] = set()
        """Of those, what a pause or a lock held: since it ended they count as not delivered."""
        self._recorded: set[Key] = set()
        """Alerts of which the journal has that they are over; they may fire again."""
        self._began: dict[Key, float] = {}
        """When what was reported last had begun, as it said: Unix seconds."""
        self._lookback = START_LOOKBACK_SECONDS
        self._trouble = Trouble(log, over="what fires is compared with what was delivered again")

    def stored(self, run: str, event: Event) -> None:
        """An event of a run was journaled: the engine's listener."""
        if isinstance(event, AlertReported) and event.action == "trip" and event.attempt is not None:
            self._keep((run, event.attempt, event.alertname), event)
        elif isinstance(event, Command) and event.verb in {"resume", "reset"}:
            # what was delivered during a pause or a lock was not acted on: it counts if it still fires
            held = {key for key in self._delivered if key[0] == run}
            self._delivered -= held
            if not event.dismiss:
                self._held |= held

    async def run(self) -> None:
        """Look at once and then again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except PrometheusError as error:
                self._trouble.tell(
                    logging.WARNING, "what fires could not be compared with what was delivered: %s", error
                )
            except WebhookError as error:
                self._trouble.tell(logging.ERROR, "what fires is not acted on yet: %s", error)
            except Exception as error:
                self._trouble.tell(logging.ERROR, "a look at the firing alerts failed: %s", error, trace=True)
            else:
                self._trouble.end()
            await asyncio.sleep(self._interval)

    async def look(self) -> int:
        """Compare once; the number of alerts that had not been delivered.

        Raises:
            PrometheusError: Prometheus did not answer.
            WebhookError: a silence was found and its pause could not be stored; nothing was reported.
        """
        views = {view.run: view for view in self._engine.views()}
        for keys in (self._delivered, self._recorded, self._held):
            keys -= {key for key in keys if _is_past(key, views)}
        self._began = {key: at for key, at in self._began.items() if not _is_past(key, views)}
        if not await self._undelivered():
            self._lookback = 3 * self._interval
            return 0
        await asyncio.sleep(self._confirm)
        await self._mind_silences()
        found = await self._undelivered()
        annotations = {_identity(alert.labels): alert for alert in await self._prometheus.alerts()} if found else {}
        reports = [
            self._report(run, attempt, labels, status, annotations.get(labels))
            for (run, attempt, _), (labels, status) in found.items()
        ]
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

    async def _undelivered(self) -> dict[Key, tuple[Identity, AlertStatus]]:
        """Trip alerts of live attempts that have not tripped; one without an attempt speaks of the present one.

        Of the series of one alert, one that fires counts.
        """
        lately = f"last_over_time({_FIRING}[{duration(self._lookback)}])"
        fired = [_identity(sample.labels) for sample in await self._prometheus.query(lately)]
        firing = {_identity(sample.labels) for sample in await self._prometheus.query(_FIRING)}
        views = {view.run: view for view in self._engine.views()}
        found: dict[Key, tuple[Identity, AlertStatus]] = {}
        anew = await self._begun_anew(firing, views)
        for identity in sorted(fired, key=firing.__contains__):
            labels = dict(identity)
            view = views.get(labels.get("run", ""))
            if view is None or not view.live or view.tripped:
                continue
            key = (view.run, view.attempt, labels.get("alertname", ""))
            over = identity not in firing
            known = key in self._delivered or (over and key in self._recorded)
            if not over and _dismissal(view, key[2]) is not None:
                known = anew.get(identity, 0.0) <= self._began.get(key, 0.0)
            if labels.get("attempt", "") in {"", str(view.attempt)} and not known:
                found[key] = (identity, "resolved" if over else "firing")
        return found

    async def _begun_anew(
        self, firing: Iterable[Identity], views: Mapping[str, RunView]
    ) -> Mapping[Identity, float]:
        """Of the dismissed alerts that fire, other occurrences than the dismissed ones, and when they began.

        That is certain only while this Prometheus has held the dismissed one from its beginning: a restart lets
        what goes on begin again, and a reload may. What is not certain is never reported here.
        """
        dismissed = {
            identity: one
            for identity in firing
            if (view := views.get(dict(identity).get("run", ""))) is not None
            and (one := _dismissal(view, dict(identity).get("alertname", ""))) is not None
            and one["began"] is not None
        }
        if not dismissed:
            return {}
        changed = (await self._prometheus.runtime()).changed_at
        began = {_identity(alert.labels): alert.began for alert in await self._prometheus.alerts()}
        return {
            identity: began[identity]
            for identity, one in dismissed.items()
            if changed <= one["began"] and began.get(identity, -1.0) > one["until"]
        }

    def _keep(self, key: Key, event: AlertReported) -> None:
        (self._delivered if event.status == "firing" else self._recorded).add(key)
        if event.status == "firing" and event.began is not None:
            self._began[key] = max(event.began, self._began.get(key, 0.0))

    async def _report(
        self, run: str, attempt: int, identity: Identity, status: AlertStatus, alert: ActiveAlert | None
    ) -> None:
        labels = dict(identity)
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
        key = (run, attempt, event.alertname)
        if key in self._held:
            log.warning("%s of run %s, held by a pause or a lock that is over, is %s", event.alertname, run, status)
        else:
            log.warning("%s of run %s was %s and had not been delivered", event.alertname, run, status)
        try:
            await self._engine.submit(run, event)
        except WebhookError as error:
            log.error("%s of run %s could not be stored: %s", event.alertname, run, error)
            return
        self._keep(key, event)
        if self._on_found is not None:
            self._on_found(run)


def _is_past(key: Key, views: Mapping[str, RunView]) -> bool:
    return key[0] not in views or key[1] < views[key[0]].attempt


def _dismissal(view: RunView, alert: str) -> Mapping[str, Any] | None:
    """What a person dismissed of an alert; None: nothing."""
    return next((one for one in view.dismissed if one["alert"] == alert), None)


def _identity(labels: Mapping[str, str]) -> Identity:
    """The labels of an alert, without those that the series ``ALERTS`` adds."""
    return frozenset((name, value) for name, value in labels.items() if name not in {"__name__", "alertstate"})
