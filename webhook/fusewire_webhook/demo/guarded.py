"""``fusewire run`` as a child process, watched from outside: its journal, its Prometheus, its processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from fusewire.attempt_files import attempt_folder
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.journal import Entry, Journal
from fusewire_webhook.errors import JournalError, PrometheusError
from fusewire_webhook.settings.runs_folder import RunsFolder
from fusewire_webhook.watch.prometheus import Prometheus, Sample

STOP_SECONDS = 60.0


class GuardedRun:
    """One guarded run in a folder of its own. Use it as an async context manager: leaving it ends everything.

    Args:
        folder: takes ``fusewire.yml``, ``fusewire.log`` and the runs folder.
        config: content of ``fusewire.yml``, with ``runs_dir: runs`` and exactly one run.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder.absolute()
        (self.run,) = config["runs"]
        self._config = config
        self._runs = RunsFolder(self.folder / config["runs_dir"])
        self.run_dir = self._runs.root / self.run
        self.log = self.folder / "fusewire.log"
        self.entries: list[Entry] = []
        """The run's journal so far, after :meth:`refresh`."""
        self.state: RunState = fold(())
        self.prometheus: Prometheus | None = None
        self._http: aiohttp.ClientSession | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        config_file = self.folder / "fusewire.yml"
        config_file.write_text(yaml.safe_dump(dict(self._config), sort_keys=False))
        self._http = aiohttp.ClientSession()
        with self.log.open("ab") as log:
            # In a session of its own: a Ctrl-C at the terminal reaches us only, and we pass it on once.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fusewire_webhook", "run", "--config", str(config_file),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.shield(self.interrupt())
        finally:
            assert self._http is not None
            await self._http.close()

    @property
    def exit_code(self) -> int | None:
        """Of ``fusewire run``; None while it lives."""
        return None if self._process is None else self._process.returncode

    def refresh(self) -> None:
        """Read what the journal has gained, and find Prometheus once it has started."""
        after = self.entries[-1].seq if self.entries else 0
        if self._runs.journal.exists():
            try:
                new = list(Journal(self._runs.journal, read_only=True).read(self.run, after=after))
            except JournalError:
                new = []  # it is being created at this moment
            self.entries += new
            self.state = fold((entry.event for entry in new), self.state)
        if self.prometheus is None and self._http is not None:
            found = re.search(r"Prometheus (http://[^\s,]+)", self.log.read_text(errors="replace"))
            if found:
                self.prometheus = Prometheus(found[1], session=self._http)

    async def query(self, expr: str) -> list[Sample]:
        """Ask Prometheus; empty while it does not answer, or has gone."""
        if self.prometheus is None:
            return []
        try:
            return await self.prometheus.query(expr)
        except PrometheusError:
            return []

    async def interrupt(self, seconds: float = STOP_SECONDS) -> int:
        """Ctrl-C: wait until everything has ended, and return the exit code."""
        assert self._process is not None
        for order in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                self._process.send_signal(order)
            try:
                return await asyncio.wait_for(self._process.wait(), seconds)
            except TimeoutError:
                continue
        raise TimeoutError(f"fusewire run (PID {self._process.pid}) does not end; its log: {self.log}")

    async def wait(self, seconds: float) -> int:
        """Wait until ``fusewire run`` ends by itself.

        Raises:
            TimeoutError: it did not.
        """
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)

    def last_words(self) -> str:
        """The last line that ``fusewire run`` wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else ""

    def processes(self) -> dict[int, str]:
        """Living processes of this run, by PID: their environment or command line names its folder."""
        mark = os.fsencode(self.folder)
        found: dict[int, str] = {}
        for proc in Path("/proc").iterdir():
            if proc.name.isdigit() and int(proc.name) != os.getpid():
                try:
                    command = (proc / "cmdline").read_bytes()
                    if command and (mark in command or mark in (proc / "environ").read_bytes()):
                        found[int(proc.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
                except OSError:
                    continue  # it has just ended, or is not ours
        return found

    def attempt_file(self, attempt: int, name: str) -> dict[str, Any]:
        """A JSON file of ``attempts/NNN``; empty where there is none."""
        return read_json(attempt_folder(self.run_dir, attempt) / name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value
