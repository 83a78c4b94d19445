"""A Prometheus and an Alertmanager of one's own, as children of ``fusewire run``.

They listen on free loopback ports, keep everything under one folder, are restarted when they die and never
outlive the thread that started them. Where the configuration names a URL, the running one is used instead.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from fusewire.files import write_atomically
from fusewire_webhook.errors import ConfigError, StackError
from fusewire_webhook.stack.binaries import (
    RELOAD_FLAG,
    check_rules,
    find_binaries,
    resolve_rule_files,
    takes_reload_flag,
)
from fusewire_webhook.stack.child import Child, ChildDeath, Command, start_on_free_port
from fusewire_webhook.stack.generate import (
    WebhookAddress,
    alertmanager_config,
    duration,
    prometheus_config,
    server_targets,
)

__all__ = [
    "ChildDeath",
    "Stack",
    "WebhookAddress",
    "alertmanager_config",
    "duration",
    "prometheus_config",
    "server_targets",
    "start_stack",
]

log = logging.getLogger(__name__)

SERVERS_FILE = "servers.yml"
"""Where Prometheus finds itself and its Alertmanager."""
RELOAD_SECONDS = 20.0
"""How long Prometheus may take to load its configuration: a busy machine scrapes and evaluates meanwhile."""
_RELOADS = re.compile(r"^prometheus_config_last_reload_success(ful|_timestamp_seconds) (\S+)$", re.MULTILINE)


class Stack:
    """The two servers, running; made by :func:`start_stack`."""

    def __init__(self, *, prometheus_url: str, alertmanager_url: str, http: aiohttp.ClientSession) -> None:
        self.prometheus_url = prometheus_url
        self.alertmanager_url = alertmanager_url
        self.children: dict[str, Child] = {}
        """The servers that were started here: ``prometheus``, ``alertmanager``."""
        self._http = http
        self._configure: Callable[[Sequence[str]], Awaitable[None]] | None = None
        """Writes the configuration of the Prometheus that was started here, with these rule files."""

    async def load_rules(self, files: Sequence[str]) -> None:
        """Have the Prometheus that was started here load these rule files.

        Raises:
            StackError: that was not seen; it goes on with what it had, or loads them later.
        """
        prometheus = self.children["prometheus"]
        assert self._configure is not None
        await self._configure(files)
        before = 0.0
        deadline = time.monotonic() + RELOAD_SECONDS
        while time.monotonic() < deadline:
            succeeded, at = await self._reloads()
            if not before:  # whatever it loads from here on is the new configuration
                before = at
                if before:
                    prometheus.hang_up()
            elif succeeded and at != before:
                return
            await asyncio.sleep(0.1)
        raise StackError(f"Prometheus did not load them within {RELOAD_SECONDS:g} s; log: {prometheus.command.log}")

    async def _reloads(self) -> tuple[bool, float]:
        """Did Prometheus' last reload succeed, and when was the last that did? (False, 0.0): it does not answer."""
        try:
            timeout = aiohttp.ClientTimeout(total=2.0)
            async with self._http.get(f"{self.prometheus_url}/metrics", timeout=timeout) as answer:
                found = dict(_RELOADS.findall(await answer.text()))
            return float(found["ful"]) == 1.0, float(found["_timestamp_seconds"])
        except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
            return False, 0.0

    async def check(self) -> dict[str, str]:
        """What is wrong now, by server, for a person; empty when both answer."""
        urls = {"prometheus": self.prometheus_url, "alertmanager": self.alertmanager_url}
        answers = await asyncio.gather(*(self._ready(name, url) for name, url in urls.items()))
        return {name: problem for name, problem in zip(urls, answers, strict=True) if problem}

    async def close(self) -> None:
        """End what was started here, Prometheus first; at most some seconds."""
        for child in reversed(self.children.values()):
            await child.close()

    async def _ready(self, name: str, url: str) -> str:
        if name in self.children:
            return await self.children[name].ready()
        try:
            async with self._http.get(f"{url}/-/ready", timeout=aiohttp.ClientTimeout(total=2.0)) as answer:
                return "" if answer.status == 200 else f"{name} at {url} answers {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{name} at {url} does not answer: {error or 'timeout'}"


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def start_stack(
    folder: Path,
    *,
    webhook_host: str,
    webhook_port: int,
    rule_files: Sequence[str | Path],
    scrape_interval: float,
    evaluation_interval: float,
    prometheus_url: str | None = None,
    alertmanager_url: str | None = None,
    alert_token_file: str | Path | None = None,
    webhook_ca_file: str | Path | None = None,
    people: Mapping[str, Any] | None = None,
    retention: str = "15d",
    fast: bool = False,
    path: str | None = None,
    pick_port: Callable[[], int] = free_port,
    progress: Callable[[str], None] = log.info,
    on_death: Callable[[ChildDeath], None] = lambda death: log.warning("%s", death),
) -> AsyncIterator[Stack]:
    """Start what has no URL, wait until it is ready, end it on leaving.

    Start it when the webhook's ``/sd`` answers already: a target that is listed then is scraped about 5 s after
    Prometheus starts; with ``fast`` (short intervals of discovery, for tests) one that appears later after at
    most 5 s.

    Args:
        folder: takes configuration, data and logs.
        rule_files: files, folders and globs; referenced, not copied.
        scrape_interval: seconds; likewise ``evaluation_interval``.
        retention: how long Prometheus keeps samples, in its own notation.
        path: search path of the programs; None: ``PATH``.
        progress: gets one line per thing that takes time.
        on_death: told about each unexpected end of a server.

    Raises:
        ConfigError: a program is missing, or a rule file is bad.
        StackError: a server did not become ready.
    """
    if prometheus_url is not None and alertmanager_url is None:
        raise ConfigError(
            "prometheus.url is set, alertmanager.url is not: a Prometheus that fusewire did not start cannot know "
            "an Alertmanager that it starts; set alertmanager.url to the one your Prometheus alerts"
        )
    binaries = find_binaries(prometheus=prometheus_url is None, alertmanager=alertmanager_url is None, path=path)
    webhook = WebhookAddress(
        host=webhook_host,
        port=webhook_port,
        token_file=await asyncio.to_thread(_absolute, alert_token_file),
        ca_file=await asyncio.to_thread(_absolute, webhook_ca_file),
    )
    rules = await asyncio.to_thread(resolve_rule_files, rule_files) if prometheus_url is None else ()
    await check_rules(binaries.promtool, rules)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with AsyncExitStack() as cleanup:
        http = await cleanup.enter_async_context(aiohttp.ClientSession())
        stack = Stack(
            prometheus_url=(prometheus_url or "").rstrip("/"),
            alertmanager_url=(alertmanager_url or "").rstrip("/"),
            http=http,
        )
        cleanup.push_async_callback(stack.close)
        if binaries.alertmanager is not None:
            progress("starting Alertmanager")
            await _write(folder / "alertmanager.yml", alertmanager_config(webhook=webhook, people=people))
            child, port = await start_on_free_port(
                _alertmanager(binaries.alertmanager, folder, http, on_death), free_port=pick_port
            )
            stack.children["alertmanager"] = child
            stack.alertmanager_url = f"http://127.0.0.1:{port}"
        if binaries.prometheus is not None:
            progress("starting Prometheus")

            async def configure(files: Sequence[str]) -> None:
                config = prometheus_config(
                    webhook=webhook,
                    alertmanager_url=stack.alertmanager_url,
                    rule_files=files,
                    scrape_interval=scrape_interval,
                    evaluation_interval=evaluation_interval,
                    discovery_interval=0.1 if fast else 1.0,
                    servers_file=SERVERS_FILE,
                )
                await _write(folder / "prometheus.yml", config)

            await configure(rules)
            stack._configure = configure
            options = [f"--storage.tsdb.retention.time={retention}"]
            if await takes_reload_flag(binaries.prometheus):
                options.append(f"{RELOAD_FLAG}={'10ms' if fast else '500ms'}")
            child, port = await start_on_free_port(
                _prometheus(binaries.prometheus, folder, http, on_death, options), free_port=pick_port
            )
            stack.children["prometheus"] = child
            stack.prometheus_url = f"http://127.0.0.1:{port}"
            urls = {"prometheus": stack.prometheus_url}
            if "alertmanager" in stack.children:
                urls["alertmanager"] = stack.alertmanager_url
            await _write(folder / SERVERS_FILE, server_targets(**urls))
        progress(f"Prometheus {stack.prometheus_url}, Alertmanager {stack.alertmanager_url}")
        yield stack


def _alertmanager(
    program: str, folder: Path, http: aiohttp.ClientSession, on_death: Callable[[ChildDeath], None]
) -> Callable[[int], Child]:
    def make(port: int) -> Child:
        command = Command(
            name="Alertmanager",
            argv=(
                program,
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager-data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ),
            ready_url=f"http://127.0.0.1:{port}/-/ready",
            log=folder / "alertmanager.log",
        )
        return Child(command, http=http, on_death=on_death)

    return make


def _prometheus(
    program: str,
    folder: Path,
    http: aiohttp.ClientSession,
    on_death: Callable[[ChildDeath], None],
    options: Sequence[str],
) -> Callable[[int], Child]:
    def make(port: int) -> Child:
        command = Command(
            name="Prometheus",
            argv=(
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus-data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--rules.alert.resend-delay=5s",
                *options,
            ),
            ready_url=f"http://127.0.0.1:{port}/-/ready",
            log=folder / "prometheus.log",
        )
        return Child(command, http=http, on_death=on_death)

    return make


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


async def _write(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    text = yaml.safe_dump(content, sort_keys=False)
    await asyncio.to_thread(write_atomically, path, text.encode(), durable=False, mode=0o600)  # may hold secrets
