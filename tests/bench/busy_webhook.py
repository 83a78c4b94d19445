"""The whole webhook in a process of its own, as ``fusewire serve`` has it, and clients like a busy Alertmanager."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from fusewire_webhook.actuators import Actuator
from fusewire_webhook.service import Service, serving
from fusewire_webhook.settings.config import (
    AlertmanagerConfig,
    AuthConfig,
    Config,
    ListenConfig,
    PrometheusConfig,
    RunConfig,
)

ALERT_TOKEN, COMMAND_TOKEN = "alert-token-3f9b1c7d", "command-token-8a2e6d40"


def configuration(folder: Path, runs: Mapping[str, RunConfig]) -> Config:
    """Guards the runs behind both tokens; Prometheus and Alertmanager are away, so that they cost no core."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for name, token in (("alert", ALERT_TOKEN), ("command", COMMAND_TOKEN)):
        (folder / f"{name}.token").write_text(token)
    return Config(
        runs_dir=str(folder / "runs"),
        listen=ListenConfig(port=0),
        auth=AuthConfig(
            alert_token_file=str(folder / "alert.token"), command_token_file=str(folder / "command.token")
        ),
        prometheus=PrometheusConfig(url=away),
        alertmanager=AlertmanagerConfig(url=away),
        runs=dict(runs),
    )


Report = Callable[[Service], Awaitable[dict[str, Any]]]


async def nothing(_service: Service) -> dict[str, Any]:
    return {}


async def guard(pipe: Pipe, config: Config, actuator: Actuator | None = None, report: Report = nothing) -> None:
    """Serve until told to end: sends the port once every run lives, and the report when it is asked for."""
    logging.basicConfig(filename=Path(config.runs_dir).with_name("webhook.log"))
    async with serving(config, default_port=0, actuator=actuator) as service:
        try:
            await until(lambda: all(view.live for view in service.engine.views()))
            pipe.send(int(service.url.rpartition(":")[2]))
            if await asked(pipe):
                pipe.send(await report(service))
        finally:
            await service.engine.close(stop_runs=True)


async def asked(pipe: Pipe) -> bool:
    """Wait for the other end of the pipe: true where it asks for a report, false where it is gone."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), news.set)
    await news.wait()
    loop.remove_reader(pipe.fileno())
    try:
        return bool(pipe.recv())
    except EOFError:
        return False


@dataclass(frozen=True, kw_only=True)
class Served:
    """A process that has said its port."""

    port: int
    pipe: Pipe

    def report(self) -> dict[str, Any]:
        """What it has to say; it ends then."""
        self.pipe.send("report")
        found: dict[str, Any] = self.pipe.recv()
        return found


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Served]:
    """``target(pipe, *arguments)`` in a process of its own, from the port that it sends first."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(there, *arguments))
    child.start()
    there.close()
    try:
        yield Served(port=here.recv(), pipe=here)
    finally:
        here.close()
        child.join(60)
        child.kill()
        child.join()


def peak_bytes() -> int:
    """Most resident memory of this process; ``getrusage`` would count the parent's before ``exec`` too."""
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) * 1024


def request(run: str, *, attempt: int = 0, name: str = "KLSpike") -> bytes:
    """One POST as Alertmanager's trip route sends it: a group of one alert."""
    labels = {
        "alertname": name,
        "run": run,
        "attempt": str(attempt),
        "action": "trip",
        "class": "divergence",
        "severity": "critical",
        "algorithm": "ppo",
        "instance": "127.0.0.1:9101",
        "job": "fusewire",
    }
    annotations = {"summary": f"{run}: KL of 0.31 nats", "description": "x" * 200, "runbook_url": "docs/x.md"}
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": annotations,
        "startsAt": "2026-01-01T00:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://127.0.0.1:9090/graph",
        "fingerprint": "0123456789abcdef",
    }
    group = {
        "version": "4",
        "groupKey": "{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "fusewire",
        "groupLabels": labels,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "http://127.0.0.1:9093",
        "alerts": [alert],
    }
    body = json.dumps(group).encode()
    head = (
        f"POST /alerts HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ALERT_TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A keep-alive connection that costs as little as possible."""

    def __init__(self) -> None:
        self._answer = b""
        self._answered: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def post(self, data: bytes) -> None:
        """Send a request; returns once it was answered 200."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        await self._answered

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, complete, body = self._answer.partition(b"\r\n\r\n")
        if not complete or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        self._answer = b""
        assert self._answered is not None
        if head.startswith(b"HTTP/1.1 200"):
            self._answered.set_result(None)
        else:
            self._answered.set_exception(AssertionError(head))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("closed before the answer"))


def storm(pipe: Pipe, port: int, runs: tuple[str, ...], rate: float) -> None:
    """Repeat the trip alerts of these runs at ``rate`` a second until the pipe says so; then tell the rate.

    Each of 20 connections has its own times to send at, and sends at once what it is late with.
    """
    connections = 20

    async def keep_on() -> None:
        requests, over = [request(run) for run in runs], False
        begun, sent = time.monotonic(), 0

        async def one(number: int) -> None:
            nonlocal sent
            connection, due = await Connection.open(port), begun + number / rate
            while not over:
                await asyncio.sleep(due - time.monotonic())
                await connection.post(requests[sent % len(requests)])
                due, sent = due + connections / rate, sent + 1
            connection.close()

        storming = asyncio.gather(*(one(number) for number in range(connections)))
        pipe.send(port)
        if await asked(pipe):
            pipe.send({"rate": sent / (time.monotonic() - begun)})
        over = True
        await storming

    asyncio.run(keep_on())


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def on_first_core() -> None:
    """Keep this process on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
