"""The breaker's budgets: durable appends, replay of a long journal, a thousand runs that trip at once."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import (
    AlertReported,
    AttemptStarted,
    Event,
    RolledBack,
    RunDeclared,
    SnapshotPromoted,
    SnapshotSeen,
    StepsWatched,
    StopConfirmed,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.evidence_protocol import ExitEvidence
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import RetryConfig, RunConfig

EVENTS = 100_000
RUNS = 1_000


def alert(attempt: int = 0, number: int = 0, *, action: str = "trip") -> AlertReported:
    """An alert of ordinary size: about 700 bytes of JSON."""
    return AlertReported(
        alertname="ApproxKLSpike",
        status="firing",
        attempt=attempt,
        action=action,
        failure_class="divergence",
        severity="critical",
        summary="approx_kl exceeded 0.2 in 3 consecutive updates",
        labels={"run": "ppo", "attempt": str(attempt), "instance": f"127.0.0.1:{number}", "job": "fusewire"},
        annotations={"description": "x" * 200, "runbook_url": "https://example.org/runbooks/ApproxKLSpike"},
        starts_at="2026-01-01T00:00:00.000Z",
        step=number,
        at=1.0,
    )


class Nothing:
    """Evidence of nothing."""

    async def exit_evidence(self, run: str, attempt: int, run_dir: Path) -> ExitEvidence:
        return ExitEvidence(failure_class="infrastructure")

    async def last_step(self, run: str, attempt: int) -> int | None:
        return None

    async def unclean_since(self, run: str, attempt: int, snapshot: str) -> tuple[str, ...] | None:
        return ()


@pytest.mark.bench
async def test_group_commit_makes_durable_appends_cheap(tmp_path: Path) -> None:
    """Concurrent durable appends are many times as fast as one commit each, and none waits for many commits."""

    async def appends(journal: Journal, each: int) -> list[float]:
        waits = []
        for number in range(each):
            started = time.perf_counter()
            await journal.append("ppo", alert(number=number))
            waits.append(time.perf_counter() - started)
        return waits

    async def rate(name: str, writers: int, each: int) -> tuple[float, float, float]:
        with closing(Journal(tmp_path / name)) as journal:
            started = time.perf_counter()
            waits = await asyncio.gather(*(appends(journal, each) for _ in range(writers)))
            seconds = time.perf_counter() - started
        flat = [wait for some in waits for wait in some]
        return len(flat) / seconds, statistics.median(flat), statistics.quantiles(flat, n=100)[98]

    single, single_wait, single_p99 = await rate("single.db", 1, 500)
    grouped, grouped_wait, grouped_p99 = await rate("grouped.db", 32, 500)
    print("\nappends        per second   median ms   p99 ms")
    print(f"one at a time  {single:10,.0f}  {single_wait * 1e3:10.1f}  {single_p99 * 1e3:7.1f}")
    print(f"32 at a time   {grouped:10,.0f}  {grouped_wait * 1e3:10.1f}  {grouped_p99 * 1e3:7.1f}")
    assert grouped > 3 * single
    assert grouped_wait < 4 * single_wait


def history() -> list[Event]:
    """A run as journals hold it: snapshots and watched steps, repeated alerts, an incident now and then."""
    events: list[Event] = [
        RunDeclared(policy=Policy(divergences_per_run=10**9, divergences_per_incident=10**9).to_json(), at=1.0),
        RolledBack(target=None, at=1.0),
        AttemptStarted(attempt=0, handle={"pid": 1}, at=1.0),
    ]
    attempt = step = 0
    while len(events) < EVENTS:
        step += 100
        name = f"step-{step:012d}-a{attempt:03d}"
        events += [
            SnapshotSeen(name=name, step=step, attempt=attempt, at=1.0),
            *(StepsWatched(attempt=attempt, step=step + n, watched=10, at=1.0) for n in range(10, 100, 10)),
            *(alert(attempt, n, action="notify") for n in range(10)),
            SnapshotPromoted(name=name, step=step, attempt=attempt, evidence={"window": 10.0}, at=1.0),
        ]
        if step % 2000 == 0:
            attempt += 1
            events += [
                alert(attempt - 1, step),
                *(alert(attempt - 1, step) for _ in range(20)),
                StopConfirmed(attempt=attempt - 1, step=step, at=1.0),
                RolledBack(target=name, step=step, attempt=attempt - 1, at=1.0),
                AttemptStarted(attempt=attempt, handle={"pid": 1}, at=1.0),
            ]
    return events[:EVENTS]


@pytest.mark.bench
async def test_a_journal_of_100_000_events_is_replayed_in_two_seconds(tmp_path: Path) -> None:
    """Reading and folding costs at most 2 s of processor time, and little more than reading the JSON alone."""
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        events = history()
        for start in range(0, EVENTS, 1000):
            await asyncio.gather(*(journal.append("ppo", event) for event in events[start : start + 1000]))
        started = time.process_time()
        state = fold(entry.event for entry in journal.read("ppo"))
        replay = time.process_time() - started
    started = time.process_time()
    with closing(sqlite3.connect(path)) as connection:
        rows = [json.loads(text) for (text,) in connection.execute("SELECT payload FROM journal ORDER BY seq")]
    bare = time.process_time() - started
    print(
        f"\nreplay of {EVENTS:,} events: {replay:.2f} s; "
        f"reading their JSON alone: {bare:.2f} s ({replay / bare:.1f} ×)"
    )
    assert len(rows) == EVENTS
    assert state.attempt > 100
    assert replay <= 2.0
    assert replay <= 6 * bare


def peak_bytes() -> int:
    """Most resident memory of this process; ``getrusage`` would count the parent's before ``exec`` too."""
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) * 1024


def storm(folder: Path, told: Any) -> None:
    """A thousand simulated runs trip in the same second, in a process of their own."""

    async def main() -> None:
        begun: dict[tuple[str, int], list[float]] = {}

        class Stamping(FakeActuator):
            async def stop(self, handle: dict[str, Any], *, grace_seconds: float) -> Any:
                begun.setdefault((handle["run"], handle["attempt"]), []).append(time.perf_counter())
                await asyncio.sleep(0.5)
                return await super().stop(handle, grace_seconds=grace_seconds)

        config = RunConfig(command=("train",), retry=RetryConfig(settle_seconds=0.0, backoff_seconds=0.0))
        names = [f"run-{number:04d}" for number in range(RUNS)]
        journal, actuator = Journal(folder / "journal.db"), Stamping()
        engine = Engine(
            runs_dir=folder / "runs",
            runs=dict.fromkeys(names, config),
            journal=journal,
            actuator=actuator,
            evidence=Nothing(),
        )
        await engine.start()

        async def all_at(attempt: int) -> None:
            async with engine.subscribe() as happenings:
                waiting = {view.run for view in engine.views() if not (view.attempt == attempt and view.live)}
                while waiting:
                    run, _, event = await anext(happenings)
                    if isinstance(event, AttemptStarted) and event.attempt == attempt:
                        waiting.discard(run)

        await all_at(0)
        started = time.perf_counter()
        await asyncio.gather(*(engine.submit(name, alert(0)) for name in names))
        journaled = time.perf_counter() - started
        await all_at(1)
        restarted = time.perf_counter() - started
        stops = {key: times for key, times in begun.items() if key[1] == 0}
        peak = peak_bytes()
        trips = sum(view.trips["divergence"] for view in engine.views())
        await engine.close(stop_runs=False)
        journal.close()
        told.send(
            {
                "journaled": journaled,
                "begun": max(times[0] for times in stops.values()) - started,
                "restarted": restarted,
                "stopped": len(stops),
                "stops": sum(map(len, stops.values())),
                "trips": trips,
                "alive": sum(len(actuator.alive(name)) for name in names),
                "peak": peak,
            }
        )

    asyncio.run(main())


@pytest.mark.bench
def test_a_thousand_runs_trip_in_the_same_second(tmp_path: Path) -> None:
    """All journaled in 2 s, all stops begun in 5 s, none lost, none twice, in 150 MB."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=storm, args=(tmp_path, sender))
    child.start()
    sender.close()
    figures = receiver.recv()
    child.join()
    print(
        f"\n{RUNS:,} runs trip: journaled {figures['journaled']:.2f} s, stops begun {figures['begun']:.2f} s, "
        f"all restarted {figures['restarted']:.2f} s, peak {figures['peak'] / 1e6:.0f} MB"
    )
    assert figures["stopped"] == figures["stops"] == figures["trips"] == figures["alive"] == RUNS
    assert figures["journaled"] <= 2.0
    assert figures["begun"] <= 5.0
    assert figures["peak"] <= 150e6
