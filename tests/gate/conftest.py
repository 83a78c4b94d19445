"""A small laboratory: a real Prometheus and Alertmanager that watch an exporter which the test writes itself."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import NullObserver, SnapshotStore, SnapshotWriter
from fusewire_webhook.breaker.events import Event, StepsWatched
from fusewire_webhook.breaker.state import RunState, Snapshot
from fusewire_webhook.breaker.transition import step
from fusewire_webhook.breaker.view import RunView, view_of
from fusewire_webhook.settings.config import RunConfig, SnapshotConfig
from fusewire_webhook.stack import Stack, start_stack
from fusewire_webhook.watch.prometheus import Alertmanager, Prometheus, RuleGroup
from fusewire_webhook.watch.promoter import Promoter

ROOT = Path(__file__).parents[2]
RUN = "cartpole"
INTERVAL = 0.5
"""Seconds between scrapes and between evaluations. A scrape that takes longer fails: a busy machine must do it."""
PATIENCE = 60.0
"""Seconds after which what is waited for will not come."""

TRIP_RULE = """
      - alert: KLSpike
        expr: max without (instance, steps) (last_over_time(rl_approx_kl_run_min{steps="1"}[1750ms])) > 0.5
        keep_firing_for: 10m
        labels: {action: trip, class: divergence, severity: critical}
        annotations: {summary: "{{ $labels.run }}: KL {{ $value }}"}
"""
WATCHDOG_RULE = """
      - alert: Watchdog
        expr: vector(time())
        labels: {action: watchdog, severity: none}
        annotations: {value: '{{ printf "%.3f" $value }}'}
"""


def rule_file(*rules: str, group: str = "trips") -> str:
    """A rule file with one group."""
    return f"groups:\n  - name: {group}\n    rules:{''.join(rules)}"


class Engine:
    """What the gate and its neighbours need of the engine, in memory and on the real snapshot store."""

    def __init__(self, runs_dir: Path, *runs: str) -> None:
        self.events: list[tuple[str, Event]] = []
        self.journaled: list[str] = []
        self.looks: list[tuple[str, int, float | None]] = []
        self.due = False
        self.promotions: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = []
        self._runs_dir = runs_dir
        self._views = {
            run: view_of(run, 0, RunState(declared=True, attempt=0, live=True), algorithm="ppo") for run in runs
        }
        self._folded = dict.fromkeys(runs, RunState(declared=True, attempt=0, live=True))

    def views(self) -> Iterable[RunView]:
        return tuple(self._views.values())

    def view(self, run: str) -> RunView:
        return self._views[run]

    def change(self, run: str, **changes: Any) -> None:
        self._views[run] = replace(self._views[run], **changes)

    async def submit(self, run: str, event: Event) -> None:
        self.events.append((run, event))
        self._folded[run] = step(self._folded[run], event)
        self.change(run, unpromoted=view_of(run, 0, self._folded[run]).unpromoted)

    def saw(self, run: str, look: StepsWatched) -> bool:
        self.events.append((run, look))
        return self.due

    def looked(self, run: str, attempt: int, updates: float | None, *, scrape_interval: float) -> None:
        self.looks.append((run, attempt, updates))

    async def journal_steps(self, run: str) -> None:
        self.journaled.append(run)

    async def promote(
        self,
        run: str,
        name: str,
        *,
        by: str,
        evidence: dict[str, Any],
        baselines: dict[str, Any],
        verified: bool = False,
    ) -> None:
        SnapshotStore(self._runs_dir / run).promote(name, by=by, evidence=evidence, baselines=baselines)
        self.promotions.append((run, name, evidence, baselines))
        info = SnapshotStore(self._runs_dir / run).get(name)
        snapshot = vars(Snapshot(name=name, step=info.step, attempt=info.attempt))
        self.change(run, promoted=(*self._views[run].promoted, dict(snapshot)))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]


def write_snapshot(run_dir: Path, step: int, attempt: int = 0) -> str:
    """A small complete snapshot; its name."""
    parameters = AttemptParameters(run=run_dir.name, run_dir=str(run_dir), attempt=attempt)
    writer = SnapshotWriter(run_dir, parameters, parent=None, lineage=dict, observer=NullObserver())
    with writer.folder(step) as folder:
        (folder / "state.bin").write_bytes(b"weights " * 64)
    writer.close()
    return f"step-{step:012d}-a{attempt:03d}"


@dataclass
class Exporter:
    """What the watched attempt exports."""

    step: float = 0.0
    reports: float = 0.0
    signals: dict[str, float] = field(default_factory=lambda: {"approx_kl": 0.01, "value_loss": 1.0})
    silent: set[str] = field(default_factory=set)
    """Signals that the trainer has stopped reporting; their last value is still exported."""
    extra: str = ""
    up: bool = True
    reported: dict[str, float] = field(default_factory=dict)

    def advance(self, steps: float) -> None:
        self.step += steps
        for name in self.signals.keys() - self.silent:
            self.reported[name] = self.reported.get(name, 0.0) + steps

    def text(self) -> str:
        lines = [f"rl_step {self.step}", f"rl_updates_total {self.step}", self.extra]
        for name, value in self.signals.items():
            lines += [f"rl_{name} {value}", f'rl_nonfinite_total{{signal="{name}"}} {int(math.isnan(value))}']
            lines += [f'rl_{name}_run_{fold}{{steps="1"}} {value}' for fold in ("min", "max")]
            lines += [f'rl_reports_total{{signal="{name}"}} {self.reported.get(name, 0.0)}']
        return "\n".join(lines) + "\n"


Condition = Callable[[], bool | Awaitable[bool]]


class Lab:
    """The servers, the exporter and a promoter of one run."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.runs_dir = folder / "runs"
        self.run_dir = self.runs_dir / RUN
        self.run_dir.mkdir(parents=True)
        self.exporter = Exporter()
        self.engine = Engine(self.runs_dir, RUN)
        self.posted: list[dict[str, Any]] = []
        self.labels = {"run": RUN, "attempt": "0", "algorithm": "ppo"}
        self.session = session
        self.stack: Stack
        self.port = 0

    @property
    def rules(self) -> Path:
        return self.folder / "rules.yaml"

    @property
    def prometheus(self) -> Prometheus:
        return Prometheus(self.stack.prometheus_url, session=self.session, timeout=PATIENCE)

    @property
    def alertmanager(self) -> Alertmanager:
        return Alertmanager(self.stack.alertmanager_url, session=self.session, timeout=PATIENCE)

    def promoter(self, *, watch_steps: int = 20, watch_seconds: float | None = None, **more: Any) -> Promoter:
        config = RunConfig(
            command=("true",),
            window_seconds=0.5,
            snapshots=SnapshotConfig(watch_steps=watch_steps, watch_seconds=watch_seconds),
        )
        return Promoter(
            self.engine,
            prometheus=self.prometheus,
            runs={RUN: config},
            runs_dir=self.runs_dir,
            scrape_interval=INTERVAL,
            evaluation_interval=INTERVAL,
            **more,
        )

    def snapshot(self) -> str:
        return write_snapshot(self.run_dir, int(self.exporter.step))

    async def train(self, seconds: float, *, promoter: Promoter | None = None) -> None:
        """Let the attempt make steps, and the promoter its rounds, for so long."""
        end = time.monotonic() + seconds
        await self.until(lambda: time.monotonic() >= end, promoter=promoter)

    async def until(self, condition: Condition, *, promoter: Promoter | None = None, rate: float = 100.0) -> None:
        """Let the attempt make ``rate`` steps a second, and the promoter its rounds, until the condition holds."""
        last = time.monotonic()
        end = last + PATIENCE
        while True:
            if promoter is not None:
                await promoter.round()
            if (holds := condition()) is True or (isinstance(holds, Awaitable) and await holds):
                return
            assert time.monotonic() < end, f"it did not happen; the gate says {promoter and promoter.latest(RUN)}"
            await asyncio.sleep(0.1)
            now = time.monotonic()
            self.exporter.advance((now - last) * rate)
            last = now

    async def reload(self, text: str) -> None:
        """Edit the rules and let Prometheus load them."""
        before = await self.prometheus.rules()
        self.rules.write_text(text)
        self.signal_prometheus(signal.SIGHUP)

        async def loaded() -> bool:
            now = await self.prometheus.rules()
            return [g.rules for g in _timeless(now)] != [g.rules for g in _timeless(before)]

        await self.until(loaded)

    def signal_prometheus(self, number: int) -> None:
        """Send a signal to the server."""
        pid = self.stack.children["prometheus"].pid
        assert pid is not None
        os.kill(pid, number)

    async def evaluated(self, rule: str) -> bool:
        """Has this rule been evaluated at least once?"""
        groups = await self.prometheus.rules()
        return any(found.name == rule and found.health == "ok" for group in groups for found in group.rules)

    async def alert(self, name: str, state: str) -> bool:
        """Is this alert in this state?"""
        return bool(await self.prometheus.query(f'ALERTS{{alertname="{name}",alertstate="{state}"}}'))

    async def seen(self) -> bool:
        """Has Prometheus seen the step at which the attempt is?"""
        samples = await self.prometheus.query(f'rl_step{{run="{RUN}"}}')
        return [sample.value for sample in samples] == [self.exporter.step]

    async def silent(self, name: str) -> bool:
        """Is this alert neither pending nor firing?"""
        return not await self.prometheus.query(f'ALERTS{{alertname="{name}"}}')

    async def scraped(self) -> None:
        """Wait until Prometheus sees the exporter and has evaluated its rules."""

        async def seen() -> bool:
            samples = await self.prometheus.query("last_over_time(rl_step[5s])")
            groups = await self.prometheus.rules()
            return bool(samples) and all(rule.health != "unknown" for group in groups for rule in group.rules)

        await self.until(seen)


def _timeless(groups: list[RuleGroup]) -> list[RuleGroup]:
    return [
        replace(group, rules=tuple(replace(rule, last_evaluation=0.0, health="") for rule in group.rules))
        for group in groups
    ]


Start = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def start_lab(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the laboratory with a rule file."""
    async with aiohttp.ClientSession() as session:
        lab = Lab(tmp_path, session)

        async def sd(_: web.Request) -> web.Response:
            labels = {**lab.labels, "__metrics_path__": "/attempt"}  # /metrics is what the webhook says of itself
            return web.json_response([{"targets": [f"127.0.0.1:{lab.port}"], "labels": labels}])

        async def metrics(request: web.Request) -> web.Response:
            if request.headers.get("X-Prometheus-Scrape-Timeout-Seconds") is None or not lab.exporter.up:
                return web.Response(status=503)
            return web.Response(text=lab.exporter.text())

        async def alerts(request: web.Request) -> web.Response:
            lab.posted.append(await request.json())
            return web.Response()

        app = web.Application()
        app.add_routes([web.get("/sd", sd), web.get("/attempt", metrics), web.post("/alerts", alerts)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        lab.port = runner.addresses[0][1]
        stacks = []

        async def start(rules: str, *, scraped: bool = True) -> Lab:
            lab.rules.write_text(rules)
            context = start_stack(
                tmp_path / "stack",
                webhook_host="127.0.0.1",
                webhook_port=lab.port,
                rule_files=[lab.rules],
                scrape_interval=INTERVAL,
                evaluation_interval=INTERVAL,
                fast=True,
            )
            lab.stack = await context.__aenter__()
            stacks.append(context)
            if scraped:
                await lab.scraped()
            return lab

        try:
            yield start
        finally:
            for context in stacks:
                await context.__aexit__(None, None, None)
            await runner.cleanup()
