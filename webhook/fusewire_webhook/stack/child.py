"""One server kept running as a child: started on a leash, seen ready, restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from fusewire_webhook.errors import StackError
from fusewire_webhook.stack import leash

TERMINATE_SECONDS = 5.0
STEADY_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class ChildDeath:
    """A server of the stack died without being asked to."""

    name: str
    exit_code: int
    """Negative for a signal."""
    restart_seconds: float
    """Wait before it is started again."""
    log: Path

    def __str__(self) -> str:
        return (
            f"{self.name} ended unexpectedly (exit code {self.exit_code}), "
            f"started again in {self.restart_seconds:g} s; its log: {self.log}"
        )


class AddressInUseError(StackError):
    """Somebody else took the port between its choice and the start."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """How a server is started."""

    name: str
    argv: tuple[str, ...]
    """Absolute path of the program first."""
    ready_url: str
    log: Path


class Child:
    """A server that runs until :meth:`close`, and never longer than the thread that called :meth:`start`."""

    def __init__(
        self,
        command: Command,
        *,
        http: aiohttp.ClientSession,
        on_death: Callable[[ChildDeath], None],
        ready_seconds: float = 30.0,
        backoff_seconds: float = 0.5,
        backoff_max_seconds: float = 30.0,
    ) -> None:
        self.command = command
        self._http = http
        self._on_death = on_death
        self._ready_seconds = ready_seconds
        self._backoff_seconds = backoff_seconds
        self._backoff_max_seconds = backoff_max_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """PID of the running server; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start it, wait until it answers ``ready_url``, and keep it running from then on.

        Raises:
            AddressInUseError: its port was taken.
            StackError: it ended, or was not ready in time; the message holds the last line of its log.
        """
        await self._spawn()
        try:
            await self._until_ready()
        except BaseException:
            await self._terminate()
            raise
        self._keeper = asyncio.create_task(self._keep_running(), name=f"keep {self.command.name} running")

    def hang_up(self) -> None:
        """Send SIGHUP: both servers then load their configuration. One that is starting again does so anyway."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGHUP)

    async def ready(self) -> str:
        """What is wrong with it now, for a person; empty when it answers."""
        if self.pid is None:
            return f"{self.command.name} is not running; its log: {self.command.log}"
        return "" if await self._answers() else f"{self.command.name} does not answer {self.command.ready_url}"

    async def close(self) -> None:
        """End it: SIGTERM, SIGKILL after 5 seconds."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._terminate()

    async def _spawn(self) -> None:
        log = await asyncio.to_thread(self._open_log)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *self.command.argv,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is for its starter alone
            )  # fmt: skip
        finally:
            os.close(log)

    def _open_log(self) -> int:
        fd = os.open(self.command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._log_start = os.fstat(fd).st_size
        return fd

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while not await self._answers():
            process = self._process
            if process is None or process.returncode is not None:
                raise await asyncio.to_thread(self._explain)
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.command.name} was not ready within {self._ready_seconds:g} s; log: {self.command.log}"
                )
            await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=2.0)
        try:
            async with self._http.get(self.command.ready_url, timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _explain(self) -> StackError:
        with self.command.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").strip().splitlines()
        if any("address already in use" in line for line in lines):
            return AddressInUseError(f"{self.command.name}: its port is taken")
        errors = [line for line in lines if "level=error" in line or "level=ERROR" in line] or lines
        last = errors[-1] if errors else "it said nothing"
        return StackError(f"{self.command.name} did not start: {last}; log: {self.command.log}")

    async def _keep_running(self) -> None:
        backoff = self._backoff_seconds
        while True:
            started = time.monotonic()
            process = self._process
            code = await process.wait() if process is not None else 0
            if time.monotonic() - started > STEADY_SECONDS:
                backoff = self._backoff_seconds
            self._on_death(
                ChildDeath(name=self.command.name, exit_code=code, restart_seconds=backoff, log=self.command.log)
            )
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._backoff_max_seconds)
            with contextlib.suppress(OSError):  # such as a full disk: the next turn tries again
                await self._spawn()

    async def _terminate(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def start_on_free_port(
    make: Callable[[int], Child], *, free_port: Callable[[], int], tries: int = 3
) -> tuple[Child, int]:
    """Start ``make(port)`` on a free port, with another one whenever somebody was faster.

    Raises:
        StackError: it did not start.
    """
    for left in range(tries, 0, -1):
        port = free_port()
        child = make(port)
        try:
            await child.start()
        except AddressInUseError:
            if left == 1:
                raise
            continue
        return child, port
    raise StackError("no free port was found")
