"""Checkpoints that a framework has written and rotates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusewire.errors import SnapshotError
from fusewire.snapshots import SnapshotStore, read_manifest
from fusewire.snapshots.layout import SIDECARS

from .support import Recorder, writer


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A framework's checkpoint folder beside the run."""
    folder = tmp_path / "framework" / "checkpoint-5"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.bin").write_bytes(b"0" * 1000)
    (folder / ".metadata").write_bytes(b"m")
    return folder


def adopted(run_dir: Path, path: Path, **options: object) -> str:
    observer = Recorder()
    one = writer(run_dir, observer=observer)
    assert one.adopt(5, path, replay_watermark=3, **options)  # type: ignore[arg-type]
    one.close()
    assert observer.failures == []
    return "step-000000000005-a000"


def test_a_linked_checkpoint_outlives_the_rotation(tmp_path: Path, checkpoint: Path) -> None:
    """After the framework deleted its checkpoint the snapshot is still whole, at no extra space."""
    inode = (checkpoint / "shards" / "0.bin").stat().st_ino
    name = adopted(tmp_path / "run", checkpoint)
    shutil.rmtree(checkpoint)
    store = SnapshotStore(tmp_path / "run")
    assert store.verify(name).ok
    assert (store.get(name).path / "shards" / "0.bin").stat().st_ino == inode
    assert set(store.manifest(name).files) == {"shards/0.bin", ".metadata"}
    assert store.manifest(name).replay_watermark == 3


def test_a_single_file_can_be_adopted(tmp_path: Path, checkpoint: Path) -> None:
    """A checkpoint that is one file keeps its file name."""
    name = adopted(tmp_path / "run", checkpoint / "shards" / "0.bin")
    assert set(SnapshotStore(tmp_path / "run").manifest(name).files) == {"0.bin"}


def test_a_moved_checkpoint_is_gone_from_where_it_was(tmp_path: Path, checkpoint: Path) -> None:
    """how="rename" takes the checkpoint away once the snapshot is complete."""
    name = adopted(tmp_path / "run", checkpoint, how="rename")
    assert not checkpoint.exists()
    assert SnapshotStore(tmp_path / "run").verify(name).ok


def test_a_move_that_fails_loses_nothing(tmp_path: Path, checkpoint: Path) -> None:
    """When the snapshot cannot be completed the framework's checkpoint is as it was."""
    adopted(tmp_path / "run", checkpoint)
    observer = Recorder()
    one = writer(tmp_path / "run", observer=observer)
    with pytest.raises(SnapshotError, match="exists already"):
        one.adopt(5, checkpoint, how="rename")
    assert (checkpoint / "shards" / "0.bin").read_bytes() == b"0" * 1000


def test_a_reference_is_checked_where_it_lies(tmp_path: Path, checkpoint: Path) -> None:
    """how="reference" copies nothing, and verification sees when the files go away or change."""
    name = adopted(tmp_path / "run", checkpoint, how="reference")
    store = SnapshotStore(tmp_path / "run")
    manifest = read_manifest(store.get(name).path)
    assert manifest.content(store.get(name).path) == checkpoint
    assert store.verify(name).ok
    assert [path.name for path in store.get(name).path.iterdir()] == ["manifest.json"]
    (checkpoint / ".metadata").write_bytes(b"n")
    assert store.verify(name).problems == (".metadata: its hash is not the manifest's",)
    shutil.rmtree(checkpoint)
    assert not store.verify(name).ok
    assert store.newest_verified() is None


def test_deleting_a_reference_leaves_the_framework_its_files(tmp_path: Path, checkpoint: Path) -> None:
    """Quarantine and retention touch what lies in the run directory only."""
    name = adopted(tmp_path / "run", checkpoint, how="reference")
    SnapshotStore(tmp_path / "run").roll_back(None, reason="r", journal_entry=1)
    assert SnapshotStore(tmp_path / "run").get(name).state == "quarantined"
    assert (checkpoint / ".metadata").exists()


@pytest.mark.parametrize("name", sorted(SIDECARS))
@pytest.mark.parametrize("how", ["link", "rename", "reference"])
def test_a_checkpoint_with_a_name_of_fusewires_own_is_left_alone(
    tmp_path: Path, checkpoint: Path, how: str, name: str
) -> None:
    """A framework's file that would be lost or taken for fusewire's is refused, and stays where it is."""
    (checkpoint / name).write_text("the framework's")
    observer = Recorder()
    one = writer(tmp_path / "run", observer=observer)
    assert one.adopt(5, checkpoint, how=how)  # type: ignore[arg-type]
    one.wait()
    assert observer.reasons == ["state"]
    assert f"{name}: fusewire's own file has this name" in observer.failures[0][1]
    assert (checkpoint / name).read_text() == "the framework's"
    assert SnapshotStore(tmp_path / "run").list() == []
    assert one.adopt(6, checkpoint.parent, how=how)  # type: ignore[arg-type]
    one.close()
    (info,) = SnapshotStore(tmp_path / "run").list()
    assert info.state == "candidate"
    assert f"checkpoint-5/{name}" in read_manifest(info.path).files


@pytest.mark.parametrize("how", ["link", "rename", "reference"])
def test_a_missing_checkpoint_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    """Adopting what is not there is refused in the call, and leaves nothing behind."""
    observer = Recorder()
    with pytest.raises(SnapshotError, match="gone"):
        writer(tmp_path, observer=observer).adopt(1, tmp_path / "gone", how=how)  # type: ignore[arg-type]
    assert observer.reasons == ["state"]
    assert not any((tmp_path / "snapshots").glob("*"))
