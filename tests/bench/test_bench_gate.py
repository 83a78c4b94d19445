"""What a round of the gate costs with a thousand runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusewire.snapshots import SnapshotInfo
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.settings.config import RunConfig, SnapshotConfig
from fusewire_webhook.watch.prometheus import Rule, RuleGroup, RuntimeInfo, Sample
from fusewire_webhook.watch.promoter import Promoter

pytestmark = pytest.mark.bench

RUNS = 1000
ROUNDS = 10
NAMES = [f"run-{number}" for number in range(RUNS)]
VIEWS = [view_of(name, 0, RunState(declared=True, attempt=0, live=True)) for name in NAMES]
RULE = Rule(
    kind="alerting", name="X", query="v > 1", labels={"action": "trip"}, health="ok", last_evaluation=1000.0
)
GROUP = RuleGroup(name="g", file="f", interval=1.0, evaluation_time=0.0, last_evaluation=1000.0, rules=(RULE,))


class Engine:
    """A thousand live runs; what is submitted is counted."""

    def __init__(self) -> None:
        self.submitted = 0

    def views(self) -> Any:
        return VIEWS

    def view(self, run: str) -> Any:
        return VIEWS[NAMES.index(run)]

    async def submit(self, run: str, event: object) -> None:
        self.submitted += 1

    def saw(self, run: str, look: object) -> bool:
        return True

    def looked(self, run: str, attempt: int, updates: object, *, scrape_interval: float) -> None:
        pass

    async def journal_steps(self, run: str) -> None:
        self.submitted += 1

    async def promote(self, run: str, name: str, **_: Any) -> None:
        raise AssertionError("nothing is ripe here")


class Prometheus:
    """Answers at once, each answer decoded from JSON as a real one is."""

    def __init__(self) -> None:
        self.step = 0

    def body(self) -> bytes:
        rows = [{"metric": {"run": name, "attempt": "0"}, "value": [1000.0, str(self.step)]} for name in NAMES]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()

    async def runtime(self) -> RuntimeInfo:
        return RuntimeInfo(start_time="a", last_config_time="a", reload_succeeded=True)

    async def now(self) -> float:
        return 1000.0

    async def rules(self) -> list[RuleGroup]:
        return [GROUP]

    async def query(self, expr: str, time: float | None = None) -> Sequence[Sample]:
        if not expr.startswith("max by (run, attempt)"):
            return []
        rows = json.loads(self.body())["data"]["result"]
        return [Sample(labels=row["metric"], value=float(row["value"][1]), time=row["value"][0]) for row in rows]


class Store:
    """One candidate that still waits for its steps."""

    def __init__(self, run_dir: Path) -> None:
        self._info = SnapshotInfo(
            name="step-000000000000-a000", step=0, attempt=0, path=run_dir, state="candidate", size=0, time=0.0
        )

    def candidates(self) -> list[SnapshotInfo]:
        return [self._info]


async def test_round_of_a_thousand_runs(tmp_path: Path) -> None:
    """With 1,000 runs, each with a waiting snapshot, a round takes at most a quarter of the time between rounds."""
    for name in NAMES:
        (tmp_path / name / "snapshots").mkdir(parents=True)
    prometheus: Any = Prometheus()
    store: Any = Store
    engine = Engine()
    config = RunConfig(command=("true",), snapshots=SnapshotConfig(watch_steps=10**6))
    promoter = Promoter(
        engine, prometheus=prometheus, runs=dict.fromkeys(NAMES, config), runs_dir=tmp_path, store=store
    )
    for _ in range(8):
        await promoter.round()
    durations = []
    for _ in range(ROUNDS):
        prometheus.step += 10
        started = time.perf_counter()
        await promoter.round()
        durations.append(time.perf_counter() - started)
    median = sorted(durations)[ROUNDS // 2]
    started = time.perf_counter()
    json.loads(prometheus.body())
    parse = time.perf_counter() - started
    print(f"\nround of the gate, {RUNS} runs: median {median * 1000:.1f} ms, worst {max(durations) * 1000:.1f} ms;")
    print(f"between rounds {promoter.period * 1000:.0f} ms; the answer as JSON alone {parse * 1000:.1f} ms")
    assert len(promoter.latest(NAMES[-1])) == 1
    assert median <= 0.25 * promoter.period
