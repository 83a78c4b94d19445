"""A run that ends, on real servers with real trainers: what becomes of its last snapshot."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from fusewire.snapshots import SnapshotStore

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TRAINER = """
import sys, time
import fusewire

run, last_kl = fusewire.attach(), float(sys.argv[1])
for step in range(1, 64):
    time.sleep(0.15)
    done = step == 63
    run.step(step, approx_kl=last_kl if step > 53 else 0.01, value_loss=1.0, policy_entropy=0.5, grad_norm=0.5)
    if run.snapshot_due(step, last=done):
        run.save_snapshot(step, {"w": [float(step)]}, wait=done)
run.complete()
sys.exit(run.exit_code)
"""
"""The last updates are as bad as the argument says, and the process ends right after them."""


async def fusewire_run(folder: Path) -> asyncio.subprocess.Process:
    """`fusewire run` in a folder with a `fusewire.yml`; what it says comes as one stream."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fusewire_webhook", "run", cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize(("pack", "interval"), [("preset:demo", 0.25), ("default", 1.0)])
async def test_the_last_snapshot_of_a_completed_run(tmp_path: Path, pack: str, interval: float) -> None:
    """It becomes stable; where the last values were bad it never does; and `fusewire run` tells which."""
    (tmp_path / "train.py").write_text(TRAINER)
    settings = {
        "listen": {"port": 0},
        "prometheus": {
            "scrape_interval_seconds": interval,
            "evaluation_interval_seconds": interval,
            "rule_files": [pack],
        },
        "runs": {
            name: {
                "command": [sys.executable, "train.py", kl],
                "mode": "observe",
                "window_seconds": 2.0,
                "snapshots": {"every_steps": 20, "watch_steps": 10},
            }
            for name, kl in (("good", "0.01"), ("bad", "900"), ("broken", "nan"))
        },
    }
    (tmp_path / "fusewire.yml").write_text(json.dumps(settings))
    process = await fusewire_run(tmp_path)
    async with asyncio.timeout(240):
        out, _ = await process.communicate()
    shown = out.decode()
    assert process.returncode == 0, shown
    last = "step-000000000063-a000"
    runs = tmp_path / "runs"
    stable = SnapshotStore(runs / "good").stable()
    assert stable is not None, shown
    assert stable.name == last, shown
    assert f"stable snapshot: {last}" in shown
    assert f"{last} is rejected: tripped: " in shown
    assert [SnapshotStore(runs / name).get(last).state for name in ("bad", "broken")] == ["rejected"] * 2, shown


async def test_verdict_on_the_last_snapshot_outlives_a_webhook_that_is_killed_before_it(tmp_path: Path) -> None:
    """The next `fusewire run` finds what Prometheus saw of the end, short as it was, and the snapshot is stable."""
    (tmp_path / "train.py").write_text(TRAINER)
    settings = {
        "listen": {"port": 0},
        "prometheus": {
            "scrape_interval_seconds": 0.25,
            "evaluation_interval_seconds": 0.25,
            "rule_files": ["preset:demo"],
        },
        "runs": {
            "run": {
                "command": [sys.executable, "train.py", "0.01"],
                "window_seconds": 2.0,
                "snapshots": {"every_steps": 20, "watch_steps": 10, "watch_seconds": 5.0},
            }
        },
    }
    (tmp_path / "fusewire.yml").write_text(json.dumps(settings))
    killed = await fusewire_run(tmp_path)
    assert killed.stdout is not None
    async with asyncio.timeout(240):
        while "COMPLETED" not in (line := (await killed.stdout.readline()).decode()):
            assert line, "it ended before the run was completed"
        await asyncio.sleep(2)  # the target is gone, and Prometheus has marked its series as ended
        killed.kill()
        await killed.communicate()
        out, _ = await (await fusewire_run(tmp_path)).communicate()
    assert "stable snapshot: step-000000000063-a000" in out.decode(), out.decode()
