"""The breaker's budgets: durable appends, and the replay of a long journal."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

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
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.engine.seen_steps import SeenSteps

EVENTS = 100_000


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


@pytest.mark.bench
@pytest.mark.parametrize("period", [0.2, 2.0, 10.0])
async def test_a_day_of_watched_steps_is_small(tmp_path: Path, period: float) -> None:
    """A run that trains for a day without an incident costs at most 0.15 MB, however often the watch looks."""
    seen, path, stored, before = SeenSteps(), tmp_path / "journal.db", [], 0
    state = RunState(declared=True, attempt=0, live=True)
    with closing(Journal(path)) as journal:
        empty = path.stat().st_size
        for look in range(int(86_400 / period)):
            now, step = look * period, int(look * period * 10)
            seen.look(StepsWatched(attempt=0, step=step, watched=step - before), now)
            before = step
            if seen.due(state, now) and (event := seen.take(state, now)) is not None:
                stored.append(journal.put("ppo", replace(event, at=1.8e9 + now)))
        await asyncio.gather(*stored)
    size = path.stat().st_size - empty
    print(f"\na day, a look each {period:g} s: {len(stored):,} entries, {size / 1e3:,.0f} kB")
    assert len(stored) > 100
    assert size <= 150_000


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
