"""A silence on a trip alert means *pause*: read from Alertmanager, journaled with its author and comment."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from fusewire_webhook.breaker.events import Command, Event
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.errors import PrometheusError, WebhookError
from fusewire_webhook.watch.prometheus import (
    Alertmanager,
    Labels,
    ManagedAlert,
    Matcher,
    Prometheus,
    RuleGroup,
    Silence,
)
from fusewire_webhook.watch.triprules import is_trip
from fusewire_webhook.watch.trouble import Trouble

log = logging.getLogger(__name__)

SOURCE = "silence"

T = TypeVar("T")


class Runs(Protocol):
    """What the silences need of the engine."""

    def views(self) -> Iterable[RunView]: ...

    def submit(self, run: str, event: Event) -> Awaitable[Any]: ...


@dataclass(frozen=True, kw_only=True)
class Trips:
    """What a silence can be about."""

    expected: tuple[Labels, ...] = ()
    """The labels that each trip rule gives its alerts, as far as the rule says."""
    active: Mapping[str, Sequence[Labels]] = field(default_factory=dict)
    """By run: the trip alerts that are pending or firing, with all labels that they have in Prometheus."""
    managed: Mapping[str, Sequence[ManagedAlert]] = field(default_factory=dict)
    """By run: the trip alerts that Alertmanager holds. It knows labels that Prometheus adds on the way."""


class SilenceWatch:
    """Pauses runs whose trip alerts are silenced and resumes them when the silence ends.

    Each silence is a pause of its own, and ends only that one; a pause that a person has ended stays ended for
    that silence. While Alertmanager or Prometheus does not answer, nothing changes.

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
        self._turn = asyncio.Lock()
        self._trouble = Trouble(log, over="the silences are read again")

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except PrometheusError as error:
                self._trouble.tell(logging.WARNING, "the silences could not be read: %s", error)
            except WebhookError as error:
                self._trouble.tell(logging.ERROR, "a silence could not be journaled: %s", error)
            except Exception as error:
                self._trouble.tell(logging.ERROR, "a look at the silences failed: %s", error, trace=True)
            else:
                self._trouble.end()
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Read the silences once and journal what has changed.

        Raises:
            PrometheusError: Alertmanager or Prometheus did not answer.
            WebhookError: a pause or resume could not be stored.
        """
        async with self._turn:
            active = [silence for silence in await self._alertmanager.silences() if silence.state == "active"]
            trips = await self._trips() if active else Trips()
            for view in self._engine.views():
                await self._compare(view, silences_of(view, active, trips))

    async def _trips(self) -> Trips:
        return Trips(
            expected=trip_labels(await self._prometheus.rules()),
            active=_by_run((alert.labels for alert in await self._prometheus.alerts()), lambda labels: labels),
            managed=_by_run(await self._alertmanager.alerts(), lambda alert: alert.labels),
        )

    async def _compare(self, view: RunView, silences: Sequence[Silence]) -> None:
        held = {pause["silence"]: pause for pause in view.pauses if pause["source"] == SOURCE}
        for silence in silences:
            if silence.id not in held and silence.id not in view.lifted and not view.finished:
                why = silence.comment or f"silence {silence.id} without a comment"
                await self._submit(view, "pause", silence.created_by or "unknown", why, silence.id)
        lasting = {silence.id for silence in silences}
        for identifier, pause in held.items():
            if identifier not in lasting:
                await self._submit(view, "resume", pause["who"], "the silence has ended", identifier)

    async def _submit(
        self, view: RunView, verb: Literal["pause", "resume"], who: str, why: str, silence: str
    ) -> None:
        log.warning("run %s: %s by a silence of %s: %s", view.run, verb, who, why)
        command = Command(verb=verb, who=who, why=why, source=SOURCE, silence=silence)
        await self._engine.submit(view.run, command)


def trip_labels(groups: Iterable[RuleGroup]) -> tuple[Labels, ...]:
    """The labels that each trip rule gives its alerts, its name among them."""
    return tuple(
        {**rule.labels, "alertname": rule.name} for group in groups for rule in group.rules if is_trip(rule)
    )


def silences_of(view: RunView, silences: Iterable[Silence], trips: Trips) -> list[Silence]:
    """The silences that mute a trip alert of the run's present attempt, or would mute one that is yet to come.

    Labels that only the alert itself has (``signal``, ``instance``, an external label) are matched once there is
    such an alert. A silence that has paused the run goes on doing so when the alert is over: of its matchers only
    those on labels that are known beforehand are asked then.
    """
    about = {"run": view.run, "attempt": str(view.attempt), "algorithm": view.algorithm, "job": "fusewire"}
    expected = [{**about, **labels} for labels in trips.expected]
    active = [labels for labels in trips.active.get(view.run, ()) if _speaks_of(labels, view)]
    muting = {
        identifier
        for alert in trips.managed.get(view.run, ())
        if _speaks_of(alert.labels, view)
        for identifier in alert.silenced_by
    }
    held = {pause["silence"] for pause in view.pauses if pause["source"] == SOURCE}
    return [
        silence
        for silence in silences
        if silence.matchers
        and (
            silence.id in muting
            or any(_mutes(silence.matchers, labels) for labels in (*expected, *active))
            or (silence.id in held and any(_mutes(_known(silence, labels), labels) for labels in expected))
        )
    ]


def matches(matcher: Matcher, labels: Labels) -> bool:
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


def _mutes(matchers: Iterable[Matcher], labels: Labels) -> bool:
    return all(matches(matcher, labels) for matcher in matchers)


def _known(silence: Silence, labels: Labels) -> list[Matcher]:
    return [matcher for matcher in silence.matchers if matcher.name in labels]


def _speaks_of(labels: Labels, view: RunView) -> bool:
    return labels.get("attempt", "") in {"", str(view.attempt)}


def _by_run(alerts: Iterable[T], labels_of: Callable[[T], Labels]) -> dict[str, list[T]]:
    """The trip alerts among them, by the run that they speak of."""
    found: dict[str, list[T]] = {}
    for alert in alerts:
        labels = labels_of(alert)
        if labels.get("action") == "trip":
            found.setdefault(labels.get("run", ""), []).append(alert)
    return found
