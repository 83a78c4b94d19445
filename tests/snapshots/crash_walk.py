"""Runs a scenario once per effect on the disk, each time killing the process (SIGKILL) just before that effect.

Started as a program with a scenario's name and a folder, it leaves one run directory per crash, named by the
number of the effect. It is a program of its own so that the process it forks has a single thread.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fusewire.snapshots import FileLayer, RetentionPolicy, SnapshotStore

from .support import promote, small_state, write, writer

A, B, C = "step-000000000001-a000", "step-000000000002-a000", "step-000000000003-a000"
D = "step-000000000002-a001"


def three(run_dir: Path) -> None:
    """Two promoted snapshots, one candidate, and one at a lower step that a later attempt wrote."""
    for step in (1, 2, 3):
        write(run_dir, step)
    write(run_dir, 2, 1)
    promote(run_dir, A, B)
    SnapshotStore(run_dir).set_active(B)


def checkpoint(run_dir: Path) -> None:
    """A framework's checkpoint."""
    (run_dir / "framework" / "inner").mkdir(parents=True)
    (run_dir / "framework" / "inner" / "w.bin").write_bytes(b"w" * 100)


def save(run_dir: Path, files: FileLayer) -> None:
    one = writer(run_dir, files=files)
    one.save(1, small_state())
    one.close()


def folder(run_dir: Path, files: FileLayer) -> None:
    one = writer(run_dir, files=files)
    with one.folder(1) as path:
        (path / "inner").mkdir()
        (path / "inner" / "w.bin").write_bytes(b"w" * 100)
    one.close()


def adopt(run_dir: Path, files: FileLayer) -> None:
    one = writer(run_dir, files=files)
    one.adopt(1, run_dir / "framework", how="rename")
    one.close()


def ranks(run_dir: Path, files: FileLayer) -> None:
    for rank in range(2):
        one = writer(run_dir, files=files, rank=rank, world_size=2)
        one.save(1, small_state())
        one.close()


def promotion(run_dir: Path, files: FileLayer) -> None:
    SnapshotStore(run_dir, files=files).promote(C, by="gate", evidence={})


def rollback(run_dir: Path, files: FileLayer) -> None:
    SnapshotStore(run_dir, files=files).roll_back(A, reason="r", journal_entry=5)


def restore(run_dir: Path, files: FileLayer) -> None:
    SnapshotStore(run_dir, files=files).restore(B)


def retention(run_dir: Path, files: FileLayer) -> None:
    SnapshotStore(run_dir, files=files).apply_retention(RetentionPolicy(keep_promoted=1, keep_total=2), attempt=1)


def nothing(run_dir: Path) -> None:
    """An empty run directory."""
    run_dir.mkdir()


def gone_back(run_dir: Path) -> None:
    """A person's rollback has put a promoted one into quarantine."""
    three(run_dir)
    SnapshotStore(run_dir).roll_back(A, reason="r", journal_entry=4, by_person=True)


SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path, FileLayer], None]]] = {
    "save": (nothing, save),
    "folder": (nothing, folder),
    "adopt": (checkpoint, adopt),
    "ranks": (nothing, ranks),
    "promotion": (three, promotion),
    "rollback": (three, rollback),
    "restore": (gone_back, restore),
    "retention": (three, retention),
}


def killer(after: int) -> FileLayer:
    """A layer that kills its process instead of the effect number ``after``, counted from 0."""
    effects = itertools.count()

    def before(effect: str, path: Path) -> None:
        if next(effects) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    return FileLayer(before)


def main(scenario: str, top: Path) -> None:
    prepare, act = SCENARIOS[scenario]
    prepared = top.with_name("prepared")
    prepare(prepared)
    for after in itertools.count():
        run_dir = top / str(after)
        shutil.copytree(prepared, run_dir, symlinks=True)
        child = os.fork()
        if child == 0:
            act(run_dir, killer(after))
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
