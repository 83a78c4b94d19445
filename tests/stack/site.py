"""A small webhook and exporter in one, for Prometheus and Alertmanager to talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

RULES = """
groups:
- name: test
  rules:
  - alert: TooHigh
    expr: rl_x{job="fusewire"} > 1
    labels: {action: trip, class: divergence, severity: critical}
  - alert: Watchdog
    expr: vector(time())
"""


class Site:
    """Serves ``/metrics``, ``/sd`` and ``/alerts``, and keeps what it was asked and told."""

    def __init__(self) -> None:
        self.port = 0
        self.value = 0.0
        self.tokens: dict[str, str] = {}
        """Authorization header of the last request, by path."""
        self.alerts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"rl_x {self.value}\n")

    async def discovery(self, request: web.Request) -> web.Response:
        self.tokens["/sd"] = request.headers.get("Authorization", "")
        labels = {"run": "r", "attempt": "0", "algorithm": "ppo"}
        return web.json_response([{"targets": [f"127.0.0.1:{self.port}"], "labels": labels}])

    async def receive(self, request: web.Request) -> web.Response:
        self.tokens["/alerts"] = request.headers.get("Authorization", "")
        for alert in (await request.json())["alerts"]:
            self.alerts.put_nowait(alert)
        return web.Response()

    async def alert(self, name: str, status: str = "firing") -> dict[str, Any]:
        """The next alert of this name and status."""
        while True:
            alert = await asyncio.wait_for(self.alerts.get(), 60)
            if alert["labels"]["alertname"] == name and alert["status"] == status:
                return alert


@asynccontextmanager
async def serve() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.add_routes([
        web.get("/metrics", site.metrics), web.get("/sd", site.discovery), web.post("/alerts", site.receive),
    ])  # fmt: skip
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()
