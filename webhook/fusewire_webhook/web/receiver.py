"""``POST /alerts``: Alertmanager's deliveries become durable events.

200 only once every alert of the body is stored; 503 where one could not be (Alertmanager sends the body again, and
what was stored already is then a repetition, which is harmless); 4xx for garbage (Alertmanager drops it). An alert
of no known run is counted, logged and announced, and answered 200: a repetition would not make it known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from aiohttp import web

from fusewire_webhook.breaker.events import Event
from fusewire_webhook.errors import JournalError, PayloadError, UnknownRunError
from fusewire_webhook.web.intake import Alert, PayloadReason, parse
from fusewire_webhook.web.metrics import Metrics

log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 16 * 1024 * 1024
_MOST_STRANGERS = 100


class Store(Protocol):
    """What the receiver needs of the engine."""

    def submit(self, run: str, event: Event) -> Awaitable[int]:
        """Store an event durably and return its number.

        Raises:
            UnknownRunError: no such run is guarded.
            JournalError: it could not be stored.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """An alert that named no run which is guarded here."""

    run: str
    alertname: str
    count: int
    last_at: float
    """Unix seconds."""


class Strangers:
    """Alerts of unknown runs, per run and alert name; the newest hundred kinds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Stranger] = {}
        self.version = 0
        """Grows with each alert."""

    def add(self, alert: Alert, *, at: float) -> bool:
        """Count one; true where it is the first of its kind."""
        self.version += 1
        key = (alert.run[:200], alert.name[:200])
        before = self._seen.pop(key, None)
        self._seen[key] = Stranger(
            run=key[0], alertname=key[1], count=1 + (before.count if before else 0), last_at=at
        )
        if len(self._seen) > _MOST_STRANGERS:
            del self._seen[next(iter(self._seen))]
        return before is None

    def as_json(self) -> list[dict[str, Any]]:
        """For the API, the newest first."""
        return [asdict(stranger) for stranger in reversed(self._seen.values())]


class Receiver:
    """Takes the deliveries.

    Args:
        beat: called with the value of a firing ``Watchdog`` alert (the dead man's switch).
        clock: Unix seconds.
    """

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        beat: Callable[[float], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._beat = beat
        self._clock = clock
        self.strangers = Strangers()
        self.not_stored = ""
        """Why the last alert could not be stored; empty: it was."""

    async def handle(self, request: web.Request) -> web.Response:
        """The handler of ``POST /alerts``."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            self._metrics.intake_error("too_large")
            raise
        except web.HTTPException:
            self._metrics.intake_error("not_readable")
            raise
        except web.RequestPayloadError as error:
            self._metrics.intake_error("not_readable")
            refused = web.Response(status=400, text=f"not_readable: {error}\n")
            refused.force_close()  # what is left of the body cannot be read either
            return refused
        try:
            delivery = parse(body)
        except PayloadError as error:
            self._metrics.intake_error(cast(PayloadReason, error.reason))
            log.warning("refused a delivery: %s", error)
            return web.Response(status=400, text=f"{error.reason}: {error}\n")
        at = self._clock()
        takes = [self._take(alert, at=at, incomplete=delivery.incomplete) for alert in delivery.alerts]
        # the trip route sends one alert a delivery: that one needs no task of its own
        stored = [await takes[0]] if len(takes) == 1 else await asyncio.gather(*takes)
        if not all(stored):
            self._metrics.intake_error("not_stored")
            return web.Response(status=503, text="not stored: send it again\n", headers={"Retry-After": "1"})
        if delivery.bad:
            self._metrics.intake_error("bad_alert")
            log.warning("a delivery held %d alerts of another shape: %s", len(delivery.bad), delivery.bad[0])
            return web.Response(status=400, text=f"bad_alert: {delivery.bad[0]}; the others are stored\n")
        return web.Response(text="stored\n")

    async def _take(self, alert: Alert, *, at: float, incomplete: bool) -> bool:
        """Store one alert; false where that failed and it must be sent again."""
        if alert.is_watchdog:
            self._metrics.alert("watchdog")
            if alert.beat is not None:
                self._beat(alert.beat)
            return True
        try:
            await self._store.submit(alert.run, alert.event(at=at, incomplete=incomplete))
        except UnknownRunError:
            self._metrics.alert("unknown_run")
            if self.strangers.add(alert, at=at):
                log.warning("alert %r names the run %r, which is not guarded here", alert.name, alert.run)
            return True
        except Exception as error:
            surprise = not isinstance(error, JournalError)
            log.error("alert %r of run %r was not stored: %s", alert.name, alert.run, error, exc_info=surprise)
            self._metrics.alert("not_stored")
            self.not_stored = str(error) or type(error).__name__
            return False
        self.not_stored = ""
        self._metrics.alert("trip" if alert.is_trip else "recorded")
        return True
