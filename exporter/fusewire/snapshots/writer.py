"""Writes the snapshots of one attempt without holding its training loop for longer than a copy in memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from fusewire.attempt import AttemptParameters
from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import FileLayer
from fusewire.snapshots.hostcopy import HostBuffer, HostCopy, refuse_nonfinite
from fusewire.snapshots.layout import SNAPSHOTS, STAGING_PREFIX, leftover_of, snapshot_name
from fusewire.snapshots.manifest import Manifest
from fusewire.snapshots.observer import FAILURE_REASONS, SnapshotObserver
from fusewire.snapshots.staging import Staging

STATE_TREE = "state.json"
STATE_ARRAYS = "state.safetensors"


class SnapshotWriter:
    """One per process and rank. Not thread-safe: call it from the training thread.

    One snapshot at a time is being written. ``save`` and ``adopt`` skip theirs while one is in flight and say so,
    unless they are told to wait; ``folder`` waits for it.
    """

    def __init__(
        self,
        run_dir: Path,
        parameters: AttemptParameters,
        *,
        parent: str | None,
        lineage: Callable[[], dict[str, Any]],
        observer: SnapshotObserver,
        rank: int = 0,
        world_size: int = 1,
        incarnation: str | None = None,
        niceness: int = 19,
        files: FileLayer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Touches no file yet.

        Args:
            parent: name of the snapshot that the attempt resumed from.
            lineage: called in the training thread at each snapshot; JSON values for the manifest.
            rank, world_size: this process's part of a snapshot; it is complete when every rank has committed.
            incarnation: tells inner restarts within one attempt apart, the same for all ranks; None: torchrun's
                ``TORCHELASTIC_RESTART_COUNT``.
            niceness: added to the writing thread's, 0 to 19. At the default training on every core is slowed
                least, and a snapshot takes as long as the cores leave it.
        """
        self._run_dir = run_dir
        self._parameters = parameters
        self._parent = parent
        self._lineage = lineage
        self._observer = observer
        self._rank = rank
        self._world_size = world_size
        self._incarnation = incarnation or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._niceness = niceness
        self._files = files or FileLayer()
        self._clock = clock
        self._buffer = HostBuffer()
        self._thread: threading.Thread | None = None
        self._cleaned = False

    @contextlib.contextmanager
    def folder(self, step: int, *, replay_watermark: Any = None, extra: Any = None) -> Iterator[Path]:
        """A folder to write into; when the block ends it is hashed, made durable and renamed in the background.

        It waits for the one in flight, however long it takes. Leave the folder alone after the block. Of several
        ranks each gets its own. An exception in the block removes the folder and goes on.

        Raises:
            SnapshotError: the folder cannot be made. What goes wrong after the block reaches the observer.
        """
        started = time.monotonic()
        self.wait()
        with self._stall(started):
            staging = self._staging(step, replay_watermark, extra)
            with self._reported(staging):
                staging.open()
            try:
                yield staging.content
            except BaseException as error:
                self._observer.failed("body", error)
                staging.abandon()
                raise
            self._start(staging, started)

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        replay_watermark: Any = None,
        extra: Any = None,
        may_be_nonfinite: Sequence[str] = (),
        wait: bool = False,
    ) -> bool:
        """Copy ``state`` in memory and write it in the background, as ``state.json`` and ``state.safetensors``.

        Args:
            state: nested dicts, lists and tuples of tensors, numpy arrays, numbers, strings, bytes and None.
                Tensors come back as plain ones: without gradient and on the CPU. Tied ones are stored once.
            may_be_nonfinite: shell patterns of paths in the state (``model/mask``, ``*/running_*``) that may hold
                NaN or ±Inf. Elsewhere neither is written, but for floats of Python's own that are ±Inf.
            wait: for the one in flight, however long it takes, rather than skip this one.

        Returns:
            False: one is still in flight and this one was skipped. What goes wrong later reaches the observer.

        Raises:
            SnapshotError: the state holds something that cannot be stored.
        """
        started = time.monotonic()
        with self._stall(started):
            if self._busy(step, wait):
                return False
            staging = self._staging(step, replay_watermark, extra)
            with self._reported(staging):
                copy = self._buffer.copy(state)
            self._start(staging, started, write=lambda: self._write_state(staging, copy, may_be_nonfinite))
        return True

    def adopt(
        self,
        step: int,
        path: Path,
        *,
        how: Literal["link", "rename", "reference"] = "link",
        replay_watermark: Any = None,
        extra: Any = None,
        wait: bool = False,
    ) -> bool:
        """Take over a checkpoint that something else wrote: a finished file or folder at ``path``.

        Args:
            how: ``link`` gives its files second names, so that they outlive the framework's rotation (the
                framework must not write into them again); ``rename`` does the same and removes ``path`` once
                the snapshot is complete; ``reference`` leaves the files where they are: the snapshot is lost
                when they go. ``link`` and ``rename`` need ``path`` on the run directory's file system.
            wait: for the one in flight, however long it takes, rather than skip this one.

        Returns:
            False: one is still in flight and this one was skipped.

        Raises:
            SnapshotError: the files cannot be taken over so.
        """
        started = time.monotonic()
        with self._stall(started):
            if self._busy(step, wait):
                return False
            path = path.absolute()
            reference = str(path) if how == "reference" else None
            staging = self._staging(step, replay_watermark, extra, reference=reference)
            with self._reported(staging):
                if reference is not None and (not path.is_dir() or self._world_size > 1):
                    raise SnapshotError(f"{path}: only a folder, of one rank, can be a reference", reason="state")
                staging.open()
                if reference is None:
                    staging.link(path)

            def drop_source() -> None:
                if how == "rename":
                    self._files.remove_tree(path) if path.is_dir() else self._files.unlink(path)

            self._start(staging, started, afterwards=drop_source)
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the snapshot in flight, at most ``timeout`` seconds; True: none is in flight any more."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def close(self) -> None:
        """Wait for the snapshot in flight and give the copy's memory back."""
        self.wait()
        self._buffer = HostBuffer()

    # ------------------------------------------------------------------------------------------------------

    def _busy(self, step: int, wait: bool) -> bool:
        if self.wait(None if wait else 0):
            return False
        message = f"step {step}: skipped, the snapshot before is still being written; write them less often"
        self._observer.failed("in_flight", SnapshotError(message, reason="in_flight"))
        return True

    def _staging(self, step: int, watermark: Any, extra: Any, *, reference: str | None = None) -> Staging:
        self._remove_leftovers()
        name = snapshot_name(step, self._parameters.attempt)
        draft = Manifest(
            name=name,
            step=step,
            attempt=self._parameters.attempt,
            run=self._parameters.run,
            time=self._clock(),
            files={},
            replay_watermark=watermark,
            parent=self._parent,
            lr_scale=self._parameters.lr_scale,
            lineage=self._lineage(),
            ranks=self._world_size,
            versions=_versions(),
            extra={} if extra is None else extra,
            reference=reference,
        )
        return Staging(
            self._run_dir,
            draft,
            rank=self._rank,
            incarnation=self._incarnation,
            files=self._files,
        )

    def _remove_leftovers(self) -> None:
        """What killed writers left: of earlier attempts, and of this one where no other rank can be at it."""
        if self._cleaned or self._rank != 0:
            return
        self._cleaned = True
        own = self._parameters.attempt
        for path in (self._run_dir / SNAPSHOTS).glob(f"{STAGING_PREFIX}*"):
            key = leftover_of(path.name)
            if key is not None and (key[1] < own or (key[1] == own and self._world_size == 1)):
                self._files.remove_tree(path)

    def _start(
        self,
        staging: Staging,
        started: float,
        *,
        write: Callable[[], None] = lambda: None,
        afterwards: Callable[[], None] = lambda: None,
    ) -> None:
        def work() -> None:
            with contextlib.suppress(OSError):
                me = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + self._niceness)
            with contextlib.suppress(SnapshotError), self._reported(staging):
                write()
                if self._finish(staging, started):
                    afterwards()
            self._observer.in_flight(0)

        self._observer.in_flight(1)
        self._thread = threading.Thread(target=work, name="fusewire-snapshot")
        self._thread.start()

    def _write_state(self, staging: Staging, copy: HostCopy, may_be_nonfinite: Sequence[str]) -> None:
        copy.ready()
        bad = copy.nonfinite(may_be_nonfinite)
        if bad:
            raise refuse_nonfinite(bad, staging.target.name)
        staging.open()
        tree = json.dumps(copy.tree, separators=(",", ":"), allow_nan=False).encode()
        staging.write(STATE_TREE, [memoryview(tree)], len(tree))
        staging.write(STATE_ARRAYS, [memoryview(copy.header), copy.data], len(copy.header) + len(copy.data))

    def _finish(self, staging: Staging, started: float) -> bool:
        manifest = staging.commit()
        self._parent = staging.target.name
        if manifest is None:
            return False
        self._observer.staged(manifest.step, manifest.size, time.monotonic() - started)
        return True

    @contextlib.contextmanager
    def _stall(self, started: float) -> Iterator[None]:
        try:
            yield
        finally:
            self._observer.stalled(time.monotonic() - started)

    @contextlib.contextmanager
    def _reported(self, staging: Staging) -> Iterator[None]:
        """Failures inside are told to the observer, leave nothing behind, and go on as SnapshotError."""
        try:
            yield
        except Exception as error:
            failure = _as_snapshot_error(error, staging.target)
            staging.abandon()
            self._observer.failed(failure.reason if failure.reason in FAILURE_REASONS else "error", failure)
            raise failure from error


_ERRNO_REASONS = {
    errno.ENOSPC: ("no_space", "free space or keep fewer snapshots"),
    errno.EDQUOT: ("no_space", "the quota is used up: free space or keep fewer snapshots"),
    errno.EROFS: ("read_only", "the file system is read-only"),
    errno.EACCES: ("read_only", "give this user write permission"),
    errno.EPERM: ("read_only", "give this user write permission; some file systems have no hard links"),
    errno.EXDEV: ("state", "it lies on another file system: put it beside the run, or adopt by how='reference'"),
    errno.ENOENT: ("state", "it is missing"),
}


def _as_snapshot_error(error: Exception, target: Path) -> SnapshotError:
    if isinstance(error, SnapshotError):
        return error
    if isinstance(error, OSError):
        reason, remedy = _ERRNO_REASONS.get(error.errno or 0, ("io", "look at the file system and the disk"))
        return SnapshotError(f"{target}: not written: {error}: {remedy}", reason=reason)
    return SnapshotError(f"{target}: not written: {type(error).__name__}: {error}", reason="error")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["fusewire"] = metadata.version("fusewire")
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
    return versions
