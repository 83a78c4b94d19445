"""A recorded run as Prometheus would have scraped it: rows go through the exporter's own recorder and collector."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fusewire.collectors.training import TrainingCollector
from fusewire.guard import Errors
from fusewire.phases import Phases
from fusewire.recorder import Recorder
from fusewire.saving import SnapshotMetrics
from fusewire.signals import CATALOGUE
from fusewire_webhook.backtest.model import Exposure, Floats, RunLog
from fusewire_webhook.watch.prometheus import label_value

RETURN_WINDOW = 100
"""Updates; the default of a run's configuration."""


STALE = np.uint64(0x7FF0000000000002).view(np.float64)
"""The NaN that stands for a sample that is missing; Prometheus marks the end of a series with its bits."""


def expose(
    log: RunLog, seconds: Floats, *, scrape_seconds: float, window_seconds: float, names: Collection[str]
) -> Exposure:
    """Play ``log``, whose rows were reported at ``seconds``, and scrape the series in ``names`` all along."""
    signals = [signal for signal in CATALOGUE if signal.name in log.columns]
    errors = Errors()
    recorder = Recorder(signals, started=0.0, window=window_seconds, return_window=RETURN_WINDOW, errors=errors)
    now = 0.0
    collector = TrainingCollector(
        recorder,
        phases=Phases(),
        snapshots=SnapshotMetrics(()),
        errors=errors,
        minibatch_max={},
        lr_scale=1.0,
        version="backtest",
        clock=lambda: now,
    )
    ends = rows_seen(seconds, scrape_seconds)
    scrapes = len(ends)
    collected: dict[tuple[str, ...], tuple[int, array[float]]] = {("up",): (0, array("d", [1.0] * scrapes))}
    row = 0
    for scrape in range(scrapes):
        for number in range(row, int(ends[scrape])):
            values = {name: float(c.values[number]) for name, c in log.columns.items() if c.reported[number]}
            if values:
                recorder.append(float(seconds[number]), number, values)
        row = int(ends[scrape])
        now = max(scrape * scrape_seconds, float(seconds[row - 1]) if row else 0.0)
        for family in collector.collect():
            for sample in family.samples:
                if sample.name in names:
                    key = (sample.name, *sample.labels, *sample.labels.values())
                    if key not in collected:
                        collected[key] = (scrape, array("d"))
                    collected[key][1].append(sample.value)
    target = {"job": "fusewire", "instance": "backtest", "run": log.id, "attempt": "0", "algorithm": log.algorithm}
    return Exposure(
        run=log.id,
        scrapes=scrapes,
        series={
            selector({"__name__": name, **target, **_labels(labels)}): notation(first, values)
            for (name, *labels), (first, values) in collected.items()
        },
    )


def rows_seen(seconds: Floats, scrape_seconds: float, *, scrapes: int | None = None) -> npt.NDArray[np.int64]:
    """For each scrape the number of rows that it can see; by default the last is the first to see all."""
    if scrapes is None:
        scrapes = int(np.ceil(seconds[-1] / scrape_seconds - 1e-6)) + 1
    instants = (np.arange(scrapes) + 1e-6) * scrape_seconds  # in spite of rounding
    return np.searchsorted(seconds, instants, side="right")


def selector(labels: Mapping[str, str]) -> str:
    """A series, ``__name__`` among its labels, in promtool's notation."""
    pairs = (f"{name}={label_value(value)}" for name, value in labels.items() if name != "__name__")
    return f"{labels['__name__']}{{{','.join(pairs)}}}"


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    """``pairs`` are the names of the labels and then their values."""
    half = len(pairs) // 2
    return dict(zip(pairs[:half], pairs[half:], strict=True))


def notation(first: int, values: array[float]) -> str:
    """promtool's notation: ``_x3`` is three missing scrapes, ``5x3`` is 5 four times, a gap starts ``stale``."""
    parts = [f"_x{first}"] if first else []
    data = np.frombuffer(values)
    bits = data.view(np.int64)  # equal bits: NaN repeats too
    starts = np.flatnonzero(np.concatenate(([True], bits[1:] != bits[:-1])))
    lengths = np.diff(np.append(starts, len(data)))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        value = float(data[start])
        if bits[start] == STALE.view(np.int64):
            parts += ["stale", *([f"_x{length - 1}"] if length > 1 else [])]
        elif not np.isfinite(value):  # promtool repeats numbers only
            parts += ["NaN" if np.isnan(value) else "Inf" if value > 0 else "-Inf"] * length
        else:
            parts.append(repr(value) if length == 1 else f"{value!r}x{length - 1}")
    return " ".join(parts)
