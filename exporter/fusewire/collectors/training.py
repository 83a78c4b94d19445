"""The metrics of the training itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import core
from prometheus_client.registry import Collector

from fusewire import metrics
from fusewire.fold import Reading
from fusewire.guard import Errors
from fusewire.phases import Phases
from fusewire.recorder import Recorder
from fusewire.saving import SnapshotMetrics
from fusewire.signals import STEPS, Signal


class TrainingCollector(Collector):
    """Reads the recorder at a scrape. Costs the same at any step rate."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        phases: Phases,
        snapshots: SnapshotMetrics,
        errors: Errors,
        minibatch_max: Mapping[str, float],
        lr_scale: float,
        version: str,
        clock: Callable[[], float],
    ) -> None:
        self._recorder = recorder
        self._phases = phases
        self._snapshots = snapshots
        self._errors = errors
        self._minibatch_max = minibatch_max
        self._lr_scale = lr_scale
        self._version = version
        self._clock = clock

    def describe(self) -> Iterable[core.Metric]:
        """Nothing: families depend on what was reported."""
        return ()

    def collect(self) -> Iterator[core.Metric]:
        """Families of this instant."""
        now = self._clock()
        view = self._recorder.view(now, paused_at=self._phases.paused_at)
        yield from self._signals(view.signals)
        for metric, value in (
            (metrics.STEP, view.step),
            (metrics.UPDATES, view.updates),
            (metrics.ENV_STEPS, view.env_steps or 0),
            (metrics.EPISODES, view.episodes or 0),
            (metrics.LR_SCALE, self._lr_scale),
            (metrics.SECONDS_SINCE_STEP, view.since_step),
            (metrics.STEP_DURATION_USUAL, view.usual),
            (metrics.RETURN_SMOOTHED, view.return_smoothed),
            (metrics.RETURN_PEAK, view.return_peak),
            (metrics.RETURN_FLOOR, view.return_floor),
        ):
            if value is not None:
                yield metric.value(value)
        yield metrics.STEP_DURATION.histogram(view.duration_buckets, view.duration_sum)
        yield from self._phase(now)
        yield from self._snapshot()
        yield metrics.ERRORS.family(((where,), count) for where, count in self._errors.counts.items())
        yield metrics.INFO.family([((self._version,), 1)])

    def _signals(self, reading: Reading) -> Iterator[core.Metric]:
        largest = dict(self._minibatch_max)
        lows, highs = reading.run_min.tolist(), reading.run_max.tolist()
        values, reports = reading.last.tolist(), reading.reports.tolist()
        for number, signal in enumerate(self._recorder.signals):
            if not reports[number]:
                continue
            yield metrics.last(signal).value(values[number])
            runs = range(sum(n <= reports[number] for n in STEPS))
            yield metrics.run_min(signal).family([(_STEPS[i], lows[number][i]) for i in runs])
            yield metrics.run_max(signal).family([(_STEPS[i], highs[number][i]) for i in runs])
            if signal.name in largest:
                yield metrics.minibatch_max(signal).value(largest[signal.name])
        yield metrics.REPORTS.family(_by_signal(self._recorder.signals, reading.reports))
        yield metrics.NONFINITE.family(_by_signal(self._recorder.signals, reading.nonfinite))
        yield metrics.NONFINITE_STREAK.family(_by_signal(self._recorder.signals, reading.streak))

    def _phase(self, now: float) -> Iterator[core.Metric]:
        present = self._phases.present
        yield metrics.PHASE.family(((name,), float(inside)) for name, inside in self._phases.states().items())
        yield metrics.PHASE_SECONDS.value(now - present.started if present else 0.0)
        yield metrics.PHASE_EXPECTED.value(present.expected_seconds if present else 0.0)

    def _snapshot(self) -> Iterator[core.Metric]:
        snapshots = self._snapshots
        yield metrics.SNAPSHOTS.value(snapshots.staged_total)
        yield metrics.SNAPSHOT_FAILURES.family(((reason,), count) for reason, count in snapshots.failures.items())
        if snapshots.last_step is not None:
            yield metrics.SNAPSHOT_LAST_STEP.value(snapshots.last_step)
        yield metrics.SNAPSHOT_STALL.histogram(snapshots.stall_buckets, snapshots.stall_sum)
        yield metrics.SNAPSHOT_IN_FLIGHT.value(snapshots.writing)


_STEPS = tuple((str(n),) for n in STEPS)


def _by_signal(signals: tuple[Signal, ...], values: Any) -> Iterator[tuple[tuple[str], float]]:
    for signal, value in zip(signals, values.tolist(), strict=True):
        yield (signal.name,), value
