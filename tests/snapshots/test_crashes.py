"""Killed at any effect on the disk, the run directory holds whole snapshots only, and the work can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewire.snapshots import FileLayer, RetentionPolicy, SnapshotStore, load_state

from .crash_walk import SCENARIOS, A, B, C, D
from .support import small_state, writer


def crashes(scenario: str, top: Path) -> Iterator[Path]:
    """The run directories after a kill before each effect, the last one after no kill."""
    subprocess.run(
        [sys.executable, "-m", "snapshots.crash_walk", scenario, str(top / "runs")],
        check=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    found = sorted((top / "runs").iterdir(), key=lambda path: int(path.name))
    assert len(found) > 3
    yield from found


def whole(store: SnapshotStore) -> None:
    """Everything listed holds, and the links lead to usable snapshots or nowhere."""
    for info in store.list():
        assert store.verify(info.name).ok
    for info in (store.active(), store.stable(), store.newest_verified()):
        assert info is None or info.state in {"candidate", "promoted"}


@pytest.mark.parametrize("scenario", ["save", "folder", "adopt", "ranks"])
def test_a_killed_writer_leaves_a_whole_snapshot_or_none(tmp_path: Path, scenario: str) -> None:
    """At every crash point there is the complete snapshot or nothing, and the next attempt writes as if new."""
    complete = []
    for run_dir in crashes(scenario, tmp_path):
        store = SnapshotStore(run_dir)
        whole(store)
        assert store.unusable() == []
        complete.append(len(store.list()))
        one = writer(run_dir, 1)
        assert one.save(2, small_state())
        one.close()
        assert D in {info.name for info in store.list()}
        assert not list((run_dir / "snapshots").glob(".staging*"))
    assert sorted(complete) == complete
    assert {0, 1} == set(complete)


def test_a_killed_adoption_never_loses_the_checkpoint(tmp_path: Path) -> None:
    """Moving a checkpoint in, its bytes are in one place or the other at every crash point."""
    for run_dir in crashes("adopt", tmp_path):
        places = [run_dir / "framework" / "inner" / "w.bin", run_dir / "snapshots" / A / "inner" / "w.bin"]
        assert any(place.exists() and place.read_bytes() == b"w" * 100 for place in places)


def test_a_killed_promotion_is_done_or_not_and_can_be_repeated(tmp_path: Path) -> None:
    """The stable snapshot is the old one or the new one, and repeating leads to the new one."""
    seen = set()
    for run_dir in crashes("promotion", tmp_path):
        store = SnapshotStore(run_dir)
        whole(store)
        stable = store.stable()
        assert stable is not None
        seen.add(stable.name)
        SCENARIOS["promotion"][1](run_dir, FileLayer())
        assert [info.name for info in store.promoted()] == [A, B, C]
        assert (run_dir / "stable_checkpoint_latest").resolve() == store.get(C).path
    assert seen == {B, C}


def test_a_killed_rollback_never_resumes_from_what_is_out_and_can_be_repeated(tmp_path: Path) -> None:
    """At no crash point is a quarantined snapshot usable; repeating ends as if never killed."""
    for run_dir in crashes("rollback", tmp_path):
        store = SnapshotStore(run_dir)
        whole(store)
        active = store.active()
        assert active is not None
        assert active.name in {A, B}
        answer = store.roll_back(A, reason="r", journal_entry=5)
        assert set(answer) == {B, C, D}
        assert [info.name for info in store.list() if info.state != "quarantined"] == [A]
        assert store.active() == store.stable() == store.get(A)
        assert sorted(path.name for path in (run_dir / "snapshots").iterdir()) == [A]


def test_a_killed_restore_is_done_or_not_and_can_be_repeated(tmp_path: Path) -> None:
    """The snapshot is in quarantine or stable at every crash point, and repeating brings it back."""
    seen = set()
    for run_dir in crashes("restore", tmp_path):
        store = SnapshotStore(run_dir)
        whole(store)
        seen.add(store.get(B).state)
        store.restore(B)
        assert store.stable() == store.get(B)
        assert (run_dir / "stable_checkpoint_latest").resolve() == store.get(B).path == run_dir / "snapshots" / B
    assert seen == {"quarantined", "promoted"}


def test_a_killed_deletion_never_takes_what_must_stay(tmp_path: Path) -> None:
    """The active and the last promoted snapshot are whole at every crash point, and repeating finishes the work."""
    for run_dir in crashes("retention", tmp_path):
        store = SnapshotStore(run_dir)
        whole(store)
        assert store.active() == store.stable() == store.get(B)
        assert load_state(run_dir / "active")
        store.apply_retention(RetentionPolicy(keep_promoted=1, keep_total=2), attempt=1)
        left = {path.name for path in (run_dir / "snapshots").iterdir()}
        assert left == {B, D}
