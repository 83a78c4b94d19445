"""The demonstration as people start it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.scenarios import SCENARIOS, Pace, config

pytestmark = [pytest.mark.e2e, pytest.mark.stack, pytest.mark.timeout(300)]


async def demo(runs: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fusewire_webhook", "demo", "--runs", str(runs), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


def watched(runs: Path) -> GuardedRun:
    """The run that the demonstration has started."""
    (folder,) = runs.glob("demo-*")
    return GuardedRun(folder, config(SCENARIOS["lr-spike"], Pace()))


def training(runs: Path) -> bool:
    """Whether the trainer has got as far as its exporter."""
    return any(runs.glob("demo-*/runs/demo/attempts/000/exporter.json"))


async def test_it_shows_a_recovery(tmp_path: Path) -> None:
    """A run is tripped, rolled back, restarted and recovers to 475; the table says when and what it cost."""
    child = await demo(tmp_path)
    output = (await child.communicate())[0].decode()
    assert child.returncode == 0, output
    assert output.splitlines()[-1].startswith("OK after "), output
    rows = (
        "violation in Prometheus",
        "SIGTERM",
        "rollback",
        "its first update seen",
        "rolled back to step",
        "steps lost",
    )
    for row in rows:
        assert row in output
    assert watched(tmp_path).processes() == {}


@pytest.mark.parametrize("order", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_cleans_up(tmp_path: Path, order: signal.Signals) -> None:
    """Ctrl-C, and SIGTERM likewise, ends the servers, the webhook and the trainer."""
    child = await demo(tmp_path)
    async with asyncio.timeout(120):
        while not training(tmp_path):
            assert child.returncode is None
            await asyncio.sleep(0.1)
    assert len(watched(tmp_path).processes()) >= 4
    child.send_signal(order)
    output = (await child.communicate())[0].decode()
    assert child.returncode == 130, output
    assert watched(tmp_path).processes() == {}
