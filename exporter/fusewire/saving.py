"""Snapshots as the training loop sees them: nothing raises into it, everything is counted."""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fusewire.attempt import AttemptParameters
from fusewire.errors import SnapshotError
from fusewire.guard import logger

if TYPE_CHECKING:
    from fusewire.snapshots import SnapshotWriter

NO_RUN_DIR = "no_run_dir"

STALL_BOUNDS: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1000)
"""Seconds."""

NOWHERE = Path(os.devnull) / "snapshot"
"""Stands for the folder of a snapshot that cannot be written: whatever is written there fails at once."""


class SnapshotMetrics:
    """Counts what the snapshot writer reports (:class:`fusewire.snapshots.SnapshotObserver`); thread-safe."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._failures = dict.fromkeys((*reasons, NO_RUN_DIR), 0)
        self._stalls = [0] * (len(STALL_BOUNDS) + 1)
        self.stall_sum = 0.0
        self.staged_total = 0
        self.last_step: int | None = None
        self.writing = 0

    def staged(self, step: int, size: int, seconds: float) -> None:
        """A snapshot is complete on disk."""
        with self._lock:
            self.staged_total += 1
            self.last_step = step
        logger.info("snapshot of step %d: %d bytes, durable after %.3f s", step, size, seconds)

    def failed(self, reason: str, error: BaseException) -> None:
        """A snapshot was not written; the training goes on."""
        with self._lock:
            self._failures[reason] = self._failures.get(reason, 0) + 1
        trace = error if reason in ("body", "error") else None
        logger.warning("fusewire (snapshot): %s; training goes on", error, exc_info=trace)

    def stalled(self, seconds: float) -> None:
        """The loop was held up."""
        with self._lock:
            self._stalls[bisect_left(STALL_BOUNDS, seconds)] += 1
            self.stall_sum += seconds

    def in_flight(self, count: int) -> None:
        """So many are being written."""
        self.writing = count

    @property
    def failures(self) -> dict[str, int]:
        """Failures by reason."""
        with self._lock:
            return dict(self._failures)

    @property
    def stall_buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), the last one ``+Inf``."""
        with self._lock:
            counts = list(self._stalls)
        bounds = [*(str(float(bound)) for bound in STALL_BOUNDS), "+Inf"]
        return list(zip(bounds, (float(n) for n in accumulate(counts)), strict=True))


@dataclass(frozen=True, kw_only=True)
class LoadedSnapshot:
    """What :meth:`fusewire.Run.load_snapshot` restored."""

    step: int
    """Policy updates done when the state was taken."""
    attempt: int
    """The attempt that took it."""
    state: dict[str, Any]
    """As it was given to :meth:`fusewire.Run.save_snapshot`."""
    lr_scale: float
    """Scale that the learning rate inside the state carries."""
    replay_watermark: Any
    """What was given with the snapshot."""
    folder: Path
    """Where it lies."""


class Saver:
    """Writes the snapshots of one attempt; without a run directory each is a counted warning."""

    def __init__(
        self,
        run_dir: Path | None,
        parameters: AttemptParameters,
        *,
        lineage: Callable[[], dict[str, Any]],
        rank: int,
        world_size: int,
    ) -> None:
        from fusewire.snapshots import FAILURE_REASONS  # noqa: PLC0415 (keeps `import fusewire` cheap)

        self.metrics = SnapshotMetrics(FAILURE_REASONS)
        self._run_dir = run_dir
        self._parameters = parameters
        self._lineage = lineage
        self._rank = rank
        self._world_size = world_size
        self._writer: SnapshotWriter | None = None

    @property
    def possible(self) -> bool:
        """Whether there is a run directory to write into."""
        return self._run_dir is not None

    @contextlib.contextmanager
    def folder(self, step: int, *, replay_watermark: Any, extra: Any) -> Iterator[Path]:
        """See :meth:`fusewire.Run.snapshot`."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(
                    self._open(step).folder(step, replay_watermark=replay_watermark, extra=extra)
                )
            except Exception as error:
                self._note(error)
                folder = NOWHERE
            try:
                yield folder
            except Exception as error:
                # The writer tells the metrics; where there is no folder, that is counted already.
                with contextlib.suppress(Exception):
                    stack.__exit__(type(error), error, error.__traceback__)
            else:
                try:
                    stack.close()
                except Exception as error:
                    self._note(error)

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        replay_watermark: Any,
        extra: Any,
        may_be_nonfinite: Sequence[str],
        wait: bool,
    ) -> bool:
        """See :meth:`fusewire.Run.save_snapshot`."""
        try:
            return self._open(step).save(
                step,
                state,
                replay_watermark=replay_watermark,
                extra=extra,
                may_be_nonfinite=may_be_nonfinite,
                wait=wait,
            )
        except Exception as error:
            self._note(error)
            return False

    def adopt(
        self,
        step: int,
        path: Path,
        *,
        how: Literal["link", "rename", "reference"],
        replay_watermark: Any,
        extra: Any,
        wait: bool,
    ) -> bool:
        """See :meth:`fusewire.Run.adopt`."""
        try:
            writer = self._open(step)
            return writer.adopt(step, path, how=how, replay_watermark=replay_watermark, extra=extra, wait=wait)
        except Exception as error:
            self._note(error)
            return False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the snapshot in flight; True: none is any more."""
        return self._writer is None or self._writer.wait(timeout)

    def _note(self, error: Exception) -> None:
        """Count what the writer has not counted itself (it does so before it raises SnapshotError)."""
        if not isinstance(error, SnapshotError):
            self.metrics.failed("error", error)
        elif error.reason == NO_RUN_DIR:
            self.metrics.failed(NO_RUN_DIR, error)

    def _open(self, step: int) -> SnapshotWriter:
        if self._run_dir is None:
            raise SnapshotError(
                f"step {step}: no snapshot without a run directory; start under `fusewire run` or give "
                "attach(run_dir=…)",
                reason=NO_RUN_DIR,
            )
        if self._writer is None:
            from fusewire.snapshots import SnapshotWriter  # noqa: PLC0415

            parent = Path(self._parameters.resume_from).resolve().name if self._parameters.resume_from else None
            self._writer = SnapshotWriter(
                self._run_dir,
                self._parameters,
                parent=parent,
                lineage=self._lineage,
                observer=self.metrics,
                rank=self._rank,
                world_size=self._world_size,
            )
        return self._writer
