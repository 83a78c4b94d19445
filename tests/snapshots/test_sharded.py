"""A snapshot of several ranks is one when every rank has committed its part, and nothing before."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.snapshots import FileLayer, SnapshotStore, load_state
from fusewire.snapshots.writer import SnapshotWriter

from .support import Recorder, writer

NAME = "step-000000000005-a000"


def ranks(run_dir: Path, count: int = 3, **options: Any) -> list[SnapshotWriter]:
    return [writer(run_dir, rank=rank, world_size=count, **options) for rank in range(count)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_rank_completes_whatever_the_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Nothing is listed until the last of the ranks has committed; then all parts are there and verified."""
    all_ranks = ranks(tmp_path)
    for rank in order:
        assert SnapshotStore(tmp_path).list() == []
        with all_ranks[rank].folder(5, replay_watermark=rank) as folder:
            (folder / "part.bin").write_bytes(b"%d" % rank)
        all_ranks[rank].close()
    store = SnapshotStore(tmp_path)
    assert [info.name for info in store.list()] == [NAME]
    manifest = store.manifest(NAME)
    assert manifest.ranks == 3
    assert manifest.replay_watermark == 0
    assert set(manifest.files) == {f"rank-{rank:05d}/part.bin" for rank in range(3)}
    assert store.verify(NAME).ok


def test_a_rank_may_use_any_name(tmp_path: Path) -> None:
    """Within a rank's own folder no name is fusewire's: its files are listed and verified."""
    for one in ranks(tmp_path, 2):
        with one.folder(5) as folder:
            (folder / "manifest.json").write_text("the framework's")
        one.close()
    store = SnapshotStore(tmp_path)
    assert set(store.manifest(NAME).files) == {"rank-00000/manifest.json", "rank-00001/manifest.json"}
    assert store.verify(NAME).ok


def test_each_rank_loads_its_own_part(tmp_path: Path) -> None:
    """save() on every rank gives each its state back."""
    for rank, one in enumerate(ranks(tmp_path)):
        one.save(5, {"shard": np.full(3, rank)})
        one.close()
    path = SnapshotStore(tmp_path).get(NAME).path
    assert [load_state(path, rank=rank)["shard"][0] for rank in range(3)] == [0, 1, 2]


def test_a_rank_that_fails_keeps_the_snapshot_from_existing(tmp_path: Path) -> None:
    """With one part refused there is no snapshot, and the next step is not disturbed."""
    all_ranks = ranks(tmp_path, 2)
    all_ranks[0].save(5, {"w": np.ones(2)})
    all_ranks[0].wait()
    all_ranks[1].save(5, {"w": np.array([np.inf])})
    all_ranks[1].wait()
    assert SnapshotStore(tmp_path).list() == []
    for one in all_ranks:
        one.save(6, {"w": np.ones(2)})
        one.close()
    assert [info.step for info in SnapshotStore(tmp_path).list()] == [6]


def test_parts_of_another_incarnation_are_not_mixed_in(tmp_path: Path) -> None:
    """After an inner restart at the same step, the part that a killed incarnation left does not count."""
    old, new = ranks(tmp_path, 2, incarnation="0"), ranks(tmp_path, 2, incarnation="1")
    for one, value in ((old[1], 1), (new[0], 2)):
        one.save(5, {"w": np.full(2, value)})
        one.close()
    assert SnapshotStore(tmp_path).list() == []
    new[1].save(5, {"w": np.full(2, 2)})
    new[1].close()
    path = SnapshotStore(tmp_path).get(NAME).path
    assert [load_state(path, rank=rank)["w"][0] for rank in (0, 1)] == [2, 2]


def test_a_rank_that_cannot_complete_it_may_try_again(tmp_path: Path) -> None:
    """When the rename does not reach the disk there is no snapshot; the other ranks' parts are still good."""

    def before(effect: str, path: Path) -> None:
        if (effect, path.name) == ("fsync", "snapshots"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    first, observer = writer(tmp_path, rank=0, world_size=2), Recorder()
    last = writer(tmp_path, rank=1, world_size=2, observer=observer, files=FileLayer(before))
    for one in (first, last):
        one.save(5, {"w": np.ones(2)})
        one.close()
    assert observer.reasons == ["io"]
    assert SnapshotStore(tmp_path).list() == []
    again = writer(tmp_path, rank=1, world_size=2)
    again.save(5, {"w": np.ones(2)})
    again.close()
    assert SnapshotStore(tmp_path).verify(NAME).ok


class PartIsThere:
    """A hook that lets a rank go on only when every rank's part has its name."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.waited = False

    def __call__(self, effect: str, path: Path) -> None:
        if (effect, path.name, self.waited) == ("fsync", "ranks", False):
            self.waited = True
            self.barrier.wait(30)


def test_ranks_that_finish_at_once_complete_it_once(tmp_path: Path) -> None:
    """Two ranks that both see every part committed leave one whole snapshot and no failure."""
    together = threading.Barrier(2)

    observers = [Recorder(), Recorder()]
    both = [
        writer(tmp_path, rank=rank, world_size=2, observer=observers[rank], files=FileLayer(PartIsThere(together)))
        for rank in (0, 1)
    ]
    for one in both:
        one.save(5, {"w": np.ones(2)})
    for one in both:
        one.close()
    assert [observer.failures for observer in observers] == [[], []]
    assert sorted(observers[0].steps + observers[1].steps) == [5]
    assert SnapshotStore(tmp_path).verify(NAME).ok
