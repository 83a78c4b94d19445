"""Two real Alertmanagers in a cluster tell the same alert, and the first one dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import AlertReported
from fusewire_webhook.stack.binaries import find_binaries
from fusewire_webhook.stack.generate import WebhookAddress, alertmanager_config

from .site import configured, served, until


@dataclass(frozen=True)
class Peer:
    """One Alertmanager of the cluster."""

    process: asyncio.subprocess.Process
    url: str

    async def tell(self, labels: dict[str, str]) -> None:
        """Report a firing alert, as Prometheus does every few seconds."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/api/v2/alerts", json=[{"labels": labels}]) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def sees_its_peer(self) -> bool:
        """Has the cluster come together?"""
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/api/v2/status") as answer,
            ):
                cluster = (await answer.json())["cluster"]
                return cluster["status"] == "ready" and len(cluster["peers"]) == 2
        return False


@contextlib.asynccontextmanager
async def two_peers(folder: Path, webhook_url: str) -> AsyncIterator[tuple[Peer, Peer]]:
    """A cluster with a peer timeout of 2 s, on free ports."""
    program = find_binaries(prometheus=False, alertmanager=True).alertmanager
    assert program is not None
    address = urlsplit(webhook_url)
    assert address.hostname is not None
    assert address.port is not None
    config = alertmanager_config(webhook=WebhookAddress(host=address.hostname, port=address.port))
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    web, gossip = free_ports(2), free_ports(2)
    peers: list[Peer] = []
    try:
        for number in range(2):
            process = await asyncio.create_subprocess_exec(
                program,
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / f'peer-{number}'}",
                f"--web.listen-address=127.0.0.1:{web[number]}",
                f"--cluster.listen-address=127.0.0.1:{gossip[number]}",
                f"--cluster.peer=127.0.0.1:{gossip[1 - number]}",
                "--cluster.peer-timeout=2s",
                "--cluster.settle-timeout=2s",
                stderr=asyncio.subprocess.DEVNULL,
            )
            peers.append(Peer(process, f"http://127.0.0.1:{web[number]}"))
        async with asyncio.timeout(60):
            while not all([await peer.sees_its_peer() for peer in peers]):  # noqa: ASYNC110 - servers to be asked
                await asyncio.sleep(0.1)
        yield peers[0], peers[1]
    finally:
        for peer in peers:
            with contextlib.suppress(ProcessLookupError):
                peer.process.send_signal(signal.SIGCONT)
                peer.process.kill()
            await peer.process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody holds now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


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
        await one.tell(labels)
        async with asyncio.timeout(20):
            await next_delivery()
        one.process.kill()
        two.process.send_signal(signal.SIGCONT)
        await two.tell(labels)
        async with asyncio.timeout(20):
            await next_delivery()
        await until(lambda: service.engine.view("a").attempt == 1 and service.engine.view("a").live)
        view = service.engine.view("a")
        assert actuator.stops == [("a", 0)]
        assert (view.trips, view.restarts) == (
            {"divergence": 1, "infrastructure": 0},
            {"divergence": 1, "infrastructure": 0},
        )
        assert actuator.alive("a") == [1]
