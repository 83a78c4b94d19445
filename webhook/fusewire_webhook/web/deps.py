"""What the HTTP surface is built from. Tests build it from fakes, ``service.py`` from the real parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from fusewire_webhook.breaker.events import Command
from fusewire_webhook.breaker.view import RunView, Target
from fusewire_webhook.engine.subscription import Subscription
from fusewire_webhook.settings.redact import Secret
from fusewire_webhook.watch.deadman import WatchStatus
from fusewire_webhook.watch.discovery import Outcome
from fusewire_webhook.watch.prometheus import Prometheus
from fusewire_webhook.web.metrics import Metrics
from fusewire_webhook.web.receiver import Receiver
from fusewire_webhook.web.session import LIFETIME_SECONDS


class Breakers(Protocol):
    """What the HTTP surface needs of the engine."""

    def view(self, run: str) -> RunView:
        """The run's present picture; raises UnknownRunError."""
        ...

    def views(self) -> Iterable[RunView]:
        """Every guarded run."""
        ...

    def steps(self) -> dict[str, int]:
        """The step that each run's view says."""
        ...

    def watches(self) -> dict[str, dict[str, Any] | None]:
        """Whether the rules see each run's attempt: what its view says."""
        ...

    def targets(self) -> Iterable[Target]:
        """Every exporter to scrape."""
        ...

    def command(self, run: str, command: Command, *, confirmed: bool = True) -> Awaitable[RunView]:
        """Journal a person's decision; raises UnknownRunError, CommandError, UnconfirmedError, JournalError."""
        ...

    def subscribe(self) -> Subscription:
        """Everything that is journaled from now on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Deps:
    """Everything that a request may reach."""

    engine: Breakers
    receiver: Receiver
    metrics: Metrics
    read_log: Callable[[str, int, int], Awaitable[list[dict[str, Any]]]]
    """Journal entries of a run after a number, at most so many: ``{"seq", "at", "kind", …}``."""
    verdicts: Callable[[str], list[dict[str, Any]]] = lambda run: []  # noqa: ARG005
    """What the gate says of each snapshot of a run that is not promoted yet."""
    watch: Callable[[], WatchStatus] = WatchStatus
    """Whether the watch itself is alive."""
    discovery: Callable[[Outcome, str], None] = lambda outcome, sender: None  # noqa: ARG005
    """Told of each request for ``/sd``: what became of it, and who asked."""
    journal_trouble: Callable[[], str] = str
    """Why the journal stores nothing at present; empty: it does."""
    alert_token: Secret | None = None
    command_token: Secret | None = None
    scrape_interval_seconds: float = 1.0
    prometheus: Prometheus | None = None
    """Answers the console's plots."""
    runs_dir: Path | None = None
    """Parent of the run directories, for the console's snapshot ladder."""
    session_seconds: float = LIFETIME_SECONDS
    """How long a browser stays signed in."""
    resources: tuple[Callable[[web.Application], AsyncIterator[None]], ...] = ()
    """Started in this order before the first request, released in the reverse order after the last one."""
    background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)
    """Tasks that run as long as the application does, by the name that ``/readyz`` calls them."""
    clock: Callable[[], float] = time.time
    """Unix seconds."""


DEPS: web.AppKey[Deps] = web.AppKey("deps", Deps)
FALLEN: web.AppKey[dict[str, str]] = web.AppKey("fallen", dict)
"""Background tasks that ended although they should not have, with their errors."""
STREAMS: web.AppKey[dict[asyncio.Task[Any], str]] = web.AppKey("streams", dict)
"""Requests that last until the client goes, with their session cookie; they end with the session or application."""
