"""What the snapshot tests share: an observer that remembers, and short ways to write snapshots."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import FileLayer, SnapshotStore, SnapshotWriter, snapshot_name


class Recorder:
    """A SnapshotObserver that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.sizes: list[int] = []
        self.failures: list[tuple[str, str]] = []
        self.stalls: list[float] = []
        self.flights: list[int] = []

    def staged(self, step: int, size: int, seconds: float) -> None:
        self.steps.append(step)
        self.sizes.append(size)

    def failed(self, reason: str, error: BaseException) -> None:
        self.failures.append((reason, str(error)))

    def stalled(self, seconds: float) -> None:
        self.stalls.append(seconds)

    def in_flight(self, count: int) -> None:
        self.flights.append(count)

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.failures]


def writer(run_dir: Path, attempt: int = 0, **options: Any) -> SnapshotWriter:
    """A writer with defaults for everything that a test does not speak of."""
    lr_scale = options.pop("lr_scale", 1.0)
    defaults: dict[str, Any] = {
        "parent": None,
        "lineage": dict,
        "observer": options.pop("observer", None) or Recorder(),
    }
    parameters = AttemptParameters(run="cartpole", attempt=attempt, lr_scale=lr_scale)
    return SnapshotWriter(run_dir, parameters, **{**defaults, **options})


def small_state(seed: int = 0) -> dict[str, Any]:
    """A few kilobytes of parameters and optimizer state."""
    rng = np.random.default_rng(seed)
    return {
        "model": {"weight": rng.normal(size=(16, 16)).astype(np.float32), "bias": np.zeros(16, np.float32)},
        "optimizer": {0: {"step": 3, "momentum": rng.normal(size=256)}},
    }


def write(run_dir: Path, step: int, attempt: int = 0, *, files: FileLayer | None = None, **options: Any) -> str:
    """Save a small state as a snapshot; its name."""
    observer = Recorder()
    one = writer(run_dir, attempt, observer=observer, files=files, **options)
    assert one.save(step, small_state(step))
    one.close()
    assert observer.failures == []
    return snapshot_name(step, attempt)


def promote(run_dir: Path, *names: str) -> None:
    """Promote ``names`` in this order."""
    for name in names:
        SnapshotStore(run_dir).promote(name, by="gate", evidence={})


@contextlib.contextmanager
def failing_reads(fails: Callable[[Path], bool], code: int = errno.EIO) -> Iterator[None]:
    """Let the system refuse to open what ``fails`` says yes to, as a disk or a file server does."""
    real = os.open

    def flaky(path: str | os.PathLike[str], flags: int, *args: Any, dir_fd: int | None = None, **more: Any) -> int:
        whole = Path(path) if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path
        if fails(whole):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *args, dir_fd=dir_fd, **more)

    with mock.patch.object(os, "open", flaky):
        yield


def each_once(*names: str) -> Callable[[Path], bool]:
    """True the first time that any one file of these names is opened, false from then on."""
    seen: set[Path] = set()

    def first(path: Path) -> bool:
        if path.name not in names or path in seen:
            return False
        seen.add(path)
        return True

    return first
