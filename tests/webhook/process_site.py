"""A folder in which ``fusewire`` runs as a process of its own, with real trainers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fusewire_webhook.actuators.keeper import ENVIRONMENT_MARK
from fusewire_webhook.actuators.tree import ProcessTable

from .site import away

PATIENT = """
import os, signal, time
signal.signal(signal.SIGTERM, {handler})
open("started", "a").write(f"{{os.getpid()}}\\n")
while True:
    time.sleep(0.01)
"""
"""A trainer that notes its PID and works until it is stopped."""

LEAVES = PATIENT.format(handler="lambda *_: os._exit(143)")
STAYS = PATIENT.format(handler="signal.SIG_IGN")


class Site:
    """A folder with a configuration and trainers, in which ``fusewire`` runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.processes: list[asyncio.subprocess.Process] = []

    def configure(self, command: list[str], **settings: str) -> None:
        """One run; the servers are away unless the settings say otherwise."""
        given = {
            "prometheus": f"{{url: '{away()}'}}",
            "alertmanager": f"{{url: '{away()}'}}",
            "listen": "{port: 0}",
            "stop": "{grace_seconds: 30, kill_seconds: 1, gpu_release_seconds: 1}",
        } | settings
        stop = given.pop("stop")
        retry = given.pop("retry", "{settle_seconds: 0, backoff_seconds: 0, infrastructure_failures: 2}")
        lines = [f"{key}: {value}" for key, value in given.items()]
        run = f"{{command: {json.dumps(command)}, stop: {stop}, retry: {retry}}}"
        (self.folder / "fusewire.yml").write_text("\n".join([*lines, f"runs: {{toy: {run}}}", ""]))

    def trainer(self, text: str) -> list[str]:
        """A command that runs this program."""
        (self.folder / "train.py").write_text(textwrap.dedent(text))
        return [sys.executable, "train.py"]

    async def start(
        self, *arguments: str, stdout: int = asyncio.subprocess.PIPE, start_new_session: bool = False
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fusewire_webhook",
            *arguments,
            cwd=self.folder,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=start_new_session,
        )
        self.processes.append(process)
        return process

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        """Run ``fusewire`` to its end: exit code, stdout, stderr."""
        return await self.end(await self.start(*arguments))

    async def end(self, process: asyncio.subprocess.Process) -> tuple[int, str, str]:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, (out or b"").decode(), err.decode()

    def pids(self) -> list[int]:
        """PIDs of the trainers that came up, in order."""
        file = self.folder / "started"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def left(self) -> list[int]:
        """Processes of any attempt that still live."""
        table = ProcessTable()
        folders = self.runs.glob("*/attempts/*")
        return [pid for folder in folders for pid in table.marked(ENVIRONMENT_MARK, str(folder))]

    async def state(self) -> str:
        _, out, _ = await self.call("status", "toy", "--json")
        return str(json.loads(out)["runs"][0]["state"])


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by children too
    yield site
    signal.signal(signal.SIGHUP, inherited)
    for process in site.processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    for pid in site.left():
        os.kill(pid, signal.SIGKILL)
