"""Snapshots from within the loop: nothing raises, everything is counted, the lineage goes along."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fusewire
from fusewire.snapshots import read_manifest, snapshot_name
from fusewire.snapshots.verification import verify_files

from .conftest import Trainer, scrape

Attach = Callable[..., fusewire.Run]

FAILURES = 'rl_snapshot_failures_total{{reason="{}"}}'


def test_a_folder(attach: Attach, tmp_path: Path) -> None:
    """What is written in the block is a snapshot afterwards, with watermark and lineage."""
    run = attach(run_dir=tmp_path)
    for step in range(10):
        run.step(step, episode_return=100.0)
    with run.snapshot(10, replay_watermark=77) as folder:
        (folder / "state.bin").write_bytes(b"weights")
    run.complete()
    snapshot = tmp_path / "snapshots" / snapshot_name(10, 0)
    assert (snapshot / "state.bin").read_bytes() == b"weights"
    manifest = read_manifest(snapshot)
    assert (manifest.step, manifest.replay_watermark) == (10, 77)
    assert math.isclose(manifest.lineage["return_peak"], 100.0)
    seen = scrape(run)
    assert (seen["rl_snapshots_total"], seen["rl_snapshot_last_step"]) == (1, 10)
    assert seen["rl_snapshot_stall_seconds_count"] == 1
    assert seen["rl_snapshot_in_flight"] == 0


def test_the_process_ends_right_after_a_folder(train: Callable[..., Trainer]) -> None:
    """A trainer that exits, or dies, while its last folder is being finished still leaves a whole snapshot."""
    for step, end in enumerate(("sys.exit(0)", "raise ValueError")):
        trainer = train(
            f"""
            import sys, fusewire
            run = fusewire.attach()
            with run.snapshot({step}) as folder:
                (folder / "state").write_bytes(bytes(64 << 20))
            {end}
            """
        )
        assert trainer.wait()[0] == step
        snapshot = trainer.run_dir / "snapshots" / snapshot_name(step, 0)
        assert verify_files(snapshot, read_manifest(snapshot)).ok


def test_a_body_that_fails(attach: Attach, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its exception is logged with the traceback and counted; nothing half-written is left."""
    run = attach(run_dir=tmp_path)
    with run.snapshot(10) as folder:
        (folder / "half").write_text("half")
        raise OSError("disk full")
    assert scrape(run)[FAILURES.format("body")] == 1
    assert not list((tmp_path / "snapshots").glob("**/half"))
    assert any(record.exc_info for record in caplog.records)


def test_ctrl_c_in_a_body(attach: Attach, tmp_path: Path) -> None:
    """A person's interrupt is not swallowed."""
    run = attach(run_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt), run.snapshot(10):
        raise KeyboardInterrupt


def test_a_run_directory_that_cannot_be_written(attach: Attach) -> None:
    """Every file that cannot be written is a count and a warning; the exporter serves."""
    run = attach(run_dir="/proc/no-such-run")
    with run.snapshot(1) as folder:
        (folder / "state").write_text("state")
    run.save_snapshot(2, {"weight": torch.zeros(2)})
    run.complete()
    seen = scrape(run)
    assert sum(value for name, value in seen.items() if name.startswith("rl_snapshot_failures_total")) >= 2
    assert seen['fusewire_exporter_errors_total{where="files"}'] >= 1


def test_without_a_run_directory(attach: Attach) -> None:
    """A snapshot is a counted warning, none is ever due, and the block's writes go nowhere."""
    run = attach(environ={"FUSEWIRE_SNAPSHOT_EVERY_STEPS": "5"})
    assert not run.snapshot_due(5)
    with run.snapshot(5) as folder:
        (folder / "state").write_text("state")
    with run.snapshot(6) as folder:
        pass
    assert not run.save_snapshot(7, {"weight": torch.zeros(2)})
    assert not run.adopt(8, "/anywhere")
    assert scrape(run)[FAILURES.format("no_run_dir")] == 4


def test_due(attach: Attach, tmp_path: Path) -> None:
    """Due at multiples of what the supervisor says and after the last step, not at step 0."""
    run = attach(run_dir=tmp_path, environ={"FUSEWIRE_SNAPSHOT_EVERY_STEPS": "5"})
    assert [step for step in range(16) if run.snapshot_due(step)] == [5, 10, 15]
    assert run.snapshot_due(7, last=True)
    assert not run.snapshot_due(0, last=True)
    assert not attach(run_dir=tmp_path).snapshot_due(5, last=True)
    assert not attach(
        run_dir=tmp_path, role="rollout", environ={"FUSEWIRE_SNAPSHOT_EVERY_STEPS": "5"}
    ).snapshot_due(5)


def test_save_and_resume(attach: Attach, tmp_path: Path) -> None:
    """State, step, watermark and lineage of a snapshot come back in the next attempt."""
    first = attach(run_dir=tmp_path)
    for step in range(20):
        first.step(step, episode_return=200.0 if step < 10 else 150.0)
    assert first.save_snapshot(20, {"weight": torch.arange(3.0), "nested": {"n": 3}}, replay_watermark="row 9")
    first.complete()
    peak = scrape(first)["rl_episode_return_peak"]
    snapshot = tmp_path / "snapshots" / snapshot_name(20, 0)
    second = attach(run_dir=tmp_path, environ={"FUSEWIRE_ATTEMPT": "1", "FUSEWIRE_RESUME_FROM": str(snapshot)})
    loaded = second.load_snapshot()
    assert loaded is not None
    assert (loaded.step, loaded.attempt, loaded.replay_watermark) == (20, 0, "row 9")
    assert loaded.state["weight"].tolist() == [0.0, 1.0, 2.0]
    assert loaded.state["nested"] == {"n": 3}
    seen = scrape(second)
    assert seen["rl_episode_return_peak"] == peak == 200.0
    assert seen["rl_episode_return_smoothed"] == 150.0
    with second.snapshot(30) as folder:
        (folder / "state").write_text("state")
    second.close()
    assert read_manifest(tmp_path / "snapshots" / snapshot_name(30, 1)).parent == snapshot.name


def test_a_state_that_may_hold_infinities(attach: Attach, tmp_path: Path) -> None:
    """A mask of -inf keeps a state from being written until its path is allowed."""
    run = attach(run_dir=tmp_path)
    state = {"mask": torch.full((2,), -torch.inf)}
    run.save_snapshot(1, state)
    run.save_snapshot(2, state, may_be_nonfinite=("mask",), wait=True)
    run.complete()
    seen = scrape(run)
    assert seen[FAILURES.format("nonfinite")] == 1
    assert seen["rl_snapshot_last_step"] == 2


def test_nothing_to_resume_from(attach: Attach) -> None:
    """Without a snapshot the run is from scratch."""
    assert attach().load_snapshot() is None


def test_an_unreadable_snapshot(attach: Attach, tmp_path: Path) -> None:
    """Attaching counts it; loading it raises: going on from scratch would hide it."""
    run = attach(environ={"FUSEWIRE_RESUME_FROM": str(tmp_path / "gone")})
    assert run.errors.counts["resume"] == 1
    with pytest.raises(fusewire.SnapshotError):
        run.load_snapshot()


def test_adopt(attach: Attach, tmp_path: Path) -> None:
    """A checkpoint that the framework wrote becomes a snapshot."""
    run = attach(run_dir=tmp_path / "run")
    checkpoint = tmp_path / "checkpoint-40"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"weights")
    assert run.adopt(40, checkpoint)
    run.complete()
    assert (tmp_path / "run/snapshots" / snapshot_name(40, 0) / "model.bin").read_bytes() == b"weights"
    assert not run.adopt(50, tmp_path / "no-such")
    assert scrape(run)[FAILURES.format("state")] == 1


def test_complete(attach: Attach, tmp_path: Path) -> None:
    """The finish is said in a file, with the last step; an earlier process's word is not taken for it."""
    attempt = tmp_path / "attempts/000"
    attempt.mkdir(parents=True)
    (attempt / "completed.json").write_text("{}")
    run = attach(run_dir=tmp_path)
    assert not (attempt / "completed.json").exists()
    run.step(7, approx_kl=1.0)
    run.complete()
    assert json.loads((attempt / "completed.json").read_text())["step"] == 7
    assert json.loads((attempt / "last-values.json").read_text())["values"] == {"approx_kl": 1.0}
