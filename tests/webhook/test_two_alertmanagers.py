"""Two real Alertmanagers in a cluster tell the same alert, and the first one dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import AlertReported
from fusewire_webhook.stack.binaries import find_binaries
from fusewire_webhook.stack.generate import WebhookAddress, alertmanager_config
from servers import Server, running

from .site import configured, served, until


async def tell(peer: Server, labels: dict[str, str]) -> None:
    """Report a firing alert, as Prometheus does every few seconds."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{peer.url}/api/v2/alerts", json=[{"labels": labels}]) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def cluster(peer: Server) -> dict[str, Any]:
    """What this peer says of the cluster."""
    async with aiohttp.ClientSession() as session, session.get(f"{peer.url}/api/v2/status") as answer:
        found: dict[str, Any] = (await answer.json())["cluster"]
        return found


@contextlib.asynccontextmanager
async def two_peers(folder: Path, webhook_url: str) -> AsyncIterator[tuple[Server, Server]]:
    """A cluster with a peer timeout of 2 s, whose first member is first to deliver."""
    program = find_binaries(prometheus=False, alertmanager=True).alertmanager
    assert program is not None
    address = urlsplit(webhook_url)
    assert address.hostname is not None
    assert address.port is not None
    config = alertmanager_config(webhook=WebhookAddress(host=address.hostname, port=address.port))
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    command = (
        program, f"--config.file={folder / 'alertmanager.yml'}", "--storage.path=data",
        "--cluster.listen-address=127.0.0.1:0", "--cluster.peer-timeout=2s", "--cluster.settle-timeout=2s",
    )  # fmt: skip
    folders = [folder / f"peer-{number}" for number in range(2)]
    for one in folders:
        one.mkdir()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running(*command, folder=folders[0]))
        (member,) = (await cluster(first))["peers"]
        second = stack.enter_context(running(*command, f"--cluster.peer={member['address']}", folder=folders[1]))
        async with asyncio.timeout(60):
            for peer in (first, second):
                while (seen := await cluster(peer))["status"] != "ready" or len(seen["peers"]) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        yield first, second


@pytest.mark.stack
async def test_both_peers_deliver_and_the_first_dies_in_between(tmp_path: Path) -> None:
    """The alert arrives from each of them, and the attempt is stopped and restarted once."""
    labels = {"alertname": "KLSpike", "action": "trip", "class": "divergence", "run": "a", "attempt": "0"}
    actuator = FakeActuator()
    async with (
        served(configured(tmp_path, "a"), actuator) as service,
        two_peers(tmp_path, service.url) as (one, two),
    ):
        arrivals = service.engine.subscribe()

        async def next_delivery() -> None:
            async for _, _, event in arrivals:
                if isinstance(event, AlertReported):
                    return

        # the second peer is cut off while the first one delivers, so it never hears that this was done
        two.process.send_signal(signal.SIGSTOP)
        await tell(one, labels)
        async with asyncio.timeout(60):
            await next_delivery()
        one.process.kill()
        two.process.send_signal(signal.SIGCONT)
        await tell(two, labels)
        async with asyncio.timeout(60):
            await next_delivery()
        await until(lambda: service.engine.view("a").attempt == 1 and service.engine.view("a").live)
        view = service.engine.view("a")
        assert actuator.stops == [("a", 0)]
        assert (view.trips, view.restarts) == (
            {"divergence": 1, "infrastructure": 0},
            {"divergence": 1, "infrastructure": 0},
        )
        assert actuator.alive("a") == [1]
