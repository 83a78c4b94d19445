"""Processes as ``/proc`` shows them: a process is a PID *and* its start time, so a re-used PID is somebody else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, order=True)
class ProcessId:
    """One process of this boot."""

    pid: int
    start: int
    """Clock ticks between boot and its start."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """One line of the process table."""

    id: ProcessId
    name: str
    state: str
    """One letter, see proc(5): ``Z`` has ended, ``D`` cannot be interrupted, ``T`` is stopped."""
    parent: int
    threads: int
    wait_status: int
    """How it ended, as waitpid(2) tells it; 0 while it runs and where the kernel does not show it."""

    @property
    def ended(self) -> bool:
        """It holds no memory and no device any more (a zombie whose threads have all ended)."""
        return self.state in "ZX" and self.threads <= 1

    def __str__(self) -> str:
        return f"PID {self.id.pid} ({self.name}, state {self.state})"


class ProcessTable:
    """Reads ``/proc``. Every method does blocking, short file work."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def look(self, pid: int) -> Process | None:
        """The process that has this PID now; None: nobody."""
        try:
            return _parse((self._proc / str(pid) / "stat").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            return None

    def find(self, process: ProcessId) -> Process | None:
        """This very process, ended or not; None: it was reaped, whoever has the PID now."""
        found = self.look(process.pid)
        return found if found is not None and found.id == process else None

    def runs(self, process: ProcessId) -> bool:
        """Has this very process not ended yet?"""
        found = self.find(process)
        return found is not None and not found.ended

    def scan(self) -> dict[int, Process]:
        """Every process, by PID."""
        pids = (int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit())
        return {pid: process for pid in pids if (process := self.look(pid)) is not None}

    def marked(self, variable: str, value: str) -> set[int]:
        """PIDs of the processes, as far as they may be read, that were started with this environment variable."""
        mark = f"{variable}={value}".encode()
        found = set()
        for entry in self._proc.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(int(entry.name))
        return found

    def boot_id(self) -> str:
        """Differs after each boot of the machine."""
        return (self._proc / "sys/kernel/random/boot_id").read_text().strip()

    def pid_namespace(self) -> int:
        """Number of the PID namespace in which this process sees others."""
        return (self._proc / "self/ns/pid").stat().st_ino

    def open(self, process: ProcessId) -> int | None:
        """A pidfd of this very process, readable once it has ended; None: it was reaped. The caller closes it."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return None
        # The fd is held first and the start time compared after it: from here on nobody can slip in between.
        if self.find(process) is None:
            os.close(fd)
            return None
        return fd

    def send(self, process: ProcessId, number: signal.Signals) -> bool:
        """Signal this very process; False: it is gone. A stopped process is continued so that it can obey.

        Raises:
            PermissionError: the process has become somebody else's (set-user-ID).
        """
        fd = self.open(process)
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
            if number is signal.SIGTERM:
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


def descendants(table: Mapping[int, Process], ancestors: Iterable[int]) -> list[Process]:
    """Children of ``ancestors`` and theirs, without the ancestors themselves; parents come before children."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    queue = list(ancestors)
    seen = set(queue)
    for pid in queue:
        for process in children.get(pid, []):
            if process.id.pid not in seen:
                seen.add(process.id.pid)
                queue.append(process.id.pid)
                found[process.id.pid] = process
    return list(found.values())


def _parse(stat: bytes) -> Process:
    head, _, tail = stat.rpartition(b")")
    pid, _, name = head.partition(b"(")
    fields = tail.split()
    return Process(
        id=ProcessId(pid=int(pid), start=int(fields[19])),
        name=name.decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        threads=int(fields[17]),
        wait_status=int(fields[49]) if len(fields) > 49 else 0,
    )
