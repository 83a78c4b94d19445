"""A webhook with its console: the real application, engine, journal and snapshots, and a fake machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from breaker.doubles import SetEvidence, quick, write_snapshot
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.words import describe
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import RunConfig
from fusewire_webhook.settings.redact import Secret
from fusewire_webhook.watch.deadman import WatchStatus
from fusewire_webhook.watch.prometheus import Labels, Prometheus, Rule, RuleGroup, Series
from fusewire_webhook.web.app import build_app
from fusewire_webhook.web.deps import Deps
from fusewire_webhook.web.metrics import Metrics
from fusewire_webhook.web.receiver import Receiver

TOKEN = "command-token-8a2e6d40"


class CannedPrometheus(Prometheus):
    """Answers range queries with a curve that a test sets, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.last_end = 0.0
        self.curve: Callable[[float], float] = lambda at: 0.02 + 0.004 * math.sin(at / 3)
        self.attempts: tuple[str, ...] = ("0",)

    async def query_range(self, expr: str, *, start: float, end: float, step: float) -> list[Series]:
        self.asked.append(expr)
        self.last_end = end
        count = int((end - start) / step) + 1
        points = tuple((start + n * step, self.curve(start + n * step)) for n in range(count))
        return [Series(labels={"attempt": attempt}, points=points) for attempt in self.attempts]

    async def rules(self) -> list[RuleGroup]:
        labels: Labels = {"action": "trip"}
        rule = Rule(
            kind="alerting",
            name="KLSpike",
            query='rl_approx_kl_run_min{steps="10"} > 0.1',
            labels=labels,
            health="ok",
        )
        return [RuleGroup(name="trips", file="f", interval=1, evaluation_time=0, last_evaluation=0, rules=(rule,))]


@dataclass(kw_only=True)
class Site:
    """What a test reaches."""

    url: str
    engine: Engine
    journal: Journal
    actuator: FakeActuator
    prometheus: CannedPrometheus
    runs_dir: Path
    verdicts: dict[str, list[dict[str, Any]]]
    watch: list[WatchStatus]

    def journaled(self, run: str, kind: str) -> list[dict[str, Any]]:
        """What the journal holds of a kind, oldest first."""
        return [e.event.payload() for e in self.journal.read(run) if e.event.kind == kind]

    async def promoted(self, run: str, step: int, attempt: int = 0) -> str:
        """A stable snapshot on the disk and in the journal; its name."""
        name = write_snapshot(self.runs_dir / run, step, attempt)
        await self.engine.promote(run, name, by="gate", evidence={}, baselines={})
        return name

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def site(
    folder: Path,
    *names: str,
    runs: Mapping[str, RunConfig] | None = None,
    token: str | None = None,
    port: int = 0,
    alert_token: str | None = None,
    **deps: Any,
) -> AsyncIterator[Site]:
    """Serve the console for these runs, once each has started."""
    journal, actuator, prometheus = Journal(folder / "journal.db"), FakeActuator(), CannedPrometheus()
    engine = Engine(
        runs_dir=folder / "runs",
        runs=runs or {name: quick(algorithm="ppo") for name in names},
        journal=journal,
        actuator=actuator,
        evidence=SetEvidence(),
    )
    metrics = Metrics(views=engine.views)
    verdicts: dict[str, list[dict[str, Any]]] = {}
    watch = [WatchStatus()]

    async def read_log(run: str, after: int, limit: int) -> list[dict[str, Any]]:
        entries = await asyncio.to_thread(lambda: list(journal.read(run, after, limit)))
        return [
            {"seq": e.seq, "at": e.event.at, "kind": e.event.kind, "words": describe(e.event)} | e.event.payload()
            for e in entries
        ]

    app = build_app(
        Deps(
            engine=engine,
            receiver=Receiver(store=engine, metrics=metrics, beat=float),
            metrics=metrics,
            read_log=read_log,
            verdicts=lambda run: verdicts.get(run, []),
            watch=lambda: watch[0],
            command_token=None if token is None else Secret(token),
            alert_token=None if alert_token is None else Secret(alert_token),
            prometheus=prometheus,
            runs_dir=folder / "runs",
            **deps,
        )
    )
    await engine.start()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    try:
        await runner.setup()
        listener = web.TCPSite(runner, "127.0.0.1", port)
        await listener.start()
        served = Site(
            url=f"http://127.0.0.1:{runner.addresses[0][1]}", engine=engine, journal=journal, actuator=actuator,
            prometheus=prometheus, runs_dir=folder / "runs", verdicts=verdicts, watch=watch,
        )  # fmt: skip
        await served.until(lambda: all(view.live or view.finished for view in engine.views()))
        yield served
    finally:
        await runner.cleanup()
        await engine.close(stop_runs=False)
        journal.close()
