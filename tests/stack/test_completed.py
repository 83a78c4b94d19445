"""A run that ends, on real servers with real trainers: what becomes of its last snapshot."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from fusewire.snapshots import SnapshotStore

pytestmark = pytest.mark.stack

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
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fusewire_webhook", "run", cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(120):
        out, errors = await process.communicate()
    shown = out.decode() + errors.decode()
    assert process.returncode == 0, shown
    last = "step-000000000063-a000"
    runs = tmp_path / "runs"
    stable = SnapshotStore(runs / "good").stable()
    assert stable is not None, shown
    assert stable.name == last, shown
    assert f"stable snapshot: {last}" in shown
    assert f"{last} is rejected: tripped: " in shown
    assert [SnapshotStore(runs / name).get(last).state for name in ("bad", "broken")] == ["rejected"] * 2, shown
