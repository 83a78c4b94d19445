"""From a violation in the trainer to the end of its process, over the whole real line.

Trainer with the real exporter → Prometheus → rule with ``for: 0s`` → Alertmanager → webhook (journal, breaker,
engine) → SIGTERM → exit. Budgets: median at most 1.2 s with scrapes and evaluations every second, at
most 0.15 s with every 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fusewire_webhook.actuators.pidfd import readable
from fusewire_webhook.service import serving
from fusewire_webhook.settings.config import (
    Config,
    ListenConfig,
    PrometheusConfig,
    RetryConfig,
    RunConfig,
    StopConfig,
)

pytestmark = [pytest.mark.bench, pytest.mark.stack]

TRIALS = 40

RULES = """
groups:
- name: bench
  rules:
  - alert: BenchViolation
    expr: rl_approx_kl > 1
    labels: {action: trip, class: divergence, severity: critical}
    annotations: {summary: KL is too high.}
  - alert: Watchdog
    expr: vector(time())
"""

# The last garbage collection of an interpreter with some hundred modules takes 40 ms; gc.freeze() spares it.
TRAINER = """
import gc, signal, sys, time
import fusewire

run = fusewire.attach()

def violate(*_):
    run.step(10**6, approx_kl=9.0)
    print(time.monotonic(), time.time(), flush=True)

signal.signal(signal.SIGUSR1, violate)
run.step(1, approx_kl=0.0)
while not run.should_stop:
    time.sleep(0.002)
print(time.time(), flush=True)
gc.freeze()
sys.exit(143)
"""


def config(folder: Path, interval: float, runs: int) -> Config:
    """Runs that are locked at their first trip: each is one trial."""
    (folder / "rules.yaml").write_text(RULES)
    (folder / "train.py").write_text(TRAINER)
    run = RunConfig(
        command=(sys.executable, str(folder / "train.py")),
        stop=StopConfig(grace_seconds=30.0),
        retry=RetryConfig(without_stable="lock"),
    )
    return Config(
        runs_dir=str(folder / "runs"),
        listen=ListenConfig(port=0),
        prometheus=PrometheusConfig(
            scrape_interval_seconds=interval,
            evaluation_interval_seconds=interval,
            rule_files=(str(folder / "rules.yaml"),),
        ),
        runs={f"r{number}": run for number in range(runs)},
    )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Seconds from the violation, as the trainer saw it, to the end of its process; and three parts of it."""

    total: float
    alert: float
    """Violation until the alert is being journaled: Prometheus and Alertmanager."""
    reaction: float
    """From there until the trainer has noticed SIGTERM: journal, breaker, engine, actuator."""
    ending: float
    """From there until the process has ended: the trainer's own clean-up."""


async def trial(folder: Path, journal: Path) -> Trial:
    attempt = folder / "attempts/000"
    root = json.loads((attempt / "keeper.json").read_text())["root"]["pid"]
    pidfd = os.pidfd_open(root)
    try:
        os.kill(root, signal.SIGUSR1)
        await asyncio.wait_for(readable(pidfd), 60)
        end, end_wall = time.monotonic(), time.time()
    finally:
        os.close(pidfd)
    violation, violation_wall, stopping = map(float, (attempt / "output.log").read_text().split())
    with contextlib.closing(sqlite3.connect(journal)) as database:
        query = "SELECT min(at) FROM journal WHERE run = ? AND kind = 'alert_reported'"
        (reported,) = database.execute(query, (folder.name,)).fetchone()
    return Trial(
        total=end - violation,
        alert=reported - violation_wall,
        reaction=stopping - reported,
        ending=end_wall - stopping,
    )


class Watch:
    """What the bench asks Prometheus."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def scraped(self, runs: int) -> None:
        """Return once Prometheus has the signal of every run."""
        while True:
            found = (await self._get("query", query="count(rl_approx_kl)"))["result"]
            if found and int(found[0]["value"][1]) == runs:
                return
            await asyncio.sleep(0.2)

    async def after_scrape(self, run: str, seconds: float, interval: float) -> None:
        """Return this long after a scrape of the run's exporter."""
        targets = (await self._get("targets", state="active"))["activeTargets"]
        (last,) = (target["lastScrape"] for target in targets if target["labels"].get("run") == run)
        age = time.time() - datetime.fromisoformat(last).timestamp()
        await asyncio.sleep((seconds - age) % interval)

    async def _get(self, path: str, **params: str) -> Any:
        async with self._http.get(f"{self._url}/api/v1/{path}", params=params) as answer:
            return (await answer.json())["data"]


async def batch(folder: Path, interval: float, phases: Sequence[float]) -> list[Trial]:
    """One trial for each phase: the share of the scrape interval that has passed when the violation happens."""
    await asyncio.to_thread(folder.mkdir)
    async with (
        serving(config(folder, interval, len(phases)), default_port=0) as service,
        aiohttp.ClientSession() as http,
    ):
        watch = Watch(http, service.prometheus_url)
        await asyncio.wait_for(watch.scraped(len(phases)), 120)
        trials = []
        for number, phase in enumerate(phases):
            await asyncio.sleep(1.0)
            await watch.after_scrape(f"r{number}", phase * interval, interval)
            trials.append(await trial(folder / f"runs/r{number}", folder / "runs/.fusewire/journal.db"))
        await service.engine.close(stop_runs=True)
    return trials


@pytest.mark.parametrize(("interval", "budget"), [(1.0, 1.2), (0.1, 0.15)])
async def test_violation_to_exit(tmp_path: Path, interval: float, budget: float) -> None:
    """The median over 40 trials keeps its budget.

    The delay is the sum of two phases: violation → scrape and scrape → evaluation, each anywhere in an interval.
    The first is spread evenly here; the second belongs to target and rule group, so there are many of them.
    """
    phases = [(number + random.random()) / TRIALS for number in range(TRIALS)]
    random.shuffle(phases)
    trials: list[Trial] = []
    for first in range(0, TRIALS, 5):
        trials += await batch(tmp_path / str(first), interval, phases[first : first + 5])
    print(f"\nviolation -> exit at {interval * 1000:g} ms, {len(trials)} trials (budget: p50 {budget} s)")
    print(f"{'seconds':10}{'p50':>8}{'p90':>8}{'max':>8}")
    for part in ("total", "alert", "reaction", "ending"):
        seconds = sorted(getattr(trial, part) for trial in trials)
        print(f"{part:10}{statistics.median(seconds):8.3f}{seconds[int(0.9 * TRIALS)]:8.3f}{seconds[-1]:8.3f}")
    assert statistics.median(trial.total for trial in trials) <= budget
