"""What a trainer holds: :func:`fusewire.attach` makes a :class:`Run`.

Nothing here raises into the training loop, waits for the GPU, or decides anything: an error becomes a count in
``fusewire_exporter_errors_total`` and one warning per kind. Only what people call before the loop raises:
``attach`` on unusable parameters, and :meth:`Run.load_snapshot`, because going on from scratch would be worse.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

from fusewire.attempt import ATTEMPT_FILE, AttemptParameters, RngPolicy
from fusewire.attempt_files import AttemptFiles
from fusewire.guard import Errors, guarded, logger
from fusewire.learning_rate import LearningRateScaler
from fusewire.lingering import CrashHook, Scrapes
from fusewire.phases import Phase, Phases
from fusewire.saving import NOWHERE, LoadedSnapshot, Saver
from fusewire.screening import Screen
from fusewire.segments import SLICE
from fusewire.signals import CATALOGUE, Signal
from fusewire.stopping import Stopping

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from fusewire.evidence import LastValues
    from fusewire.exporter import Exporter

Scalar: TypeAlias = SupportsFloat | None
"""A number, a numpy scalar, a tensor of one element (CPU or CUDA), or None for "nothing to report"."""

CUDA_SECONDS_AT_EXIT = 0.5
"""Longest wait of an ending process for CUDA values on their way."""
SCRAPE_SECONDS_AT_END = 30.0
"""Longest wait of :meth:`Run.complete` to be scraped once more."""


def _no_phase() -> Phase | None:
    return None


class Run:
    """One attempt at a run, seen from inside its process. Call it from the training thread."""

    def __init__(
        self,
        parameters: AttemptParameters,
        *,
        signals: Sequence[Signal] = CATALOGUE,
        rank: int = 0,
        role: str | None = None,
        world_size: int = 1,
        serves: bool = True,
        registry: CollectorRegistry | None = None,
        gpus: Literal["visible", "all"] = "visible",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See :func:`fusewire.attach`. ``serves=False``: no exporter, as on ranks that do not report."""
        from fusewire.recorder import Recorder  # noqa: PLC0415 (numpy: `import fusewire` stays cheap)
        from fusewire.scalars import Scalars  # noqa: PLC0415

        self.parameters = parameters
        self.rank = rank
        self.role = role
        self.errors = Errors()
        """Errors that were kept away from the training loop."""
        self._clock = clock
        self._active = True
        self._completed = False
        self._recorder = Recorder(
            signals,
            started=clock(),
            window=parameters.window_seconds,
            return_window=parameters.return_window_updates,
            errors=self.errors,
        )
        self._scalars = Scalars(self.errors, self._accept)
        self._screen = Screen(signals, self._recorder.has_reported)
        self._careful = False
        """A row may not be appended as it is: something in it, or before it, needs a look."""
        self._minibatch_max: dict[str, float] = {}
        self._phases = Phases()
        self._stopping = Stopping()
        self._scrapes = Scrapes(clock)
        self._crash = CrashHook(self._on_crash)
        self._saver = Saver(
            self.run_dir, parameters, lineage=self._recorder.lineage, rank=rank, world_size=world_size
        )
        self._scaler = LearningRateScaler(self._restore())
        self._files = AttemptFiles(self.run_dir, self.attempt, rank=rank, role=role) if self.run_dir else None
        self._evidence = self._last_values()
        self._exporter = self._make_exporter(registry, gpus) if serves else None

    # What the attempt was told -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.parameters.run

    @property
    def attempt(self) -> int:
        """Number of this start of the process, from 0."""
        return self.parameters.attempt

    @property
    def seed(self) -> int:
        """Seed of the attempt."""
        return self.parameters.seed

    @property
    def rng(self) -> RngPolicy:
        """``restore``: take the snapshot's generator states; ``reseed``: discard them and seed from ``seed``."""
        return self.parameters.rng

    @property
    def lr_scale(self) -> float:
        """Factor on the configured learning rate; :meth:`apply_lr` applies it."""
        return self.parameters.lr_scale

    @property
    def run_dir(self) -> Path | None:
        """Folder of the run; None without one."""
        return Path(self.parameters.run_dir).absolute() if self.parameters.run_dir else None

    @property
    def resume_from(self) -> Path | None:
        """Folder of the snapshot to restore; None: from scratch."""
        return Path(self.parameters.resume_from) if self.parameters.resume_from else None

    # Telemetry ---------------------------------------------------------------------------------------------

    def step(self, step: int, /, **signals: Scalar) -> None:
        """Report one policy update.

        Args:
            step: its number, as the trainer counts; it goes back only in a new attempt.
            signals: values of declared signals (:data:`fusewire.signals.CATALOGUE` and those given to
                :func:`fusewire.attach`), and the running totals ``env_steps`` (environment steps so far) and
                ``episodes`` (finished so far). None is no report.
        """
        try:
            # Plain floats and ints sum to a float, everything else to something else or not at all.
            values = signals.values()
            total = None if self._careful else sum(values, 0.0)  # type: ignore[type-var]
            if total.__class__ is float and total - total == 0.0:
                recorder = self._recorder
                segment = recorder.segment
                names = [*signals]
                if names != segment.names:
                    segment = recorder.switch(names)
                recorder.step = step
                segment.extend(values)  # type: ignore[arg-type]
                segment.tick(self._clock())
                if len(segment.times) >= SLICE:
                    recorder.fold(wait=len(segment.times) >= 16 * SLICE)
                return
        except Exception:  # a value that cannot be added: a string, None, tensors of two devices
            self._recorder.realign()
        except BaseException:  # Ctrl-C in the middle of a row
            self._recorder.realign()
            raise
        self._step_carefully(step, signals)

    def minibatch(self, **signals: Scalar) -> None:
        """Report one minibatch of the update that the next :meth:`step` will report.

        The step then reports the mean of each signal that it is not given itself, and the largest value is shown
        as ``rl_<signal>_minibatch_max``.
        """
        try:
            if self._active:
                self._careful = True
                self._scalars.minibatch(signals)
        except Exception as error:
            self.errors.note("minibatch", error)

    @contextlib.contextmanager
    def phase(self, name: str, *, expect_seconds: float = 0.0) -> Iterator[None]:
        """Declare a pause of the updates that is not a stall, such as an evaluation.

        Args:
            expect_seconds: how long it should take at most; 0: unsaid.
        """
        phase = self._enter_phase(name, expect_seconds)
        try:
            yield
        finally:
            self._leave_phase(phase)

    # Stop and end ------------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end at its next boundary: SIGTERM came, or :meth:`request_stop` was called.

        It speaks for this process; trainers of several ranks agree on it with their own collective.
        """
        if self._careful:
            self._poll()
        return self._stopping.requested

    def request_stop(self) -> None:
        """Ask the loop to end."""
        self._stopping.request()

    @property
    def exit_code(self) -> int:
        """What a trainer exits with after its loop: 143 when SIGTERM stopped it, else 0."""
        return 143 if self._stopping.by_signal and not self._completed else 0

    @guarded("complete", lambda: None)
    def complete(self) -> None:
        """Say that the training has finished on purpose.

        Waits for a snapshot that is being written and then, where something scrapes, until the last step was
        scraped, for at most two intervals (``linger_seconds`` before there were two scrapes): a snapshot becomes
        stable only if its last step was seen.

        After a SIGTERM it says nothing: a loop that was asked to stop has not finished, and the run goes on later.
        """
        if not self._active:
            return
        if self._stopping.by_signal:
            logger.info("complete() after SIGTERM: stopped is not finished, so the run can go on")
            return
        self._completed = True
        self._settle()
        with self.phase("complete"):  # a big snapshot takes minutes, which are no stall
            self._saver.wait()
            self._wait_for_scrape()
        if self._files is not None:
            self._files.write_completed(self._recorder.view(self._clock()).step)

    def close(self) -> None:
        """Take everything back: exporter, signal handler, hooks, threads. At exit this is not needed."""
        if not self._active:
            return
        self._saver.wait()
        self._settle()
        self._detach()
        if self._exporter is not None:
            self._exporter.close()

    # Learning rate and snapshots ---------------------------------------------------------------------------

    @guarded("apply_lr", lambda: 1.0)
    def apply_lr(self, optimizer: Any, scheduler: Any = None) -> float:
        """Scale the learning rate: call it after restoring optimizer and scheduler, before the first update.

        The factor is ``lr_scale`` divided by the scale that the restored snapshot already carries (1 without a
        snapshot). A second call for the same optimizer or scheduler does nothing. Works on anything with torch's
        ``param_groups``, and with torch's schedulers.

        Returns:
            the factor.
        """
        self._scaler.apply(optimizer, scheduler)
        return self._scaler.factor

    def snapshot_due(self, step: int, *, last: bool = False) -> bool:
        """Whether to take a snapshot after this step: at multiples of the attempt's ``snapshot_every_steps``.

        Args:
            last: the training is finished after this step, so that one is due whatever its number (unless the
                attempt takes none).
        """
        every = self.parameters.snapshot_every_steps
        due = every > 0 and step > 0 and (last or step % every == 0)
        return due and self._saver.possible and self.role is None

    @contextlib.contextmanager
    def snapshot(self, step: int, *, replay_watermark: Any = None, extra: Any = None) -> Iterator[Path]:
        """A folder to write a snapshot into; it becomes one when the block ends without an exception.

        That happens in the background, so leave the folder alone then; the next snapshot, :meth:`complete` and
        :meth:`close` wait for it.

        An exception in the block, or a full disk, costs this snapshot only: it is logged and counted in
        ``rl_snapshot_failures_total{reason}``, and the training goes on.
        """
        if not self._active:
            with contextlib.suppress(Exception):
                yield NOWHERE
            return
        self._poll()
        with self._saver.folder(step, replay_watermark=replay_watermark, extra=extra) as folder:
            yield folder

    @guarded("snapshot", lambda: False)
    def save_snapshot(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        replay_watermark: Any = None,
        extra: Any = None,
        may_be_nonfinite: Sequence[str] = (),
        wait: bool = False,
    ) -> bool:
        """Take a snapshot of ``state`` (nested dicts, lists, tensors, arrays, plain values) in the background.

        A state with NaN or infinite values in it is not written.

        Args:
            may_be_nonfinite: shell patterns of paths in the state (``model/mask``, ``*/running_*``) that may hold
                them. Floats of Python's own may be infinite everywhere.
            wait: when the one before is still being written, wait for it rather than skip this one: for the
                last step.

        Returns:
            False: it was not taken; the reason is logged and counted.
        """
        if not self._active:
            return False
        self._poll()
        return self._saver.save(
            step,
            state,
            replay_watermark=replay_watermark,
            extra=extra,
            may_be_nonfinite=may_be_nonfinite,
            wait=wait,
        )

    @guarded("snapshot", lambda: False)
    def adopt(
        self,
        step: int,
        path: str | os.PathLike[str],
        *,
        how: Literal["link", "rename", "reference"] = "link",
        replay_watermark: Any = None,
        extra: Any = None,
        wait: bool = False,
    ) -> bool:
        """Take over a checkpoint that the trainer's framework has written.

        Args:
            how: link its files (then the framework must not write into them again), rename them, or refer to
                them where they are.
            wait: when the one before is still being written, wait for it rather than skip this one: for the
                last step.

        Returns:
            False: it was not taken over; the reason is logged and counted.
        """
        if not self._active:
            return False
        self._poll()
        return self._saver.adopt(
            step, Path(path), how=how, replay_watermark=replay_watermark, extra=extra, wait=wait
        )

    def load_snapshot(self) -> LoadedSnapshot | None:
        """The state to resume from, as :meth:`save_snapshot` took it; None: from scratch.

        Raises:
            SnapshotError: it cannot be read. (A trainer that went on from scratch would hide that.)
        """
        folder = self.resume_from
        if folder is None:
            return None
        from fusewire.snapshots import load_state, read_manifest  # noqa: PLC0415

        manifest = read_manifest(folder)
        return LoadedSnapshot(
            step=manifest.step,
            attempt=manifest.attempt,
            state=load_state(folder, rank=self.rank),
            lr_scale=manifest.lr_scale,
            replay_watermark=manifest.replay_watermark,
            folder=folder,
        )

    # The exporter ------------------------------------------------------------------------------------------

    @property
    def port(self) -> int | None:
        """Port of the exporter; None without one, or while it is not known yet."""
        return self._exporter.port if self._exporter else None

    def start(self, host: str, port: int, *, handle_signals: bool = True) -> None:
        """Serve, watch for SIGTERM and for crashes. :func:`fusewire.attach` calls it."""
        if handle_signals:
            self._stopping.install()
        self._crash.install()
        _RUNS.add(self)
        atexit.register(self._at_exit)
        self._prepare_files()
        if self._exporter is not None:
            self._exporter.start(host, port, self._write_address)

    def _make_exporter(self, registry: CollectorRegistry | None, gpus: Literal["visible", "all"]) -> Exporter:
        from prometheus_client import CollectorRegistry as Registry  # noqa: PLC0415

        from fusewire.exporter import Exporter as Made  # noqa: PLC0415

        return Made(
            self.parameters,
            self._recorder,
            phases=self._phases,
            snapshots=self._saver.metrics,
            errors=self.errors,
            minibatch_max=self._minibatch_max,
            scrapes=self._scrapes,
            keep_evidence=self._keep_evidence,
            registry=Registry() if registry is None else registry,
            gpus=gpus,
            clock=self._clock,
        )

    # Within ------------------------------------------------------------------------------------------------

    @guarded("step", lambda: None)
    def _step_carefully(self, step: int, signals: Mapping[str, Any]) -> None:
        if self._active:
            self._scalars.report(self._clock(), step, signals)
            self._careful = self._scalars.busy or self._screen.busy

    def _accept(self, moment: float, step: int, signals: Mapping[str, float], largest: Mapping[str, float]) -> None:
        """Take a step whose values are all floats, in order; ``largest``: of its minibatches."""
        signals, bad = self._screen.look(signals)
        self._minibatch_max.update(largest)
        self._recorder.append(moment, step, signals)
        if bad and self._evidence is not None:
            try:
                self._evidence.write_from_loop()
            except OSError as error:
                self.errors.note("last_values", error)

    @guarded("cuda", lambda: None)
    def _poll(self) -> None:
        if self._active:
            self._scalars.poll()

    @guarded("phase", _no_phase)
    def _enter_phase(self, name: str, expect_seconds: float) -> Phase | None:
        if not self._active:
            return None
        self._poll()
        phase = Phase(name=str(name), started=self._clock(), expected_seconds=float(expect_seconds))
        self._phases.enter(phase)
        return phase

    @guarded("phase", lambda: None)
    def _leave_phase(self, phase: Phase | None) -> None:
        if phase is None or not self._active:
            return
        self._phases.leave(phase)
        if self._phases.present is None:
            self._recorder.pause(phase.started, self._clock())

    def _restore(self) -> float:
        """Take over the restored snapshot's lineage; the factor on the learning rate that it holds."""
        if self.resume_from is None:
            return self.lr_scale
        try:
            from fusewire.snapshots import read_manifest  # noqa: PLC0415

            manifest = read_manifest(self.resume_from.resolve())
            self._recorder.restore_lineage(dict(manifest.lineage))
            return self.lr_scale / manifest.lr_scale
        except Exception as error:
            self.errors.note("resume", error)
            return self.lr_scale

    # Files -------------------------------------------------------------------------------------------------

    @property
    def _supervised(self) -> bool:
        """Whether a webhook started this attempt, and so lets it be scraped."""
        return self.run_dir is not None and (self.run_dir / ATTEMPT_FILE).exists()

    def _last_values(self) -> LastValues | None:
        from fusewire.evidence import LastValues as Made  # noqa: PLC0415 (numpy)

        if self._files is None or not self._files.main:
            return None
        return Made(self._files.last_values, self._recorder, clock=self._clock)

    @guarded("files", lambda: None)
    def _prepare_files(self) -> None:
        if self._files is not None:
            self._files.prepare()

    @guarded("files", lambda: None)
    def _write_address(self, host: str, port: int) -> None:
        if self._files is not None:
            self._files.write_address(host, port)

    @guarded("last_values", lambda: None)
    def _keep_evidence(self) -> None:
        if self._evidence is not None:
            self._evidence.write()

    # The process ends or forks -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Before an end: take in what is still on its way from the GPU, and write the last values."""
        end = time.monotonic() + CUDA_SECONDS_AT_EXIT
        self._poll()
        while self._scalars.waiting and time.monotonic() < end:
            time.sleep(0.01)
            self._poll()
        self._keep_evidence()

    def _wait_for_scrape(self) -> None:
        if self._exporter is None:
            return
        now, longest = self._clock(), self.parameters.linger_seconds
        seconds = self._scrapes.expected(now, first=longest if self._supervised else 0.0, second=longest)
        self._scrapes.wait_since(now, min(seconds, SCRAPE_SECONDS_AT_END), lambda: self._stopping.by_signal)

    def _on_crash(self) -> None:
        if not self._active:
            return
        self._settle()
        if self._exporter is None or self._completed or self._stopping.requested:
            return
        now, longest, interval = self._clock(), self.parameters.linger_seconds, self._scrapes.interval
        if interval is None:
            seconds = self._scrapes.expected(now, first=longest if self._supervised else 0.0, second=longest)
        else:
            seconds = min(longest, 2 * interval)
        if seconds > 0:
            logger.warning("fusewire: waiting up to %.1f s to be scraped once more", seconds)
            self._scrapes.wait_since(now, seconds, lambda: self._stopping.requested)

    def _at_exit(self) -> None:
        if self._active:
            self._settle()

    def _detach(self) -> None:
        self._active, self._careful = False, True
        self._stopping.uninstall()
        self._crash.uninstall()
        atexit.unregister(self._at_exit)

    def _after_fork_in_child(self) -> None:
        """A forked child is not the trainer: it neither serves, nor reports, nor swallows its signals."""
        if self._active:
            self._detach()
            if self._exporter is not None:
                self._exporter.abandon()


_RUNS: weakref.WeakSet[Run] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for run in list(_RUNS):
        run._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
