"""The exporter of one process: collectors, HTTP server, and the thread that keeps them up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector

from fusewire.attempt import AttemptParameters
from fusewire.collectors import CgroupCollector, NvmlCollector, TorchMemoryCollector, TrainingCollector
from fusewire.exposition import ExporterServer, MetricsApp
from fusewire.guard import Errors
from fusewire.housekeeping import Housekeeping
from fusewire.lingering import Scrapes
from fusewire.phases import Phases
from fusewire.recorder import Recorder
from fusewire.saving import SnapshotMetrics
from fusewire.version import __version__

READY_SECONDS = 60.0
READY_STEPS = 10
"""``/readyz`` fails when no step came for the longer of 60 s and 10 usual steps, outside a declared phase."""


class Exporter:
    """Shows what the recorder folds."""

    def __init__(
        self,
        parameters: AttemptParameters,
        recorder: Recorder,
        *,
        phases: Phases,
        snapshots: SnapshotMetrics,
        errors: Errors,
        minibatch_max: Mapping[str, float],
        scrapes: Scrapes,
        keep_evidence: Callable[[], None],
        registry: CollectorRegistry,
        gpus: Literal["visible", "all"],
        clock: Callable[[], float],
    ) -> None:
        self._recorder = recorder
        self._phases = phases
        self._errors = errors
        self._clock = clock
        training = TrainingCollector(
            recorder,
            phases=phases,
            snapshots=snapshots,
            errors=errors,
            minibatch_max=minibatch_max,
            lr_scale=parameters.lr_scale,
            version=__version__,
            clock=clock,
        )
        nvml = NvmlCollector(errors, gpus=gpus)
        for collector in (training, nvml, TorchMemoryCollector(errors), CgroupCollector(errors)):
            registry.register(collector)
        ProcessCollector(registry=registry)
        self._app = MetricsApp(
            registry,
            attempt=parameters.attempt,
            ready=self.ready,
            set_window=recorder.set_window,
            scraped=scrapes.finished,
            clock=clock,
        )
        self._housekeeping = Housekeeping({"collector": nvml.refresh, "last_values": keep_evidence}, errors)
        self._server: ExporterServer | None = None

    @property
    def port(self) -> int | None:
        """Port of the server; None while it is not known yet."""
        return self._server.port if self._server else None

    def start(self, host: str, port: int, listening: Callable[[str, int], None]) -> None:
        """Serve; ``listening`` is called once the port is known."""
        self._server = ExporterServer(self._app, host=host, port=port, listening=listening, errors=self._errors)
        self._server.start()
        self._housekeeping.start()

    def close(self) -> None:
        """Stop both threads."""
        self._housekeeping.close()
        if self._server is not None:
            self._server.close()

    def abandon(self) -> None:
        """In a forked child, where the threads do not exist: give up the inherited socket."""
        if self._server is not None:
            self._server.abandon()

    def ready(self) -> tuple[bool, str]:
        """Whether the training makes progress, and why that is the answer."""
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
