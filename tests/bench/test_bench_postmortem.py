"""What a postmortem costs: in time for a long journal, and in memory for the webhook that asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fusewire_webhook.breaker.events import StepsWatched
from fusewire_webhook.postmortem import postmortem_path
from fusewire_webhook.postmortem.background import run_child
from fusewire_webhook.postmortem.build import PROMETHEUS_SECONDS
from postmortem.recorded import RUN, TRIP, keep, observed, recovered, write_journal, write_run

pytestmark = pytest.mark.bench

BUDGET_SECONDS = 10.0
"""Of the product, by the clock, with all that Prometheus may take."""
EVENTS = 50_000
SPREAD = 1.15
"""Resident memory of a Python process swings by itself."""

_LISTENER = """
import re, sys
from pathlib import Path
import fusewire_webhook.service
if sys.argv[1] == "drawing":
    from fusewire_webhook.postmortem.build import write_postmortem
    write_postmortem(Path(sys.argv[2]), "cartpole")
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def incident(runs: Path, events: int) -> None:
    """The recorded incident after so many events of healthy training."""
    run_dir = write_run(runs)
    before, after = recovered()[:6], recovered()[6:]
    watched = [StepsWatched(at=TRIP - 1, attempt=0, step=30, watched=1)] * events
    write_journal(runs, [*before, *watched, *after])
    keep(run_dir, 0, observed())


async def child(runs: Path, prometheus_url: str | None = None) -> tuple[float, float]:
    """Seconds by the clock and of processor time of one postmortem, in the process that the webhook starts."""
    task: dict[str, Any] = {
        "runs_dir": str(runs), "run": RUN, "attempt": 0, "prometheus_url": prometheus_url, "scrape_interval": 1.0,
    }  # fmt: skip
    began, before = time.perf_counter(), _processor()
    assert await run_child(task) == (0, "")
    return time.perf_counter() - began, _processor() - before


@contextlib.asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """A Prometheus that tells the time as late as it may, and answers nothing else."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if (await request.post()).get("query") != "time()":
            await over.wait()
        await asyncio.sleep(0.9 * PROMETHEUS_SECONDS)
        return web.json_response(
            {"status": "success", "data": {"resultType": "scalar", "result": [TRIP, str(TRIP)]}}
        )

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    over.set()
    await runner.cleanup()


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def test_every_postmortem_fits_the_budget(tmp_path: Path) -> None:
    """Fifty thousand events before the trip, and a Prometheus that hangs: it is there within ten seconds."""
    await asyncio.to_thread(incident, tmp_path / "short", 0)
    await asyncio.to_thread(incident, tmp_path / "long", EVENTS)
    rows = [("short journal", await child(tmp_path / "short"))]
    rows.append((f"{EVENTS:,} events", await child(tmp_path / "long")))
    async with hanging() as url:
        rows.append(("Prometheus hangs", await child(tmp_path / "long", url)))
    sizes = [
        postmortem_path(tmp_path / "long" / RUN, 0, suffix).stat().st_size / 1e3 for suffix in ("html", "json")
    ]
    print(*(f"\n{name:18}{clock:6.2f} s by the clock, {used:.2f} s of processor" for name, (clock, used) in rows))
    print(f"HTML {sizes[0]:.0f} kB, kept answers {sizes[1]:.0f} kB")
    assert all(clock < BUDGET_SECONDS for _, (clock, _) in rows)


def test_webhook_stays_small(tmp_path: Path) -> None:
    """Drawing in the webhook itself would cost it memory for good: that is what the child is for."""
    incident(tmp_path / "runs", 0)
    found: dict[str, float] = {}
    for name in ("listening", "drawing"):
        done = subprocess.run(
            [sys.executable, "-c", _LISTENER, name, str(tmp_path / "runs")], capture_output=True, check=True
        )
        found[name] = json.loads(done.stdout) / 1024
    print(*(f"\n{name:12}{megabytes:6.0f} MB" for name, megabytes in found.items()))
    assert found["drawing"] > SPREAD * found["listening"]
