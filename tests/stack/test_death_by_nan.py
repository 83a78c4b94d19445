"""A trainer that dies of its NaN a moment after it: real servers, the local actuator, real trainers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from fusewire_webhook.breaker.events import ExitClassified
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.service import serving
from fusewire_webhook.settings.config import Config, ListenConfig, PrometheusConfig, RetryConfig, RunConfig

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

TRAINER = """
import os, signal, sys, time
import fusewire

how, steps, value_loss = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
run = fusewire.attach()
for step in range(steps):
    run.step(step, approx_kl=0.01, value_loss=1.0, policy_entropy=0.5, grad_norm=0.5)
    time.sleep(0.02)
run.step(steps, approx_kl=0.01, value_loss=value_loss, policy_entropy=0.5, grad_norm=0.5)
time.sleep(0.05)
if how == "exception":
    raise FloatingPointError("value_loss is not finite")
if how == "exit":
    os._exit(1)
os.kill(os.getpid(), signal.SIGKILL)
"""

WAYS = ("exception", "exit", "kill")
TRIALS = 4
"""Of each way to die."""
STEPS = 150
"""Three seconds, in which it is scraped."""


@pytest.mark.parametrize("interval", [1.0, 0.25])
async def test_a_trainer_that_dies_of_its_nan(tmp_path: Path, interval: float) -> None:
    """Twelve of twelve that die 50 ms after a NaN have diverged, however they die; those without a NaN have not.

    They end at twelve different moments between two scrapes, each a run of its own beside the others.
    """
    (tmp_path / "train.py").write_text(TRAINER)
    retry = RetryConfig(without_stable="lock", infrastructure_failures=1, backoff_seconds=0.0)

    def run(how: str, value_loss: str, phase: float = 0.0) -> RunConfig:
        steps = STEPS + round(phase * interval / 0.02)
        command = (sys.executable, str(tmp_path / "train.py"), how, str(steps), value_loss)
        return RunConfig(command=command, retry=retry, cwd=str(tmp_path))

    sick = {
        f"{how}-{trial}": run(how, "nan", (WAYS.index(how) / len(WAYS) + trial) / TRIALS)
        for how in WAYS
        for trial in range(TRIALS)
    }
    healthy = {f"healthy-{how}": run(how, "1.0") for how in WAYS}
    config = Config(
        runs_dir=str(tmp_path / "runs"),
        listen=ListenConfig(port=0),
        prometheus=PrometheusConfig(scrape_interval_seconds=interval, evaluation_interval_seconds=interval),
        runs={**sick, **healthy},
    )
    async with serving(config, default_port=0) as service, asyncio.timeout(200):
        views = await asyncio.gather(*(service.engine.wait_finished(name) for name in config.runs))
    with contextlib.closing(Journal(tmp_path / "runs/.fusewire/journal.db", read_only=True)) as journal:
        told = [
            (entry.run, entry.event.failure_class, entry.event.evidence)
            for entry in journal.read()
            if isinstance(entry.event, ExitClassified)
        ]
    trips = {view.run: (view.trips["divergence"], view.trips["infrastructure"]) for view in views}
    assert {name: trips[name] for name in sick} == dict.fromkeys(sick, (1, 0)), told
    assert not any(trips[name][0] for name in healthy), told
    assert all(trips[name][1] for name in healthy), told
