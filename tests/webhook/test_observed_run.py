"""``mode: observe`` on a real run with a real Prometheus: looking at it costs nobody a snapshot."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest

from .process_site import Site, site

__all__ = ["site"]

TRAINER = """
import os, time
import numpy as np
import fusewire

run = fusewire.attach()
snapshot = run.load_snapshot()
step = snapshot.step if snapshot else 0
while not run.should_stop:
    step += 1
    kl = 9.0 if os.path.exists("fault") else 0.01
    run.step(step, approx_kl=kl, value_loss=1.0, policy_entropy=1.0, episode_return=1.0)
    if run.snapshot_due(step):
        run.save_snapshot(step, {"w": np.zeros(4)}, wait=True)
    time.sleep(0.05)
"""
CONFIG = """
prometheus: {{scrape_interval_seconds: 250ms, evaluation_interval_seconds: 250ms, rule_files: ['preset:demo']}}
listen: {{port: 0}}
runs:
  toy:
    command: {command}
    mode: {mode}
    window_seconds: 2
    snapshots: {{every_steps: 20, watch_steps: 20}}
    stop: {{grace_seconds: 30, kill_seconds: 1, gpu_release_seconds: 1}}
"""


def configure(site: Site, mode: str) -> None:
    (site.folder / "train.py").write_text(TRAINER)
    command = json.dumps([sys.executable, "train.py"])
    (site.folder / "fusewire.yml").write_text(CONFIG.format(command=command, mode=mode))


def snapshots(site: Site, place: str = "snapshots") -> list[str]:
    folder = site.runs / "toy" / place
    return sorted(path.name for path in folder.glob("step-*")) if folder.exists() else []


async def shown(process: asyncio.subprocess.Process, *words: str) -> str:
    """What it prints up to the first line that has one of these words."""
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(90):
        while not any(word in text for word in words):
            line = (await process.stdout.readline()).decode()
            assert line, text
            text += line
    return text


async def ended(site: Site, process: asyncio.subprocess.Process) -> str:
    process.send_signal(signal.SIGINT)
    return (await site.end(process))[1]


@pytest.mark.stack
async def test_what_was_observed_costs_nothing_until_the_mode_is_act(site: Site) -> None:
    """Ctrl-C and the same command go on from the newest snapshot; with ``mode: act`` from the last clean one.

    Each end says what the next start does.
    """
    configure(site, "observe")
    first = await site.start("run")
    await shown(first, "promoted by gate")
    (site.folder / "fault").touch()
    await shown(first, "would have stopped attempt 0")
    await shown(first, "rejected: tripped")
    written = len(snapshots(site))
    async with asyncio.timeout(60):
        while len(snapshots(site)) < written + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    told = await ended(site, first)
    assert "the same command goes on from its newest verified snapshot; with `mode: act` it would be" in told
    before = snapshots(site)

    (site.folder / "fault").unlink()
    second = await site.start("run")
    assert f"goes on from {before[-1]}\n" in await shown(second, "attempt 1 runs")
    assert snapshots(site)[: len(before)] == before
    assert snapshots(site, "quarantine") == []
    (site.folder / "fault").touch()
    await shown(second, "would have stopped attempt 1")
    await ended(site, second)

    (site.folder / "fault").unlink()
    configure(site, "act")
    third = await site.start("run")
    told = await shown(third, "attempt 2 runs")
    assert "the mode is act now, and KLSpike was only observed" in told
    assert f"from {before[-1]}, " not in told
    aside = snapshots(site, "quarantine")
    assert set(before[-2:]) <= set(aside)
    assert len(snapshots(site)) + len(aside) >= len(before)
    await ended(site, third)
