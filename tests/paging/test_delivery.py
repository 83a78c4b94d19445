"""A real Alertmanager with the committed configuration: who gets what, and what is held back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fusewire_webhook.stack.binaries import find_binaries
from paging.site import Mailbox, local
from servers import running

pytestmark = pytest.mark.stack


class Paging:
    """Alertmanager between a webhook and a mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.posted: list[dict[str, Any]] = []
        """Alerts that the webhook got."""
        self.came = asyncio.Event()
        self.tokens: set[str | None] = set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        self.posted += (await request.json())["alerts"]
        self.came.set()
        return web.Response()

    async def fire(self, *alerts: dict[str, str]) -> None:
        """Alerts as Prometheus sends them."""
        now = datetime.now(UTC).isoformat()
        body = [
            {"labels": labels, "annotations": {"summary": f"{labels['alertname']} was seen"}, "startsAt": now}
            for labels in alerts
        ]
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}/api/v2/alerts", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def mailed(self, subject: str) -> None:
        """Wait until a mail with this subject has come."""
        async with asyncio.timeout(60):
            while subject not in self.mailbox.subjects():
                self.mailbox.came.clear()
                await self.mailbox.came.wait()

    async def names(self, count: int) -> set[str]:
        """Names of the alerts that the webhook got, once there are so many."""
        async with asyncio.timeout(60):
            while len(names := {alert["labels"]["alertname"] for alert in self.posted}) < count:
                self.came.clear()
                await self.came.wait()
        return names


@pytest.fixture
async def paging(tmp_path: Path) -> AsyncIterator[Paging]:
    """It all, running."""
    program = find_binaries(prometheus=False, alertmanager=True).alertmanager
    assert program is not None
    async with Mailbox() as mailbox:
        site = Paging(mailbox)
        app = web.Application()
        app.router.add_post("/alerts", site.take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        config = local(tmp_path, webhook=f"http://{host}:{port}/alerts", smtp=mailbox.address)
        command = (program, f"--config.file={config}", "--storage.path=data", "--cluster.listen-address=")
        try:
            with running(*command, folder=tmp_path) as server:
                site.url = server.url
                yield site
        finally:
            await runner.cleanup()


def trip(run: str, name: str = "KLSpike") -> dict[str, str]:
    return {
        "alertname": name, "action": "trip", "class": "divergence", "severity": "critical",
        "run": run, "attempt": "0",
    }  # fmt: skip


def warning(run: str, attempt: int = 0) -> dict[str, str]:
    return {
        "alertname": "ReturnDrawdown", "action": "notify", "severity": "warning",
        "run": run, "attempt": str(attempt),
    }  # fmt: skip


async def test_a_trip_is_acted_on_and_told(paging: Paging) -> None:
    """A trip alert reaches the webhook with its token, and people by mail, readable in text and HTML."""
    await paging.fire(trip("cartpole"))
    await paging.mailed("[TRIP] cartpole: KLSpike")
    assert await paging.names(1) == {"KLSpike"}
    assert paging.tokens == {"Bearer secret"}
    text, html = paging.mailbox.body("plain"), paging.mailbox.body("html")
    assert "rolls back to the last stable snapshot" in text
    assert "/#/run/cartpole" in text
    assert '<a href="http://127.0.0.1:9095/#/postmortem/cartpole/0">' in html


async def test_symptoms_of_a_tripped_run_are_silent(paging: Paging) -> None:
    """A trip holds back the warnings of its attempt; those of other runs, pages, further trips get through."""
    await paging.fire(trip("a"), trip("a", "NonFiniteValue"))
    await paging.mailed("[TRIP] a: 2 alerts")
    locked = {"alertname": "BreakerLocked", "action": "notify", "severity": "page", "run": "a"}
    await paging.fire(warning("a"), warning("b"), locked)
    await paging.mailed("[warning] b: ReturnDrawdown")
    await paging.mailed("[LOCKED] a: BreakerLocked")
    assert "[warning] a: ReturnDrawdown" not in paging.mailbox.subjects()
    assert await paging.names(2) == {"KLSpike", "NonFiniteValue"}


async def test_warnings_of_the_next_attempt_are_heard(paging: Paging) -> None:
    """A trip fires on for minutes after its attempt has ended: that holds back nothing of the next attempt."""
    await paging.fire(trip("a"))
    await paging.mailed("[TRIP] a: KLSpike")
    await paging.fire(warning("a", 0), warning("a", 1))
    await paging.mailed("[warning] a: ReturnDrawdown")
    text = paging.mailbox.body("plain")
    assert "(attempt 1)" in text
    assert "(attempt 0)" not in text


async def test_a_blind_watch_is_told_past_the_webhook(paging: Paging) -> None:
    """That the watch is degraded reaches people by mail, also while a trip fires, and never the webhook."""
    degraded = {"alertname": "WatchDegraded", "action": "notify", "severity": "page", "part": "watchdog"}
    await paging.fire(trip("a"), degraded)
    await paging.mailed("[PAGE] WatchDegraded")
    assert await paging.names(1) == {"KLSpike"}
