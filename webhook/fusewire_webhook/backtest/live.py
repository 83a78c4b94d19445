"""A run as a live Prometheus remembers it: the signals' last values over a range, one row a scrape."""

from __future__ import annotations

import asyncio

import aiohttp
import numpy as np

from fusewire.signals import CATALOGUE
from fusewire_webhook.backtest.model import Column, Floats, LogError, RunLog
from fusewire_webhook.watch.prometheus import Prometheus, Series, matchers


def read_live(url: str, *, run: str, attempt: int | None, range_seconds: float, scrape_seconds: float) -> RunLog:
    """The last ``range_seconds`` of a run, of one attempt or of its newest in that time.

    Only scrapes after which the update counter had moved become rows. A trainer that makes several updates between
    two scrapes is seen once for them: rules that count updates in a row are then judged on fewer of them.

    Raises:
        LogError: Prometheus knows nothing of the run in that range.
        PrometheusError: it does not answer.
    """
    return asyncio.run(_read(url, run, attempt, range_seconds, scrape_seconds))


async def _read(url: str, run: str, attempt: int | None, span: float, step: float) -> RunLog:
    async with aiohttp.ClientSession() as session:
        client = Prometheus(url, session=session, timeout=60.0)
        end = await client.now()
        identity = matchers(run=run) if attempt is None else matchers(run=run, attempt=attempt)
        updates = await client.query_range(
            f"max by (attempt) (rl_updates_total{identity})", start=end - span, end=end, step=step
        )
        if not updates:
            raise LogError(f"{url}: no run {run!r} in the last {span:g} s; look at its labels run and attempt")
        newest = max(updates, key=lambda series: int(series.labels.get("attempt", "0")))
        number = newest.labels.get("attempt", "0")
        start, counted = _grid(newest, step)
        chosen = matchers(run=run, attempt=number)
        columns = {
            signal.name: values
            for signal in CATALOGUE
            for values in [
                _on_grid(
                    await client.query_range(
                        f"max by (run) (rl_{signal.name}{chosen})", start=end - span, end=end, step=step
                    ),
                    start,
                    step,
                    len(counted),
                )
            ]
            if values is not None
        }
    moved = np.concatenate(([True], np.diff(counted) != 0))
    kept = {
        name: Column(values=column.values[moved], reported=column.reported[moved])
        for name, column in columns.items()
        if column.reported[moved].any()
    }
    if not kept:
        raise LogError(f"{url}: run {run!r} reported no known signal in the last {span:g} s")
    return RunLog(
        id=f"{run}-{number}",
        columns=kept,
        steps=counted[moved],
        seconds=np.arange(len(counted), dtype=np.float64)[moved] * np.float64(step),
        notes=("read from Prometheus: one row a scrape in which the update counter had moved",),
    )


def _grid(series: Series, step: float) -> tuple[float, Floats]:
    """Time of the first point, and the counter at each step from there on; gaps repeat what was before."""
    times = np.array([time for time, _ in series.points])
    indices = np.rint((times - times[0]) / step).astype(np.int64)
    values = np.full(indices[-1] + 1, np.nan)
    values[indices] = [value for _, value in series.points]
    latest = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
    return float(times[0]), values[latest]


def _on_grid(found: list[Series], start: float, step: float, length: int) -> Column | None:
    if not found:
        return None
    values, reported = np.full(length, np.nan), np.zeros(length, np.bool_)
    for time, value in found[0].points:
        index = round((time - start) / step)
        if 0 <= index < length:
            values[index], reported[index] = value, True
    return Column(values=values, reported=reported)
