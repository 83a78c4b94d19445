"""What a trainer holds: :func:`attach` makes a :class:`Run`.

Nothing here raises into the training loop, waits for the GPU, or decides anything: an error becomes a count in
``fusewire_exporter_errors_total`` and one warning per kind. Only what people call before the loop raises:
:func:`attach` on unusable parameters, and :meth:`Run.load_snapshot`, because going on from scratch would be worse.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

from fusewire.attempt import ENVIRONMENT_PREFIX, AttemptParameters, RngPolicy
from fusewire.errors import AttemptError
from fusewire.files import write_json
from fusewire.guard import Errors, guarded, logger
from fusewire.learning_rate import LearningRateScaler
from fusewire.lingering import CrashHook, Scrapes
from fusewire.phases import Phase, Phases
from fusewire.saving import LoadedSnapshot, Saver
from fusewire.signals import CATALOGUE, Signal
from fusewire.stopping import Stopping
from fusewire.version import __version__

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from fusewire.evidence import LastValues
    from fusewire.exposition import ExporterServer
    from fusewire.housekeeping import Housekeeping
    from fusewire.recorder import Row

Scalar: TypeAlias = SupportsFloat | None
"""A number, a numpy scalar, a tensor of one element (CPU or CUDA), or None for "nothing to report"."""

READY_SECONDS = 60.0
READY_STEPS = 10
"""``/readyz`` fails when no step came for the longer of 60 s and 10 usual steps, outside a declared phase."""


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
        """See :func:`attach`. ``serves=False``: no exporter, as on ranks that do not report."""
        from prometheus_client import CollectorRegistry as Registry  # noqa: PLC0415

        from fusewire.recorder import SLICE, Recorder  # noqa: PLC0415 (numpy)
        from fusewire.scalars import Scalars  # noqa: PLC0415

        self.parameters = parameters
        self.rank = rank
        self.role = role
        self.errors = Errors()
        """Errors that were kept away from the training loop."""
        self.registry = Registry() if registry is None else registry
        self._clock = clock
        self._main = rank == 0 and role is None
        self._active = True
        self._completed = False
        self._recorder = Recorder(
            signals,
            started=clock(),
            window=parameters.window_seconds,
            return_window=parameters.return_window_updates,
            errors=self.errors,
        )
        self._rows = self._recorder.rows
        self._slice = SLICE
        self._scalars = Scalars(self.errors, self._accept)
        self._careful = False
        """Rows may not be appended as they are: something in them, or before them, needs a look."""
        self._never_finite = {signal.name for signal in signals if signal.absent_until_finite}
        self._awaiting: set[str] = set()
        """Signals that are reported as NaN because they have had no finite value yet."""
        self._minibatch_max: dict[str, float] = {}
        self._phases = Phases()
        self._stopping = Stopping()
        self._scrapes = Scrapes(clock)
        self._saver = Saver(
            self.run_dir, parameters, lineage=self._recorder.lineage, rank=rank, world_size=world_size
        )
        self._scaler = LearningRateScaler(self._restore_lineage())
        self._evidence = self._last_values() if self._main and self.run_dir else None
        self._server: ExporterServer | None = None
        self._housekeeping: Housekeeping | None = None
        self._crash = CrashHook(self._on_crash)
        if serves:
            self._collect(gpus)
        _RUNS.add(self)
        atexit.register(self._at_exit)

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

    def step(
        self,
        step: int,
        /,
        *,
        env_steps: int | None = None,
        episodes: int | None = None,
        **signals: Scalar,
    ) -> None:
        """Report one policy update.

        Args:
            step: its number, as the trainer counts; it goes back only in a new attempt.
            env_steps: environment steps so far, in total.
            episodes: finished episodes so far, in total.
            signals: values of declared signals (:data:`fusewire.signals.CATALOGUE` and those given to
                :func:`attach`); None is no report.
        """
        try:
            if (
                self._careful
                or type(total := sum(signals.values(), 0.0)) is not float  # type: ignore[arg-type]
                or total - total != 0.0
            ):
                self._step_carefully(step, env_steps, episodes, signals)
                return
            rows = self._rows
            rows.append((self._clock(), step, env_steps, episodes, signals))  # type: ignore[arg-type]
            if len(rows) >= self._slice:
                self._recorder.fold(wait=len(rows) >= 16 * self._slice)
        except Exception:
            self._step_carefully(step, env_steps, episodes, signals)

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
        """Say that the training has finished on purpose; waits for a snapshot that is being written."""
        if not self._active:
            return
        self._completed = True
        self._poll()
        self._saver.wait()
        self._write_evidence()
        folder = self._attempt_dir
        if folder is not None and self._main:
            folder.mkdir(parents=True, exist_ok=True)
            step = self._recorder.view(self._clock()).step
            write_json(folder / "completed.json", {"step": step, "time": time.time()})

    def close(self) -> None:
        """Take everything back: exporter, signal handler, hooks, threads. At exit this is not needed."""
        if not self._active:
            return
        self._saver.wait()
        self._poll()
        self._write_evidence()
        self._active, self._careful = False, True
        self._stopping.uninstall()
        self._crash.uninstall()
        atexit.unregister(self._at_exit)
        if self._housekeeping is not None:
            self._housekeeping.close()
        if self._server is not None:
            self._server.close()

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

    def snapshot_due(self, step: int) -> bool:
        """Whether to take a snapshot after this step: at multiples of the attempt's ``snapshot_every_steps``."""
        every = self.parameters.snapshot_every_steps
        return every > 0 and step > 0 and step % every == 0 and self._saver.possible and self.role is None

    @contextlib.contextmanager
    def snapshot(self, step: int, *, replay_watermark: Any = None, extra: Any = None) -> Iterator[Path]:
        """A folder to write a snapshot into; it becomes one when the block ends without an exception.

        An exception in the block, or a full disk, costs this snapshot only: it is logged and counted in
        ``rl_snapshot_failures_total{reason}``, and the training goes on.
        """
        if not self._active:
            raise RuntimeError("the run is closed, or this is a forked child of its process")
        with self._saver.folder(step, replay_watermark=replay_watermark, extra=extra) as folder:
            yield folder

    @guarded("snapshot", lambda: False)
    def save_snapshot(
        self, step: int, state: Mapping[str, Any], *, replay_watermark: Any = None, extra: Any = None
    ) -> bool:
        """Take a snapshot of ``state`` (nested dicts and lists of tensors, arrays and plain values) in the background.

        Returns:
            False: it was not taken; the reason is logged and counted.
        """
        if not self._active:
            return False
        self._poll()
        return self._saver.save(step, state, replay_watermark=replay_watermark, extra=extra)

    @guarded("snapshot", lambda: False)
    def adopt(
        self,
        step: int,
        path: str | os.PathLike[str],
        *,
        how: Literal["link", "rename", "reference"] = "link",
        replay_watermark: Any = None,
        extra: Any = None,
    ) -> bool:
        """Take over a checkpoint that the trainer's framework has written.

        Returns:
            False: it was not taken over; the reason is logged and counted.
        """
        if not self._active:
            return False
        self._poll()
        return self._saver.adopt(step, Path(path), how=how, replay_watermark=replay_watermark, extra=extra)

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
        return self._server.port if self._server else None

    def start(self, host: str, port: int, *, handle_signals: bool = True) -> None:
        """Serve, watch for SIGTERM and for crashes. :func:`attach` calls it."""
        from fusewire.exposition import ExporterServer, MetricsApp  # noqa: PLC0415

        if handle_signals:
            self._stopping.install()
        self._crash.install()
        self._prepare_files()
        if self._housekeeping is None:
            return
        app = MetricsApp(
            self.registry,
            attempt=self.attempt,
            ready=self._ready,
            set_window=self._recorder.set_window,
            scraped=self._scrapes.finished,
            clock=self._clock,
        )
        self._server = ExporterServer(app, host=host, port=port, listening=self._write_address, errors=self.errors)
        self._server.start()
        self._housekeeping.start()

    def _collect(self, gpus: Literal["visible", "all"]) -> None:
        from prometheus_client import ProcessCollector  # noqa: PLC0415

        from fusewire import collectors  # noqa: PLC0415
        from fusewire.housekeeping import Housekeeping  # noqa: PLC0415

        training = collectors.TrainingCollector(
            self._recorder,
            phases=self._phases,
            snapshots=self._saver.metrics,
            errors=self.errors,
            minibatch_max=self._minibatch_max,
            lr_scale=self.lr_scale,
            version=__version__,
            clock=self._clock,
        )
        nvml = collectors.NvmlCollector(self.errors, gpus=gpus)
        for collector in (
            training, nvml, collectors.TorchMemoryCollector(self.errors), collectors.CgroupCollector(self.errors)
        ):  # fmt: skip
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        self._housekeeping = Housekeeping(
            {"collector": nvml.refresh, "last_values": self._write_evidence}, self.errors
        )

    def _ready(self) -> tuple[bool, str]:
        phase = self._phases.present
        now = self._clock()
        if phase is not None:
            seconds = now - phase.started
            in_time = phase.expected_seconds == 0 or seconds <= phase.expected_seconds
            return in_time, f"in phase {phase.name} for {seconds:.0f} s"
        view = self._recorder.view(now)
        if view.updates == 0:
            return True, "no step yet"
        allowed = max(READY_STEPS * (view.usual or 0.0), READY_SECONDS)
        return view.since_step <= allowed, f"last step {view.since_step:.1f} s ago, {allowed:.0f} s allowed"

    # Within ------------------------------------------------------------------------------------------------

    @guarded("step", lambda: None)
    def _step_carefully(
        self, step: int, env_steps: int | None, episodes: int | None, signals: Mapping[str, Any]
    ) -> None:
        if self._active:
            self._scalars.report(self._clock(), step, env_steps, episodes, signals)
            self._set_careful()

    def _accept(self, row: Row, largest: dict[str, float]) -> None:
        """Take a row of floats, in order, and look at what is not finite in it."""
        *rest, signals = row
        bad = [name for name, value in signals.items() if not math.isfinite(value)]
        kept = dict(signals)
        for name in self._awaiting.intersection(signals).difference(bad):
            self._awaiting.discard(name)
            self._never_finite.discard(name)
        for name in self._never_finite.intersection(bad):
            if name not in self._awaiting and self._recorder.has_reported(name):
                self._never_finite.discard(name)
                continue
            self._awaiting.add(name)
            bad.remove(name)
            del kept[name]
        self._minibatch_max.update(largest)
        time_, step, env_steps, episodes = rest
        self._rows.append((time_, step, env_steps, episodes, kept))
        if len(self._rows) >= self._slice:
            self._recorder.fold()
        if bad and self._evidence is not None:
            try:
                self._evidence.write_from_loop()
            except OSError as error:
                self.errors.note("last_values", error)

    def _set_careful(self) -> None:
        self._careful = not self._active or self._scalars.busy or bool(self._awaiting)

    @guarded("cuda", lambda: None)
    def _poll(self) -> None:
        if self._active:
            self._scalars.poll()

    @guarded("phase", lambda: None)
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

    def _restore_lineage(self) -> float:
        """Take over the snapshot's lineage; the factor on the learning rate that it holds."""
        if self.resume_from is None:
            return self.lr_scale
        try:
            from fusewire.snapshots import read_manifest  # noqa: PLC0415

            manifest = read_manifest(self.resume_from)
            self._recorder.restore_lineage(dict(manifest.lineage))
            return self.lr_scale / manifest.lr_scale
        except Exception as error:
            self.errors.note("resume", error)
            return self.lr_scale

    # Files -------------------------------------------------------------------------------------------------

    @property
    def _attempt_dir(self) -> Path | None:
        return None if self.run_dir is None else self.run_dir / "attempts" / f"{self.attempt:03d}"

    def _last_values(self) -> LastValues | None:
        from fusewire.evidence import LAST_VALUES_FILE, LastValues  # noqa: PLC0415

        folder = self._attempt_dir
        return None if folder is None else LastValues(folder / LAST_VALUES_FILE, self._recorder, clock=self._clock)

    @guarded("files", lambda: None)
    def _prepare_files(self) -> None:
        folder = self._attempt_dir
        if folder is not None and self._main:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "completed.json").unlink(missing_ok=True)

    def _write_address(self, host: str, port: int) -> None:
        folder = self._attempt_dir
        if folder is None:
            return
        address = {"host": host, "port": port, "pid": os.getpid(), "attempt": self.attempt}
        name = "exporter.json"
        if not self._main:
            address |= {"rank": self.rank, "role": self.role or ""}
            name = f"exporter-{self.role or 'rank'}-{self.rank}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, address, durable=False)

    @guarded("last_values", lambda: None)
    def _write_evidence(self) -> None:
        if self._evidence is not None:
            self._evidence.write()

    # The process ends or forks -----------------------------------------------------------------------------

    def _on_crash(self, error: BaseException) -> None:
        if not self._active:
            return
        self._poll()
        self._write_evidence()
        if self._server is None or self._completed or self._stopping.requested:
            return
        interval = self._scrapes.interval
        longest = self.parameters.linger_seconds
        seconds = longest if interval is None else min(longest, 2 * interval)
        if seconds > 0:
            logger.warning("fusewire: waiting up to %.1f s to be scraped once more", seconds)
            self._scrapes.wait_since(self._clock(), seconds, lambda: self._stopping.requested)

    def _at_exit(self) -> None:
        if self._active:
            self._poll()
            self._write_evidence()

    def _after_fork_in_child(self) -> None:
        """A forked child is not the trainer: it neither serves, nor reports, nor swallows its signals."""
        if not self._active:
            return
        self._active, self._careful = False, True
        self._stopping.uninstall()
        self._crash.uninstall()
        if self._server is not None:
            self._server.abandon()


_RUNS: weakref.WeakSet[Run] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for run in list(_RUNS):
        run._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def attach(
    *,
    name: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    port: int | None = None,
    signals: Sequence[Signal] = (),
    rank: int | None = None,
    role: str | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
    registry: CollectorRegistry | None = None,
    gpus: Literal["visible", "all"] = "visible",
    handle_signals: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Attach fusewire to this process, which is going to train.

    Under the supervisor everything comes from ``FUSEWIRE_*``; standalone, the defaults of
    :class:`fusewire.AttemptParameters` hold (exporter on any free port of 127.0.0.1).

    Args:
        name: name of the run; by default as told, or ``standalone``.
        run_dir: folder of the run; by default as told. Without one there are no snapshots.
        port: port of the exporter; by default as told, or any free one.
        signals: further signals that :meth:`Run.step` will report.
        rank: of several processes that train together, which this is; by default ``RANK`` of the environment.
            Rank 0 reports; others do only when they give their ``rank`` or ``role`` here.
        role: what this process is where it is not the trainer, such as ``rollout``.
        world_size: processes that write a snapshot together; by default ``WORLD_SIZE`` of the environment, or 1.
        environ: instead of ``os.environ``.
        registry: where to register the collectors; by default one of our own.
        gpus: ``visible``: those that ``CUDA_VISIBLE_DEVICES`` names; ``all``: every one that NVML shows.
        handle_signals: chain a handler for SIGTERM (from the main thread only).
        clock: seconds, monotonic.

    Raises:
        AttemptError: the parameters cannot be used.
        RunNameError: the name cannot be used.
        ValueError: a signal is declared twice.
    """
    environment = dict(os.environ if environ is None else environ)
    if run_dir is not None:
        environment[f"{ENVIRONMENT_PREFIX}RUN_DIR"] = str(Path(run_dir).absolute())
    parameters = AttemptParameters.load(environment)
    if name is not None:
        parameters = replace(parameters, run=name)
    own_rank = _number(environment, "RANK", 0) if rank is None else rank
    run = Run(
        parameters,
        signals=_declared(signals),
        rank=own_rank,
        role=role,
        world_size=_number(environment, "WORLD_SIZE", 1) if world_size is None else world_size,
        serves=own_rank == 0 or rank is not None or role is not None,
        registry=registry,
        gpus=gpus,
        clock=clock,
    )
    assigned = parameters.exporter_port if own_rank == 0 and role is None else 0
    run.start(parameters.exporter_host, assigned if port is None else port, handle_signals=handle_signals)
    return run


def _declared(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    every = (*CATALOGUE, *signals)
    names = [signal.name for signal in every]
    for signal in signals:
        if names.count(signal.name) > 1:
            raise ValueError(f"signal {signal.name!r} is declared twice: take another name")
    return every


def _number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise AttemptError(f"{variable}={text!r} is not a number") from error
