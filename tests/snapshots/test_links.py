"""A reader of the links never finds nothing, and never something half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fusewire.snapshots import SnapshotStore, load_state
from fusewire.snapshots.filelayer import FileLayer
from fusewire.snapshots.links import swap_link

from .support import write

READER = """
import pathlib, sys
from fusewire.snapshots import load_state, read_manifest
link = pathlib.Path(sys.argv[1])
reads, seen = 0, set()
print("ready", flush=True)
import os
os.set_blocking(0, False)
while not (sys.stdin.buffer.raw.read() or b""):
    folder = link.resolve(strict=True)
    seen.add(read_manifest(folder).name)
    load_state(folder)
    reads += 1
    if reads > 10 and len(seen) == 2:
        pathlib.Path(sys.argv[2]).touch()
"""


def test_a_reader_always_resolves_a_complete_snapshot(tmp_path: Path) -> None:
    """Another process resolves, verifies and loads in a loop during 1,000 swaps and more, and never fails."""
    names = [write(tmp_path, step) for step in (1, 2)]
    link, enough = tmp_path / "active", tmp_path / "enough"
    layer = FileLayer()
    swap_link(link, tmp_path / "snapshots" / names[0], layer)
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(link), str(enough)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "ready\n"
        turn = 0
        while turn < 1000 or not (enough.exists() or reader.poll() is not None):
            turn += 1
            swap_link(link, tmp_path / "snapshots" / names[turn % 2], layer)
        reader.stdin.write("stop")
        reader.stdin.flush()
        assert reader.wait(60) == 0
    assert enough.exists()


def test_a_leftover_of_a_killed_swap_is_no_obstacle(tmp_path: Path) -> None:
    """The temporary link of a killed process gives way to the next swap."""
    name = write(tmp_path, 1)
    (tmp_path / f".active.{os.getpid()}").symlink_to("nowhere")
    SnapshotStore(tmp_path).set_active(name)
    assert (tmp_path / "active").readlink() == Path("snapshots") / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["active", "snapshots"]


def test_swapping_to_the_same_target_touches_nothing(tmp_path: Path) -> None:
    """A repeated swap makes no new link."""
    name = write(tmp_path, 1)
    SnapshotStore(tmp_path).set_active(name)
    before = (tmp_path / "active").lstat().st_ino
    SnapshotStore(tmp_path).set_active(name)
    assert (tmp_path / "active").lstat().st_ino == before
    assert load_state(tmp_path / "active")


def test_a_swap_is_durable(tmp_path: Path) -> None:
    """The new link takes the old one's place by a rename, and the folder is fsynced after it."""
    write(tmp_path, 1)
    effects: list[tuple[str, str]] = []
    layer = FileLayer(lambda effect, path: effects.append((effect, path.name)))
    swap_link(tmp_path / "active", tmp_path / "snapshots" / "step-000000000001-a000", layer)
    assert [effect for effect, _ in effects] == ["unlink", "symlink", "rename", "fsync"]
    assert effects[2:] == [("rename", "active"), ("fsync", tmp_path.name)]
