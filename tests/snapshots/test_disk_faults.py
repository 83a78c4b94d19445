"""Full disks, read-only file systems and failing devices: reported with the remedy, and no snapshot is half."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusewire.errors import SnapshotError
from fusewire.snapshots import FileLayer, RetentionPolicy, SnapshotStore

from .support import Recorder, promote, small_state, write, writer

MEGABYTE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "fusewire-test", str(mount)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_reported_and_the_run_goes_on(small_disk: Path) -> None:
    """A snapshot that does not fit is none; the one before stays whole; a smaller one is written."""
    first = write(small_disk, 1)
    observer = Recorder()
    one = writer(small_disk, observer=observer)
    assert one.save(2, {"w": np.zeros(8 * MEGABYTE, np.uint8)})
    one.wait()
    assert observer.reasons == ["no_space"]
    assert "free space" in observer.failures[0][1]
    assert [info.name for info in SnapshotStore(small_disk).list()] == [first]
    assert SnapshotStore(small_disk).verify(first).ok
    assert one.save(3, small_state())
    one.close()
    assert observer.steps == [3]
    assert not list((small_disk / "snapshots").glob(".*"))


def test_a_disk_that_fills_up_within_the_block_is_the_blocks_error(small_disk: Path) -> None:
    """The user's own write gets ENOSPC and goes on as it is; what was written is removed."""
    observer = Recorder()
    with pytest.raises(OSError, match="No space"), writer(small_disk, observer=observer).folder(1) as folder:
        (folder / "w").write_bytes(bytes(8 * MEGABYTE))
    assert observer.reasons == ["body"]
    assert list((small_disk / "snapshots").iterdir()) == []


def test_a_full_disk_keeps_decisions_from_being_half(small_disk: Path) -> None:
    """A promotion that cannot be written is an error, and the snapshot stays a candidate."""
    name = write(small_disk, 1)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(8 * MEGABYTE))
    store = SnapshotStore(small_disk)
    with pytest.raises(OSError, match="No space"):
        store.promote(name, by="gate", evidence={"long": "x" * 10_000})
    assert store.get(name).state == "candidate"
    filler.unlink()
    store.promote(name, by="gate", evidence={})
    assert store.stable() == store.get(name)


def test_a_read_only_file_system_is_reported(small_disk: Path) -> None:
    """Nothing can be written or decided, everything can still be read, and the reason says so."""
    name = write(small_disk, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    observer = Recorder()
    one = writer(small_disk, observer=observer)
    one.save(2, small_state())
    one.close()
    assert observer.reasons == ["read_only"]
    with pytest.raises(SnapshotError, match="read-only") as caught, one.folder(3):
        pytest.fail("the block must not run")
    assert caught.value.reason == "read_only"
    store = SnapshotStore(small_disk)
    assert store.verify(name).ok
    for decide in (
        lambda: store.quarantine([name], reason="r", journal_entry=1),
        lambda: store.promote(name, by="gate", evidence={}),
        lambda: store.set_active(name),
    ):
        with pytest.raises(OSError, match="Read-only"):
            decide()
    assert store.get(name).state == "candidate"


def failing(after: int, code: int) -> FileLayer:
    """A layer whose effects fail from number ``after`` on, counted from 0."""
    effects = itertools.count()

    def before(effect: str, path: Path) -> None:
        if next(effects) >= after:
            raise OSError(code, os.strerror(code), str(path))

    return FileLayer(before)


class OneFault(FileLayer):
    """A layer of which exactly one effect fails."""

    def __init__(self, at: int, code: int) -> None:
        self.done = 0
        self.at = at
        self.code = code
        super().__init__(self._fail_once)

    def _fail_once(self, effect: str, path: Path) -> None:
        self.done += 1
        if self.done - 1 == self.at:
            raise OSError(self.code, os.strerror(self.code), str(path))


@pytest.mark.parametrize("how", ["save", "folder", "adopt"])
def test_a_failing_device_is_reported_at_every_effect(tmp_path: Path, how: str) -> None:
    """Whichever single effect meets EIO, the snapshot is whole or absent, the failure told, the next one works."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "w").write_bytes(b"w")
    for at in itertools.count():
        run_dir, observer, layer = tmp_path / f"run-{at}", Recorder(), OneFault(at, errno.EIO)
        one = writer(run_dir, observer=observer, files=layer)
        try:
            if how == "save":
                one.save(1, small_state())
            elif how == "adopt":
                one.adopt(1, tmp_path / "checkpoint")
            else:
                with one.folder(1) as folder:
                    (folder / "w").write_bytes(b"w")
        except SnapshotError as error:
            assert error.reason == "io"  # noqa: PT017 (only some effects happen within the call)
        one.wait()
        store = SnapshotStore(run_dir)
        assert all(store.verify(info.name).ok for info in store.list())
        if layer.done <= at:
            assert observer.failures == []
            break
        assert observer.reasons == ["io"]
        assert "look at the file system" in observer.failures[0][1]
        assert store.list() == []
        assert one.save(2, small_state())
        one.close()
        assert observer.steps == [2]
    assert at > 8


def test_a_dead_device_leaves_the_links_as_they_were(tmp_path: Path) -> None:
    """With every effect failing from any point on, a rollback raises and nothing quarantined is usable."""
    for after in range(25):
        run_dir = tmp_path / str(after)
        names = [write(run_dir, step) for step in (1, 2, 3)]
        promote(run_dir, *names[:2])
        SnapshotStore(run_dir).set_active(names[1])
        try:
            SnapshotStore(run_dir, files=failing(after, errno.EIO)).roll_back(names[0], reason="r", journal_entry=1)
        except OSError as error:
            assert error.errno == errno.EIO  # noqa: PT017 (late failures are only warned of)
        store = SnapshotStore(run_dir)
        for info in (store.active(), store.stable(), store.newest_verified()):
            assert info is not None
            assert store.verify(info.name).ok
        assert set(store.roll_back(names[0], reason="r", journal_entry=1)) == set(names[1:])


def test_an_unreadable_file_fails_verification(tmp_path: Path) -> None:
    """A file that cannot be read is a problem with its name, not an exception."""
    name = write(tmp_path, 1)
    path = tmp_path / "snapshots" / name / "state.json"
    path.unlink()
    path.mkdir()
    answer = SnapshotStore(tmp_path).verify(name)
    assert not answer.ok
    assert any("state.json" in problem for problem in answer.problems)


def test_a_failed_deletion_is_finished_later(tmp_path: Path) -> None:
    """When removing the bytes fails, the snapshot is no longer listed and the next retention sweeps it up."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    promote(tmp_path, names[0], names[1])

    def before(effect: str, path: Path) -> None:
        if effect == "remove_tree":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    policy = RetentionPolicy(keep_promoted=1, keep_total=2)
    with pytest.raises(OSError, match="Input/output"):
        SnapshotStore(tmp_path, files=FileLayer(before)).apply_retention(policy)
    store = SnapshotStore(tmp_path)
    assert [info.name for info in store.list()] == names[1:]
    store.apply_retention(policy, attempt=0)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == names[1:]
