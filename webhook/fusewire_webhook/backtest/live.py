"""A run as a live Prometheus remembers it: the stored series themselves, which the rules saw and see again."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import aiohttp
import numpy as np
import numpy.typing as npt

from fusewire.signals import CATALOGUE
from fusewire_webhook.backtest.exposure import STALE, notation, selector
from fusewire_webhook.backtest.model import Column, Exposure, Floats, LogError, RunLog
from fusewire_webhook.watch.prometheus import Prometheus, Series, matchers

MOST_POINTS = 10_000
"""Of a series in one answer; Prometheus gives at most 11,000."""


def read_live(
    url: str,
    *,
    run: str,
    attempt: int | None,
    range_seconds: float,
    scrape_seconds: float,
    names: Collection[str],
) -> RunLog:
    """The last ``range_seconds`` of a run, of one attempt or of its newest in that time.

    The log carries the stored series as its exposure. What happened between two scrapes is in them as far as the
    exporter folded it (``run_min``, ``run_max``, counters). Its rows are the scrapes after which the update counter
    had moved, each with the last value of every signal that was reported since the row before.

    Args:
        names: series that the rules read.

    Raises:
        LogError: Prometheus knows nothing of the run in that range.
        PrometheusError: it does not answer.
    """
    identity = matchers(run=run) if attempt is None else matchers(run=run, attempt=attempt)
    return asyncio.run(_read(url, run, identity, names, _Past(span=range_seconds, step=scrape_seconds)))


async def _read(url: str, run: str, identity: str, names: Collection[str], past: _Past) -> RunLog:
    async with aiohttp.ClientSession() as session:
        client = Prometheus(url, session=session, timeout=60.0)
        end = await client.now()
        updates = await past.series(client, f"max by (attempt, algorithm) (rl_updates_total{identity})", end)
        if not updates:
            raise LogError(f"{url}: no run {run!r} in the last {past.span:g} s; look at its labels run and attempt")
        newest = max(updates, key=lambda series: int(series.labels.get("attempt", "0")))
        number = newest.labels.get("attempt", "0")
        wanted = sorted({*names, "rl_reports_total", *(f"rl_{signal.name}" for signal in CATALOGUE)})
        chosen = matchers(run=run, attempt=number)
        found = [series for name in wanted for series in await past.series(client, name + chosen, end)]
    grid = _Grid(newest, past.step)
    counted = grid.held(newest)
    moved = np.concatenate(([True], np.diff(counted) != 0))
    columns = dict(_columns(found, grid, moved))
    if not columns:
        raise LogError(f"{url}: run {run!r} reported no known signal in the last {past.span:g} s")
    return RunLog(
        id=run,
        columns=columns,
        steps=counted[moved],
        seconds=np.arange(len(counted), dtype=np.float64)[moved] * np.float64(past.step),
        algorithm=newest.labels.get("algorithm", ""),
        stored=Exposure(
            run=run,
            scrapes=len(counted),
            series={
                selector(series.labels): notation(0, array("d", grid.placed(series)))
                for series in found
                if series.labels["__name__"] in names
            },
        ),
        notes=(
            f"attempt {number}, judged by the stored series; a row is a scrape with new updates",
            *_unseen(counted),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Past:
    """A stretch of time before some instant, in seconds."""

    span: float
    step: float

    async def series(self, client: Prometheus, expr: str, end: float) -> list[Series]:
        """Like :meth:`Prometheus.query_range`, in as many parts as it takes."""
        points: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        steps = int(self.span / self.step)
        for first in range(0, steps + 1, MOST_POINTS):
            last = min(first + MOST_POINTS - 1, steps)
            start, stop = (end - (steps - number) * self.step for number in (first, last))
            for series in await client.query_range(expr, start=start, end=stop, step=self.step):
                points.setdefault(tuple(sorted(series.labels.items())), []).extend(series.points)
        return [Series(labels=dict(labels), points=tuple(known)) for labels, known in points.items()]


class _Grid:
    """The scrapes from the first to the last one that showed the run."""

    def __init__(self, updates: Series, step: float) -> None:
        self._start = updates.points[0][0]
        self._step = step
        self._length = self._indices(updates)[-1] + 1

    def placed(self, series: Series) -> Floats:
        """[scrapes]; :data:`STALE` where the series was not there."""
        values = np.full(self._length, STALE)
        indices = self._indices(series)
        inside = (indices >= 0) & (indices < self._length)
        values[indices[inside]] = np.array([value for _, value in series.points])[inside]
        return values

    def held(self, series: Series) -> Floats:
        """[scrapes]; where the series was not there, what it was before."""
        values = self.placed(series)
        latest = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
        return values[latest]

    def _indices(self, series: Series) -> npt.NDArray[np.int64]:
        times = np.array([time for time, _ in series.points])
        return np.rint((times - self._start) / self._step).astype(np.int64)


def _columns(found: list[Series], grid: _Grid, moved: npt.NDArray[np.bool_]) -> Iterator[tuple[str, Column]]:
    """A gauge stays when nobody reports it: whether a row reported a signal is what its counter of reports says."""
    found = sorted(found, key=lambda series: len(series.points))  # of a name the longest counts
    gauges = {series.labels["__name__"]: grid.placed(series) for series in found}
    counters = {
        series.labels.get("signal"): grid.held(series)[moved]
        for series in found
        if series.labels["__name__"] == "rl_reports_total"
    }
    for signal in CATALOGUE:
        if (values := gauges.get(f"rl_{signal.name}")) is None:
            continue
        there = (values.view(np.int64) != STALE.view(np.int64))[moved]
        counted = counters.get(signal.name)
        reported = there if counted is None else there & (np.diff(counted, prepend=0.0) != 0)
        if reported.any():
            yield signal.name, Column(values=values[moved], reported=reported)


def _unseen(counted: Floats) -> Iterator[str]:
    moves = np.diff(counted)
    if unseen := int(np.clip(moves - 1, 0, None).sum()):
        yield (
            f"{unseen:,} of {int(moves.clip(0).sum()) + 1:,} updates lay between two scrapes: pictures lack them, "
            "the rules know them from run_min, run_max and the counters"
        )
