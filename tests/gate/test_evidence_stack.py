"""Was an attempt clean since a snapshot that was written hours ago? Asked of a real Prometheus with a past."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import NullObserver, SnapshotWriter, snapshot_name
from fusewire_webhook.watch.evidence import PrometheusEvidence
from fusewire_webhook.watch.prometheus import Prometheus
from servers import running

pytestmark = pytest.mark.stack

AGO = 10_800
"""Seconds since the attempts began; each makes a step a second."""
LIFE = 120
SNAPSHOT = 60
"""The step of each attempt's snapshot."""

TRIP = 'alertname="Trip",alertstate="pending",action="trip",class="divergence"'
HOLD = 'alertname="Hold",alertstate="pending",action="hold"'
STALL = 'alertname="Stall",alertstate="firing",action="trip",class="infrastructure"'

ATTEMPTS = {
    "clean": (0, ""),
    "before": (40, TRIP),
    "pending": (90, TRIP),
    "hold": (90, HOLD),
    "stalled": (90, STALL),
}
"""By run: when an alert was active, in seconds after the attempt's begin, and its labels."""


PARTLY = {"ended": range(SNAPSHOT), "lost": range(SNAPSHOT - 50), "forgotten": range(SNAPSHOT + 10, LIFE)}
"""By run, the seconds of which Prometheus knows: to the attempt's end, or not all of it."""
RUNS = (*ATTEMPTS, *PARTLY, "never")


def exposition(began: int) -> str:
    """The past of every run."""
    steps = {run: range(LIFE) for run in ATTEMPTS} | PARTLY
    lines = ["# TYPE rl_step gauge"]
    lines += [f'rl_step{{run="{run}",attempt="0"}} {n} {began + n}' for run, seen in steps.items() for n in seen]
    lines.append("# TYPE ALERTS gauge")
    lines += [
        f'ALERTS{{run="{run}",attempt="0",{labels}}} 1 {began + at + n}'
        for run, (at, labels) in ATTEMPTS.items()
        if labels
        for n in range(5)
    ]
    return "\n".join([*lines, "# EOF", ""])


def write_snapshot(run_dir: Path, *, at: float) -> None:
    """A small complete snapshot, written at that time by the trainer's clock."""
    run_dir.mkdir(parents=True)
    parameters = AttemptParameters(run=run_dir.name, run_dir=str(run_dir))
    writer = SnapshotWriter(
        run_dir, parameters, parent=None, lineage=dict, observer=NullObserver(), clock=lambda: at
    )
    with writer.folder(SNAPSHOT) as folder:
        (folder / "state.bin").write_bytes(b"weights")
    writer.close()


def _fill(folder: Path, text: str) -> None:
    (folder / "in.txt").write_text(text)
    (folder / "prometheus.yml").write_text("{}")
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "in.txt", "data"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)


@asynccontextmanager
async def remembering(folder: Path, text: str) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes nothing and remembers what the text says."""
    await asyncio.to_thread(_fill, folder, text)
    command = ("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data")
    with running(*command, folder=folder) as server:
        async with aiohttp.ClientSession() as session:
            yield Prometheus(server.url, session=session)


async def test_what_was_unclean_hours_ago_is_still_known_and_what_was_not_seen_is_unknown(tmp_path: Path) -> None:
    """Alerts since the snapshot count however long ago it was, holds too; no data is no yes."""
    began = int(time.time()) - AGO
    name = snapshot_name(SNAPSHOT, 0)
    for run in RUNS:
        wrong = 1200.0 if run in ATTEMPTS else 0.0  # seconds by which the trainer's clock is
        write_snapshot(tmp_path / "runs" / run, at=began + SNAPSHOT + wrong)
    async with remembering(tmp_path, exposition(began)) as prometheus:
        evidence = PrometheusEvidence(prometheus, runs_dir=tmp_path / "runs")
        found = {run: await evidence.unclean_since(run, 0, name) for run in RUNS}
        missing = await evidence.unclean_since("clean", 0, snapshot_name(SNAPSHOT + 1, 0))
    assert found == {
        "clean": (),
        "before": (),
        "pending": ("Trip was pending",),
        "hold": ("Hold was pending",),
        "stalled": (),
        "ended": (),
        "lost": None,
        "forgotten": None,
        "never": None,
    }
    assert missing is None
