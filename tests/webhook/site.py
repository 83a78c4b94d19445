"""A webhook with the real parts, a fake machine, and servers that are away; and how the command line is called."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.cli import main
from fusewire_webhook.service import Service, serving
from fusewire_webhook.settings.config import (
    AlertmanagerConfig,
    Config,
    ListenConfig,
    PrometheusConfig,
    RetryConfig,
    RunConfig,
)

ALERT_TOKEN, COMMAND_TOKEN = "alert-token-3f9b1c7d", "command-token-8a2e6d40"


@functools.cache
def _taken() -> socket.socket:
    """A port on which nobody listens, and nobody else ever will."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def away() -> str:
    """Address of a server that refuses connections."""
    return f"http://127.0.0.1:{_taken().getsockname()[1]}"


def configured(folder: Path, *names: str, **changes: Any) -> Config:
    """Runs that wait for nothing, with a Prometheus and an Alertmanager that do not answer."""
    retry = RetryConfig(settle_seconds=0.0, backoff_seconds=0.0, infrastructure_failures=1)
    config = Config(
        runs_dir=str(folder / "runs"),
        listen=ListenConfig(port=0),
        prometheus=PrometheusConfig(url=away()),
        alertmanager=AlertmanagerConfig(url=away()),
        runs={name: RunConfig(command=("train",), algorithm="ppo", retry=retry) for name in names or ("cartpole",)},
    )
    return replace(config, **changes)


@contextlib.asynccontextmanager
async def served(config: Config, actuator: FakeActuator) -> AsyncIterator[Service]:
    """The webhook, once every run has started."""
    async with serving(
        config, default_port=0, actuator=actuator, progress=logging.getLogger("site").info
    ) as service:
        await until(lambda: all(view.live or view.finished for view in service.engine.views()))
        yield service


async def call(*arguments: str) -> int:
    """``fusewire ARGUMENTS``, in a thread as in a process of its own."""
    return await asyncio.to_thread(main, [str(argument) for argument in arguments])


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds, however long a busy machine takes for it."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=fusewire", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key
