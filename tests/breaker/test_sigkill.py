"""A webhook process that is really killed, with trainers that really run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.journal import Journal

from .doubles import RUN

PROGRAM = Path(__file__).with_name("engine_process.py")


@contextlib.contextmanager
def webhook(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process, started; killed at the end unless it has ended."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def until(folder: Path, condition: Callable[[RunState], bool]) -> RunState:
    """The folded state of the journal on disk once it meets the condition."""
    deadline = time.monotonic() + 60
    while True:
        state = fold(entry.event for entry in Journal(folder / "journal.db", read_only=True).read(RUN))
        if condition(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.02)


def running(attempt: int) -> Callable[[RunState], bool]:
    return lambda state: state.attempt == attempt and state.live and state.procedure is None


def pid_of(folder: Path, attempt: int) -> int:
    """The one process that ever ran as this attempt, once it has said so."""
    path = folder / "runs" / RUN / "pids" / str(attempt)
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"attempt {attempt} did not come up"
        time.sleep(0.02)
    [pid] = path.read_text().split()
    return int(pid)


def trainers(folder: Path) -> list[tuple[int, int]]:
    """Attempt and PID of every trainer that ever ran and is alive."""
    alive = []
    for path in (folder / "runs" / RUN / "pids").iterdir():
        for pid in map(int, path.read_text().split()):
            with contextlib.suppress(OSError):
                if b"FUSEWIRE_RUN_DIR" in Path(f"/proc/{pid}/environ").read_bytes():
                    alive.append((int(path.name), pid))
    return alive


@pytest.mark.timeout(240)
@pytest.mark.parametrize("after_seconds", [0.0, 0.02, 0.1, 0.3])
def test_a_killed_webhook_finishes_the_interrupted_restart_once(after_seconds: float, tmp_path: Path) -> None:
    """SIGKILL between trip and restart: the next webhook ends with one trainer, attempt 1 and one divergence."""
    with webhook(tmp_path) as first:
        until(tmp_path, running(0))
        pid_of(tmp_path, 0)
        say(first, "trip 0")
        assert first.stdout is not None
        assert first.stdout.readline() == "ok\n"
        time.sleep(after_seconds)
        first.kill()
    with webhook(tmp_path) as second:
        state = until(tmp_path, running(1))
        assert (state.divergences_run, state.lr_scale, state.phase) == (1, 0.5, "half_open")
        successor = pid_of(tmp_path, 1)
        assert trainers(tmp_path) == [(1, successor)]
        say(second, "shutdown")
        assert second.wait(timeout=60) == os.EX_OK
    assert trainers(tmp_path) == []
    assert until(tmp_path, lambda state: state.shut_down).attempt == 1
