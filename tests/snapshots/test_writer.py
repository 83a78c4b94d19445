"""Writing: nothing has a snapshot's name before it is complete, and the training loop is never surprised."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import mmap
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest

from fusewire.errors import SnapshotError
from fusewire.snapshots import FileLayer, SnapshotStore, load_state, read_manifest

from .support import Recorder, small_state, writer


def names(run_dir: Path) -> list[str]:
    return [info.name for info in SnapshotStore(run_dir).list()]


def test_a_folder_becomes_a_snapshot_when_its_block_ends(tmp_path: Path) -> None:
    """Files and subfolders that the user wrote are hashed and lie under the snapshot's name."""
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    with one.folder(7, replay_watermark={"row": 12}, extra={"note": "x"}) as folder:
        (folder / "state.bin").write_bytes(b"weights")
        (folder / "tokenizer" / "deep").mkdir(parents=True)
        (folder / "tokenizer" / "deep" / ".hidden").write_text("v")
        assert names(tmp_path) == []
    one.close()
    info = SnapshotStore(tmp_path).get("step-000000000007-a000")
    manifest = read_manifest(info.path)
    assert {path: entry.size for path, entry in manifest.files.items()} == {
        "state.bin": 7,
        "tokenizer/deep/.hidden": 1,
    }
    assert manifest.replay_watermark == {"row": 12}
    assert manifest.extra == {"note": "x"}
    assert SnapshotStore(tmp_path).verify(info.name).ok
    assert observer.steps == [7]
    assert observer.sizes == [8]
    assert len(observer.stalls) == 1
    assert observer.flights == [1, 0]


def test_an_exception_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    """The user's own exception goes on, the half-written folder is gone, and the failure is reported."""
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    with pytest.raises(NotADirectoryError), one.folder(1) as folder:
        (folder / "half").write_bytes(b"x") and (folder / "half" / "inner").mkdir()
    assert list((tmp_path / "snapshots").iterdir()) == []
    assert observer.reasons == ["body"]
    with one.folder(1) as folder:
        (folder / "whole").write_bytes(b"x")
    one.close()
    assert names(tmp_path) == ["step-000000000001-a000"]


def test_the_manifest_tells_where_the_snapshot_comes_from(tmp_path: Path) -> None:
    """Step, attempt, run, scale, lineage, versions, and as parent the snapshot before."""
    peaks = iter([{"return_peak": 100.0}, {"return_peak": 120.0}])
    one = writer(
        tmp_path, 2, lr_scale=0.5, parent="step-000000000400-a001", lineage=lambda: next(peaks), clock=lambda: 99.0
    )
    one.save(500, small_state())
    one.wait()
    one.save(600, small_state())
    one.close()
    first, second = (read_manifest(info.path) for info in SnapshotStore(tmp_path).list())
    assert (first.step, first.attempt, first.run, first.lr_scale, first.time) == (500, 2, "cartpole", 0.5, 99.0)
    assert first.parent == "step-000000000400-a001"
    assert first.lineage == {"return_peak": 100.0}
    assert {"python", "fusewire"} <= set(first.versions)
    assert second.parent == first.name
    assert second.lineage == {"return_peak": 120.0}


def test_a_failed_snapshot_is_nobodys_parent(tmp_path: Path) -> None:
    """The parent is the last snapshot that exists."""
    one = writer(tmp_path)
    one.save(1, small_state())
    one.wait()
    one.save(2, {"w": np.array([np.nan])})
    one.wait()
    one.save(3, small_state())
    one.close()
    assert read_manifest(SnapshotStore(tmp_path).list()[-1].path).parent == "step-000000000001-a000"


class Gate:
    """A hook that lets the first write wait for the test."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, effect: str, path: Path) -> None:
        if effect == "write" and not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(30)

    def opens_for(self, one: Any) -> None:
        """Open it 0.2 s after ``one`` has begun to wait for its snapshot in flight."""
        plain = one.wait

        def wait(timeout: float | None = None) -> bool:
            one.wait = plain
            timer = threading.Timer(0.2, self.go_on.set)
            timer.start()
            done = plain(timeout)
            timer.join()
            return done

        one.wait = wait


def test_one_in_flight_and_the_next_is_skipped_visibly(tmp_path: Path) -> None:
    """While a snapshot is being written a second one is skipped, reported, and disturbs nothing."""
    gate, observer = Gate(), Recorder()
    one = writer(tmp_path, observer=observer, files=FileLayer(gate))
    assert one.save(1, small_state(1))
    assert gate.entered.wait(30)
    assert one.wait(0) is False
    assert one.save(2, small_state(2)) is False
    assert one.adopt(3, tmp_path) is False
    assert observer.reasons == ["in_flight", "in_flight"]
    gate.go_on.set()
    assert one.wait()
    assert one.save(4, small_state(4))
    one.close()
    assert names(tmp_path) == ["step-000000000001-a000", "step-000000000004-a000"]
    assert all(SnapshotStore(tmp_path).verify(name).ok for name in names(tmp_path))
    assert observer.flights == [1, 0, 1, 0]


@pytest.mark.parametrize("form", ["save", "adopt"])
def test_the_last_one_waits_for_the_one_in_flight(tmp_path: Path, form: str) -> None:
    """A snapshot that must not be skipped is taken after the one before, and the wait counts as a stall."""
    gate, observer = Gate(), Recorder()
    one = writer(tmp_path, observer=observer, files=FileLayer(gate))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.pt").write_bytes(b"1")
    assert one.save(1, small_state(1))
    assert gate.entered.wait(30)
    gate.opens_for(one)
    taken = one.save(2, small_state(2), wait=True) if form == "save" else one.adopt(2, tmp_path / "own", wait=True)
    assert taken
    one.close()
    assert observer.stalls[-1] > 0.1
    assert observer.reasons == []
    assert names(tmp_path) == ["step-000000000001-a000", "step-000000000002-a000"]


def test_the_loop_goes_on_while_a_folder_is_finished(tmp_path: Path) -> None:
    """After its block a folder is in flight like every other snapshot, and close() waits for it."""
    gate, observer = Gate(), Recorder()
    one = writer(tmp_path, observer=observer, files=FileLayer(gate))
    with one.folder(1) as folder:
        (folder / "x").write_bytes(b"1")
    assert gate.entered.wait(30)
    assert len(observer.stalls) == 1
    assert one.wait(0) is False
    assert one.save(2, small_state()) is False
    assert names(tmp_path) == []
    gate.opens_for(one)
    one.close()
    assert names(tmp_path) == ["step-000000000001-a000"]
    assert observer.reasons == ["in_flight"]
    assert observer.flights == [1, 0]


def test_a_folder_waits_for_the_one_in_flight(tmp_path: Path) -> None:
    """The folder form cannot be skipped, so it waits, and the wait counts as a stall."""
    gate, observer = Gate(), Recorder()
    one = writer(tmp_path, observer=observer, files=FileLayer(gate))
    one.save(1, small_state())
    assert gate.entered.wait(30)
    gate.opens_for(one)
    with one.folder(2) as folder:
        assert names(tmp_path) == ["step-000000000001-a000"]
        (folder / "x").write_bytes(b"1")
    one.close()
    assert observer.stalls[-1] > 0.1
    assert observer.steps == [1, 2]


def test_a_name_is_used_once(tmp_path: Path) -> None:
    """A step that exists already, in quarantine too, is refused and stays as it was."""
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    one.save(1, small_state())
    one.wait()
    with pytest.raises(SnapshotError, match="exists already"), one.folder(1):
        pytest.fail("the block must not run")
    SnapshotStore(tmp_path).quarantine(names(tmp_path), reason="r", journal_entry=1)
    one.save(1, small_state())
    one.close()
    assert observer.reasons == ["exists", "exists"]
    assert [info.state for info in SnapshotStore(tmp_path).list()] == ["quarantined"]
    assert SnapshotStore(tmp_path).verify("step-000000000001-a000").ok


def test_leftovers_of_earlier_attempts_are_cleaned_by_the_next(tmp_path: Path) -> None:
    """What a killed attempt left half-written is gone once the next attempt writes; later ones' stay."""
    for attempt in (0, 1, 2):
        (tmp_path / f"snapshots/.staging-step-000000000009-a{attempt:03d}").mkdir(parents=True)
    one = writer(tmp_path, 1)
    one.save(10, small_state())
    one.close()
    left = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert left == [".staging-step-000000000009-a002", "step-000000000010-a001"]


def test_links_in_a_snapshot_are_refused(tmp_path: Path) -> None:
    """A symlink that the user put into the folder is an error that names it, and no snapshot."""
    one = writer(tmp_path, observer=(observer := Recorder()))
    with one.folder(1) as folder:
        (folder / "weights").symlink_to("/etc/hostname")
    one.close()
    assert observer.reasons == ["state"]
    assert re.search(r"weights.*no links", observer.failures[0][1])
    assert list((tmp_path / "snapshots").iterdir()) == []


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_nobody_promotes_a_snapshot_from_within(tmp_path: Path, folder: bool) -> None:
    """What the user calls promotion.json would say that the gate has passed the snapshot: it is none."""
    one = writer(tmp_path, observer=(observer := Recorder()))
    with one.folder(1) as path:
        (path / "promotion.json").mkdir() if folder else (path / "promotion.json").write_text("{}")
    one.close()
    assert observer.reasons == ["state"]
    assert names(tmp_path) == []


class Effects:
    """A hook that writes down what happens, in order."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.log: list[tuple[str, str]] = []

    def __call__(self, effect: str, path: Path) -> None:
        self.log.append((effect, path.relative_to(self.run_dir).as_posix()))

    def last(self, effect: str, path: str) -> int:
        return max(index for index, entry in enumerate(self.log) if entry == (effect, path))


def test_everything_is_on_the_disk_before_the_name_is(tmp_path: Path) -> None:
    """Files, manifest and folders are fsynced before the rename, after their last change; then its folder."""
    effects = Effects(tmp_path)
    one = writer(tmp_path, files=FileLayer(effects))
    one.save(1, small_state())
    one.wait()
    with one.folder(2) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "w").write_bytes(b"w")
    one.close()
    for step, written in ((1, ["state.json", "state.safetensors"]), (2, ["inner/w"])):
        staging = f"snapshots/.staging-step-{step:012d}-a000"
        named = effects.last("rename", f"snapshots/step-{step:012d}-a000")
        for name in written:
            assert effects.last("fsync", f"{staging}/{name}") < named
        for name in written if step == 1 else []:
            assert effects.last("write", f"{staging}/{name}") < effects.last("fsync", f"{staging}/{name}")
        manifest = effects.last("rename", f"{staging}/manifest.json")
        if step == 2:
            assert manifest < effects.last("fsync", f"{staging}/inner") < named
        assert manifest < effects.last("fsync", staging) < named
        assert effects.log[named + 1] == ("fsync", "snapshots")


def cached_share(path: Path) -> float:
    """How much of the file at ``path`` the page cache holds."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as memory:
        resident = np.empty(-(-len(memory) // mmap.PAGESIZE), np.uint8)
        start = np.frombuffer(memory, np.uint8).ctypes.data
        asked = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), ctypes.c_void_p(resident.ctypes.data)
        )
    assert asked == 0
    return float((resident & 1).mean())


def test_a_large_state_leaves_the_page_cache_to_the_training(tmp_path: Path) -> None:
    """Of a state that was written only the edges are in the page cache, where the file system allows that."""
    probe = tmp_path / "probe"
    try:
        fd = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("the file system knows no O_DIRECT")
    os.write(fd, mmap.mmap(-1, mmap.PAGESIZE))
    os.close(fd)
    if cached_share(probe):
        pytest.skip("the file system keeps everything in memory")
    one = writer(tmp_path)
    one.save(1, {"w": np.arange(2_500_001, dtype=np.float32)})
    one.close()
    [info] = SnapshotStore(tmp_path).list()
    assert cached_share(info.path / "state.safetensors") < 0.01


@pytest.fixture
def without_direct(tmp_path: Path) -> Iterator[Path]:
    """A file system that refuses O_DIRECT."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "ramfs", "fusewire-test", str(mount)], capture_output=True, check=False, text=True
    )
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("where", ["tmp_path", "without_direct"])
@pytest.mark.parametrize("size", [(4 << 20) - 1, 4 << 20, (5 << 20) + 5])
def test_every_byte_of_a_large_state_arrives(request: pytest.FixtureRequest, where: str, size: int) -> None:
    """Whatever its length, and whether or not the file system lets its bytes pass the page cache by."""
    run_dir = request.getfixturevalue(where)
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    observer = Recorder()
    one = writer(run_dir, observer=observer)
    one.save(1, {"w": values})
    one.close()
    assert observer.failures == []
    [info] = SnapshotStore(run_dir).list()
    np.testing.assert_array_equal(load_state(info.path)["w"], values)


class _PickyFile(io.FileIO):
    """A file whose disk cannot reach the memory that is written: such as pinned memory of a GPU's driver."""

    def write(self, data: Any) -> int:
        if fcntl.fcntl(self, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return super().write(data)


class _PickyLayer(FileLayer):
    def create(self, path: Path) -> IO[bytes]:
        return cast(IO[bytes], _PickyFile(path, "xb"))


def test_memory_that_the_disk_cannot_reach_is_written_through_the_page_cache(tmp_path: Path) -> None:
    """A refusal of the memory is no failure of the snapshot."""
    values = np.random.default_rng(1).integers(0, 256, 4 << 20, np.uint8)
    observer = Recorder()
    one = writer(tmp_path, observer=observer, files=_PickyLayer())
    one.save(1, {"w": values})
    one.close()
    assert observer.failures == []
    [info] = SnapshotStore(tmp_path).list()
    np.testing.assert_array_equal(load_state(info.path)["w"], values)
