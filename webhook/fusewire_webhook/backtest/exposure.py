"""A recorded run as Prometheus would have scraped it: rows go through the exporter's own recorder and collector."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusewire.collectors.training import TrainingCollector
from fusewire.guard import Errors
from fusewire.phases import Phases
from fusewire.recorder import Recorder
from fusewire.saving import SnapshotMetrics
from fusewire.signals import CATALOGUE
from fusewire_webhook.backtest.model import Floats, RunLog
from fusewire_webhook.watch.prometheus import label_value

RETURN_WINDOW = 100
"""Updates; the default of a run's configuration."""


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """One run, scraped."""

    run: str
    scrapes: int
    series: dict[str, str]
    """Selector to values in promtool's notation."""


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
    target = _target(log)
    return Exposure(
        run=log.id,
        scrapes=scrapes,
        series={_selector(key, target): _notation(first, values) for key, (first, values) in collected.items()},
    )


def rows_seen(seconds: Floats, scrape_seconds: float) -> npt.NDArray[np.int64]:
    """For each scrape the number of rows that it can see; the last scrape sees all."""
    scrapes = int(np.ceil(seconds[-1] / scrape_seconds - 1e-6)) + 1
    instants = (np.arange(scrapes) + 1e-6) * scrape_seconds  # in spite of rounding
    return np.searchsorted(seconds, instants, side="right")


def _selector(key: tuple[str, ...], target: str) -> str:
    """``key`` is the name of a series, the names of its labels, and their values."""
    name, *labels = key
    half = len(labels) // 2
    pairs = zip(labels[:half], labels[half:], strict=True)
    return f"{name}{{{target}{''.join(f',{label}={label_value(value)}' for label, value in pairs)}}}"


def _target(log: RunLog) -> str:
    return (
        f'job="fusewire",instance="backtest",run={label_value(log.id)},attempt="0",'
        f"algorithm={label_value(log.algorithm)}"
    )


def _notation(first: int, values: array[float]) -> str:
    """promtool's notation: ``_x3`` is three missing scrapes, ``5x3`` is 5 four times."""
    parts = [f"_x{first}"] if first else []
    data = np.frombuffer(values)
    bits = data.view(np.int64)  # equal bits: NaN repeats too
    starts = np.flatnonzero(np.concatenate(([True], bits[1:] != bits[:-1])))
    lengths = np.diff(np.append(starts, len(data)))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        value = float(data[start])
        if not np.isfinite(value):  # promtool repeats numbers only
            parts += ["NaN" if np.isnan(value) else "Inf" if value > 0 else "-Inf"] * length
        else:
            parts.append(repr(value) if length == 1 else f"{value!r}x{length - 1}")
    return " ".join(parts)
