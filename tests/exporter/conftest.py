"""Attached runs, scrapes over HTTP, and child processes that train."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fusewire


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fetch(port: int | None, path: str = "/metrics") -> tuple[int, str]:
    """Status and text of one request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[str, float]:
    """Every sample of an exposition, by its name and labels as they are written."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape(run: fusewire.Run, query: str = "") -> dict[str, float]:
    """The samples of one real scrape."""
    status, text = fetch(run.port, f"/metrics{query}")
    assert status == 200, text
    return samples(text)


def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of ``check()``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := check():
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds} s: {check}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attach() -> Iterator[Callable[..., fusewire.Run]]:
    """``fusewire.attach`` in an empty environment; closed again at the end."""
    runs: list[fusewire.Run] = []

    def make(**arguments: Any) -> fusewire.Run:
        runs.append(fusewire.attach(**{"environ": {}, "handle_signals": False} | arguments))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


class Trainer:
    """A child process that runs a script, with the folder of its run."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.attempt_dir = run_dir / "attempts" / "000"

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def lingers(self) -> str:
        """What it wrote to standard error until it waits to be scraped once more."""
        assert self.process.stderr is not None
        said = ""
        while "waiting up to" not in said:
            said += (line := self.process.stderr.readline())
            assert line, said
        return said

    def wait(self, seconds: float = 60.0) -> tuple[int, str]:
        """Its exit code, and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=seconds)
        return self.process.returncode, errors


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """Start a script in a child process, in a run directory of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *, supervised: bool = False, **variables: str) -> Trainer:
        if supervised:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "attempt.json").write_text("{}")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FUSEWIRE_")}
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=environment | {"FUSEWIRE_RUN_DIR": str(tmp_path / "run")} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Trainer(process, tmp_path / "run")

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
