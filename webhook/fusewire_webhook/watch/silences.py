"""A silence on a trip alert means *pause*: read from Alertmanager, journaled with its author and comment."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fusewire_webhook.breaker.events import Command, Event
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.errors import PrometheusError, WebhookError
from fusewire_webhook.watch.prometheus import Alertmanager, Matcher, Prometheus, RuleGroup, Silence
from fusewire_webhook.watch.triprules import is_trip

log = logging.getLogger(__name__)

SOURCE = "silence"


class Runs(Protocol):
    """What the silences need of the engine."""

    def views(self) -> Iterable[RunView]: ...

    def submit(self, run: str, event: Event) -> Awaitable[Any]: ...


class SilenceWatch:
    """Pauses runs whose trip alerts are silenced and resumes them when the silence ends.

    Only a pause that came from a silence is ended by one. While Alertmanager or Prometheus does not answer, nothing
    changes.

    Args:
        interval: seconds between looks.
    """

    def __init__(
        self, engine: Runs, *, alertmanager: Alertmanager, prometheus: Prometheus, interval: float = 5.0
    ) -> None:
        self._engine = engine
        self._alertmanager = alertmanager
        self._prometheus = prometheus
        self._interval = interval

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except PrometheusError as error:
                log.warning("the silences could not be read: %s", error)
            except WebhookError as error:
                log.error("a silence could not be journaled: %s", error)
            except Exception:
                log.exception("a look at the silences failed")
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Read the silences once and journal what has changed.

        Raises:
            PrometheusError: Alertmanager or Prometheus did not answer.
            WebhookError: a pause or resume could not be stored.
        """
        active = [silence for silence in await self._alertmanager.silences() if silence.state == "active"]
        alerts = trip_labels(await self._prometheus.rules())
        for view in self._engine.views():
            silence = first_match(active, alerts, view)
            held = [pause for pause in view.pauses if pause.get("source") == SOURCE]
            if silence is not None and not held and not view.finished:
                why = silence.comment or f"silence {silence.id} without a comment"
                await self._submit(view, "pause", silence.created_by or "unknown", why)
            elif silence is None and held:
                await self._submit(view, "resume", held[0].get("who", "unknown"), "the silence has ended")

    async def _submit(self, view: RunView, verb: str, who: str, why: str) -> None:
        log.warning("run %s: %s by a silence of %s: %s", view.run, verb, who, why)
        command = Command(verb="pause" if verb == "pause" else "resume", who=who, why=why, source=SOURCE)
        await self._engine.submit(view.run, command)


def trip_labels(groups: Sequence[RuleGroup]) -> tuple[dict[str, str], ...]:
    """The labels that each trip rule gives its alerts, its name among them."""
    return tuple(
        {**rule.labels, "alertname": rule.name} for group in groups for rule in group.rules if is_trip(rule)
    )


def first_match(silences: Iterable[Silence], alerts: Iterable[Mapping[str, str]], view: RunView) -> Silence | None:
    """The first silence that would mute one of the trip alerts of the run's present attempt."""
    about = {"run": view.run, "attempt": str(view.attempt), "algorithm": view.algorithm, "job": "fusewire"}
    labelled = [{**about, **labels} for labels in alerts]
    for silence in silences:
        if silence.matchers and any(all(matches(m, labels) for m in silence.matchers) for labels in labelled):
            return silence
    return None


def matches(matcher: Matcher, labels: Mapping[str, str]) -> bool:
    """Alertmanager's rule: an absent label counts as empty, a regular expression must match the whole value."""
    value = labels.get(matcher.name, "")
    if not matcher.is_regex:
        return (value == matcher.value) == matcher.is_equal
    try:
        hit = re.fullmatch(matcher.value, value) is not None
    except re.error as error:
        log.warning("the silence matcher %s=~%r is not understood here: %s", matcher.name, matcher.value, error)
        return False
    return hit == matcher.is_equal
