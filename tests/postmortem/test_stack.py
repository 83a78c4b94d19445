"""A postmortem of data that a real Prometheus has scraped and judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.engine.journal import Entry
from fusewire_webhook.postmortem.asking import observe
from fusewire_webhook.postmortem.plots import chosen, draw, draw_incident
from fusewire_webhook.postmortem.story import Story
from fusewire_webhook.postmortem.telling import tell
from fusewire_webhook.stack import start_stack
from fusewire_webhook.watch.prometheus import Prometheus

from .recorded import RUN, S20

pytestmark = pytest.mark.stack

RULES = """
groups:
  - name: bounds
    rules:
      - record: fusewire:threshold
        expr: vector(0.5)
        labels: {threshold: approx_kl, run: cartpole}
      - alert: KLSpike
        expr: |
          max by (run, attempt, algorithm) (last_over_time(rl_approx_kl_run_min{steps="1"}[5s]))
            > on (run) group_left () fusewire:threshold{threshold="approx_kl"}
        labels: {action: trip, class: divergence, severity: critical}
        annotations: {summary: "KL {{ $value }}"}
"""


@dataclass
class Exporter:
    """What the two attempts export, one after the other."""

    attempt: int = 0
    kl: float = 0.01
    port: int = 0

    async def sd(self, _: web.Request) -> web.Response:
        labels = {"run": RUN, "attempt": str(self.attempt), "algorithm": "ppo"}
        strangers = labels | {"run": "other"}
        target = [f"127.0.0.1:{self.port}"]
        return web.json_response([{"targets": target, "labels": labels}, {"targets": target, "labels": strangers}])

    async def metrics(self, _: web.Request) -> web.Response:
        rate = 1e-3 if self.attempt == 0 else 5e-4
        lines = [f"rl_approx_kl {self.kl}", f'rl_approx_kl_run_min{{steps="1"}} {self.kl}', "rl_step 21"]
        lines += [f"rl_learning_rate {rate}", "rl_value_loss NaN", 'rl_phase{phase="evaluate"} 1']
        lines += ['gpu_memory_used_bytes{gpu="0"} 1e9', 'gpu_memory_used_bytes{gpu="1"} 1e9']
        return web.Response(text="\n".join(lines) + "\n")


@pytest.fixture
async def exporter() -> AsyncIterator[Exporter]:
    """Served on a free port."""
    exporter = Exporter()
    app = web.Application()
    app.add_routes([web.get("/sd", exporter.sd), web.get("/metrics", exporter.metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    exporter.port = runner.addresses[0][1]
    yield exporter
    await runner.cleanup()


def story(start: float, trip: float, restart: float, began: str, *, again: float | None = None) -> Story:
    """The journal of a trip at these times, told; with ``again``, of the next attempt's trip at that time."""
    alert = ev.AlertReported(
        at=trip, alertname="KLSpike", status="firing", attempt=0, action="trip", starts_at=began, step=25
    )
    events: list[Event] = [
        ev.RunDeclared(at=start, policy=Policy().to_json()),
        ev.RolledBack(at=start, target=None),
        ev.AttemptStarted(at=start, attempt=0, handle={}),
        ev.SnapshotPromoted(at=start + 1, name=S20, step=20, attempt=0),
        alert,
        ev.StopConfirmed(at=trip, attempt=0, step=25),
        ev.RolledBack(at=trip, target=S20, step=20),
        ev.AttemptStarted(at=restart, attempt=1, handle={}, resume_from=S20, lr_scale=0.5),
    ]
    if again is not None:
        second = ev.AlertReported(
            at=again, alertname="KLSpike", status="firing", attempt=1, action="trip",
            failure_class="divergence", step=25,
        )  # fmt: skip
        events += [second, ev.StopConfirmed(at=again, attempt=1, step=25)]
    return tell(RUN, [Entry(seq=seq, run=RUN, event=event) for seq, event in enumerate(events, start=1)])


async def wait_for(prometheus: Prometheus, query: str) -> None:
    """Until the query has an answer."""
    end = time.monotonic() + 60
    while not await prometheus.query(query):
        assert time.monotonic() < end, f"{query} stays empty"
        await asyncio.sleep(0.1)


async def test_real_prometheus_gives_the_evidence(tmp_path: Path, exporter: Exporter) -> None:
    """Expression, value, bound, both attempts' series, GPUs and learning rates come from what was scraped."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    stack = start_stack(
        tmp_path / "stack", webhook_host="127.0.0.1", webhook_port=exporter.port, rule_files=[rules],
        scrape_interval=0.25, evaluation_interval=0.25, fast=True,
    )  # fmt: skip
    async with stack as servers, aiohttp.ClientSession() as session:
        prometheus = Prometheus(servers.prometheus_url, session=session)
        start = time.time()
        await wait_for(prometheus, 'rl_approx_kl{attempt="0"}')
        exporter.kl = 0.9
        await wait_for(prometheus, 'ALERTS{alertname="KLSpike",alertstate="firing"}')
        trip = time.time()
        (alert,) = await prometheus.alerts()
        exporter.attempt, exporter.kl = 1, 0.02
        restart = time.time()
        await wait_for(prometheus, 'count_over_time(rl_approx_kl{attempt="1"}[10s]) > 5')
        told = story(start, trip, restart, alert.active_at)
        observed = await observe(prometheus, told, scrape_interval=0.25)
        again = story(start - 60, trip, restart, alert.active_at, again=time.time())
        incident = await observe(prometheus, again, scrape_interval=0.25)
    assert (set(incident.incident), incident.problem) == ({0, 1}, "")
    assert incident.incident[0]["approx_kl"].values.max() == 0.9
    assert incident.longest == 0
    assert incident.longest_whole["approx_kl"].values.max() == 0.9
    assert draw_incident(incident, again.incident) is not None
    assert (observed.problem, observed.incident, observed.longest) == ("", {}, None)
    (rule,) = observed.rules
    assert rule.alert == "KLSpike"
    assert [(labels["run"], value) for labels, value in rule.samples] == [(RUN, 0.9)]
    assert [(bound.signal, bound.op, bound.value) for bound in observed.thresholds] == [("approx_kl", ">", 0.5)]
    assert set(observed.around) == {0, 1}
    assert observed.whole["approx_kl"].values.max() == 0.9
    assert observed.whole["value_loss"].bad == len(observed.whole["value_loss"]) > 0
    assert "phase" not in observed.whole
    assert observed.gpus == 2
    assert observed.rates[1]["learning_rate"].finite[0] == 5e-4
    assert chosen(observed)[0] == "approx_kl"
    picture = draw(observed, 0)
    assert picture is not None
    assert "KLSpike &gt; 0.5" in picture
