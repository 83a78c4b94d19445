"""The promoter, without servers: what it does about verdicts, and that its work is bounded."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fusewire.attempt_files import LAST_VALUES_FILE
from fusewire.files import write_json
from fusewire.snapshots import SnapshotStore
from fusewire.snapshots.filelayer import FileLayer
from fusewire_webhook.breaker.events import SnapshotJudged, SnapshotRejected, SnapshotSeen, StepsWatched
from fusewire_webhook.errors import CommandError, PrometheusError
from fusewire_webhook.settings.config import RunConfig, SnapshotConfig
from fusewire_webhook.watch.prometheus import RuleGroup, RuntimeInfo, Sample
from fusewire_webhook.watch.promoter import Promoter
from tests.snapshots.support import failing_reads

from .conftest import RUN, Engine, write_snapshot
from .test_triprules import NOW, group, rule


@dataclass
class Answers:
    """A Prometheus that knows the steps of each run and says that all is well, unless a test says otherwise."""

    steps: dict[str, float] = field(default_factory=dict)
    firing: list[str] = field(default_factory=list)
    groups: list[RuleGroup] = field(default_factory=lambda: [group(rule(for_seconds=0.0))])
    start_time: str = "then"
    down: bool = False
    last_step: float | None = None
    """Furthest step that was ever scraped."""
    ended: float = 0.0
    """Seconds since the last scrape."""
    scrapes: float = 1e6
    asked: list[str] = field(default_factory=list)

    async def runtime(self) -> RuntimeInfo:
        return RuntimeInfo(start_time=self.start_time, last_config_time="then", reload_succeeded=True)

    async def now(self) -> float:
        return NOW

    async def rules(self) -> list[RuleGroup]:
        return self.groups

    async def query(self, expr: str, time: float | None = None) -> Sequence[Sample]:
        if self.down:
            raise PrometheusError("Prometheus is away")
        self.asked.append(expr)
        if expr.startswith("max by (run, attempt)"):
            return [_sample(value, run=run, attempt="0") for run, value in self.steps.items()]
        if expr.startswith("count by (run, attempt, alertname"):
            return [_sample(1.0, run=run, attempt="0", alertname="X", alertstate="firing") for run in self.firing]
        return self._about_one_run(expr)

    def _about_one_run(self, expr: str) -> Sequence[Sample]:
        if "ALERTS" in expr or "min_over_time(timestamp" in expr:
            return []
        if "sum_over_time(up" in expr:
            return [_sample(self.scrapes)]
        if "timestamp(up" in expr:
            return [_sample(self.ended)]
        if "max_over_time(rl_step" in expr:
            return [] if self.last_step is None else [_sample(self.last_step)]
        return [_sample(5.0, signal="approx_kl"), _sample(5.0, signal="step")]


def _sample(value: float, **labels: str) -> Sample:
    return Sample(labels=labels, value=value, time=NOW)


@dataclass
class World:
    promoter: Promoter
    engine: Engine
    prometheus: Answers
    runs_dir: Path
    told: list[tuple[str, str]]
    faults: list[str]
    advance: Callable[[float], None]

    async def after(self, seconds: float) -> None:
        """A round after this many seconds."""
        self.advance(seconds)
        await self.promoter.round()
        while self.promoter._verifying:
            await asyncio.gather(*self.promoter._verifying)
            await self.promoter.round()


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    promoters: list[Promoter] = []

    def build(*runs: str, engine: Engine | None = None, **more: Any) -> World:
        names = runs or (RUN,)
        now = [100.0]
        prometheus = Answers(steps=dict.fromkeys(names, 0.0))
        engine = engine or Engine(tmp_path, *names)
        told: list[tuple[str, str]] = []
        faults: list[str] = []
        stand_in: Any = prometheus
        config = RunConfig(command=("true",), snapshots=SnapshotConfig(watch_steps=10, watch_seconds=20.0))
        promoter = Promoter(
            engine,
            prometheus=stand_in,
            runs=dict.fromkeys(names, config),
            runs_dir=tmp_path,
            clock=lambda: now[0],
            degraded=lambda: tuple(faults),
            on_verdict=lambda run, answer: told.append((run, answer)),
            **more,
        )
        promoters.append(promoter)
        return World(
            promoter=promoter,
            engine=engine,
            prometheus=prometheus,
            runs_dir=tmp_path,
            told=told,
            faults=faults,
            advance=lambda seconds: now.__setitem__(0, now[0] + seconds),
        )

    yield build
    for promoter in promoters:
        promoter._readers.shutdown()


async def ripe(world: World, run: str = RUN) -> str:
    """A snapshot that has been seen and lacks nothing but the time; its name."""
    name = write_snapshot(world.runs_dir / run, 5)
    await world.after(2.0)
    world.prometheus.steps[run] = 15.0
    await world.after(2.0)
    return name


async def test_pass_promotes_once_and_tells(make: Make) -> None:
    """A pass promotes through the engine; the snapshot is no candidate any more."""
    world = make()
    name = await ripe(world)
    assert world.engine.promotions == []
    await world.after(20.0)
    await world.after(20.0)
    assert [promotion[:2] for promotion in world.engine.promotions] == [(RUN, name)]
    assert world.told == [(RUN, "inconclusive"), (RUN, "pass")]
    assert [event.name for event in world.engine.of(SnapshotSeen)] == [name]


async def test_firing_rejects_on_disk_and_in_the_journal(make: Make) -> None:
    """A trip alert that fires rejects at once, for good."""
    world = make()
    name = await ripe(world)
    world.prometheus.firing = [RUN]
    await world.after(1.0)
    world.prometheus.firing = []
    await world.after(50.0)
    (rejected,) = world.engine.of(SnapshotRejected)
    assert (rejected.name, rejected.reasons) == (name, ("tripped: X fired after the snapshot",))
    assert SnapshotStore(world.runs_dir / RUN).get(name).state == "rejected"
    assert world.engine.promotions == []


async def test_a_read_error_is_no_verdict(make: Make) -> None:
    """Files that cannot be read now answer ``error`` with the reason; once they can, the snapshot is promoted."""
    world = make()
    name = await ripe(world)
    with failing_reads(lambda path: path.name == "state.bin"):
        await world.after(20.0)
        (candidate,) = world.promoter.latest(RUN)
        assert candidate["answer"] == "error"
        assert "state.bin: cannot be read" in candidate["reasons"][0]
        assert world.engine.of(SnapshotRejected) == []
    await world.after(20.0)
    assert [promotion[:2] for promotion in world.engine.promotions] == [(RUN, name)]


class Disk(FileLayer):
    """Takes nothing while it is full."""

    full = False

    def write_json(self, path: Path, value: Any) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_json(path, value)


@pytest.mark.parametrize("restarted", [False, True])
async def test_rejection_that_a_full_disk_refused_stays_one(make: Make, restarted: bool) -> None:
    """It is journaled once and never undone, by a restart of the webhook neither; the disk gets it once it can."""
    disk = Disk()
    world = make(store=lambda path: SnapshotStore(path, files=disk))
    name = await ripe(world)
    world.prometheus.firing, disk.full = [RUN], True
    await world.after(1.0)
    assert world.promoter.latest(RUN)[0]["answer"] == "fail"
    assert world.promoter.settled(RUN)
    if restarted:
        world = make(store=lambda path: SnapshotStore(path, files=disk), engine=world.engine)
        world.prometheus.steps[RUN] = 500.0
    world.prometheus.firing = []
    for _ in range(3):
        await world.after(50.0)
    assert world.engine.promotions == []
    disk.full = False
    await world.after(50.0)
    await world.after(50.0)
    assert SnapshotStore(world.runs_dir / RUN).get(name).why == "tripped: X fired after the snapshot"
    assert len(world.engine.of(SnapshotRejected)) == 1
    assert len(world.engine.of(SnapshotSeen)) == 1
    assert world.promoter.latest(RUN) == []


async def test_rules_that_changed_while_the_webhook_was_away_are_changed_rules(make: Make) -> None:
    """The rules of a snapshot are those that were loaded when it was first seen, by whichever webhook."""
    before = make()
    await ripe(before)
    world = make(engine=before.engine)
    world.prometheus.steps[RUN] = 15.0
    world.prometheus.groups = [group(rule(for_seconds=0.0, query="rl_approx_kl > 1e9"))]
    await world.after(2.0)
    await world.after(50.0)
    assert world.promoter.latest(RUN)[0]["reasons"] == ["rules: the trip rules were changed after the snapshot"]
    assert world.engine.promotions == []


async def test_flipped_bit_rejects(make: Make) -> None:
    """Hashes that do not hold reject, however clean the metrics are."""
    world = make()
    name = await ripe(world)
    path = world.runs_dir / RUN / "snapshots" / name / "state.bin"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    await world.after(20.0)
    (rejected,) = world.engine.of(SnapshotRejected)
    assert rejected.reasons[0].startswith("damaged: state.bin")
    assert world.promoter.settled(RUN)


async def test_a_rejection_is_no_line_of_the_log_too(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """It is an event, which whoever follows the run is shown."""
    world = make()
    await ripe(world)
    world.prometheus.firing = [RUN]
    await world.after(20.0)
    assert world.engine.of(SnapshotRejected)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(("step", "told"), [(3.0, 1), (200.0, 0), (201.0, 0)])
async def test_a_trainer_that_ignores_its_snapshot_is_told_of(
    make: Make, caplog: pytest.LogCaptureFixture, step: float, told: int
) -> None:
    """An attempt whose first step lies before the snapshot that it was to resume from is warned about once."""
    world = make()
    world.engine.change(RUN, resumed_from="step-000000000200-a000", resumed_step=200)
    for ahead in (0, 1, 2):
        world.prometheus.steps = {RUN: step + ahead}
        await world.after(1.0)
    lines = [record.getMessage() for record in caplog.records if "load_snapshot" in record.getMessage()]
    assert len(lines) == told
    assert all(
        "attempt 0 was told to go on from step-000000000200-a000 and reports step 3" in line for line in lines
    )


async def test_alert_that_fires_during_verification_still_counts(make: Make) -> None:
    """Reading the files takes minutes for a big snapshot: the verdict is given on what is known afterwards."""
    world = make()
    await ripe(world)
    world.advance(20.0)
    await world.promoter.round()
    assert world.promoter.latest(RUN)[0]["reasons"] == ["not checked yet: its files"]
    assert not world.promoter.settled(RUN)
    world.prometheus.firing = [RUN]
    await asyncio.gather(*world.promoter._verifying)
    await world.after(0.0)
    assert len(world.engine.of(SnapshotRejected)) == 1
    assert world.engine.promotions == []


@pytest.mark.parametrize("fault", ["degraded", "down", "rules", "restarted"])
async def test_any_doubt_about_the_watch_starts_the_clock_again(make: Make, fault: str) -> None:
    """Degraded, unanswered, failing rules, a restart of Prometheus: T begins anew once the doubt is over."""
    world = make()
    name = await ripe(world)
    await world.after(15.0)
    healthy = world.prometheus.groups
    match fault:
        case "degraded":
            world.faults.append("watchdog: silent")
        case "down":
            world.prometheus.down = True
        case "rules":
            world.prometheus.groups = [group(rule(for_seconds=0.0, health="err"))]
        case _:
            world.prometheus.start_time = "now"
    await world.after(1.0)
    world.faults.clear()
    world.prometheus.down, world.prometheus.groups = False, healthy
    await world.after(10.0)
    assert world.engine.promotions == []
    await world.after(10.5)
    assert [promotion[1] for promotion in world.engine.promotions] == [name]


async def test_error_is_visible_and_never_promotes(make: Make) -> None:
    """While Prometheus does not answer the verdict is error, with the reason."""
    world = make()
    await ripe(world)
    world.prometheus.down = True
    await world.after(100.0)
    (candidate,) = world.promoter.latest(RUN)
    assert (candidate["answer"], candidate["reasons"][0]) == ("error", "Prometheus is away")
    assert (RUN, "error") in world.told
    assert world.engine.promotions == []


async def completed(world: World, *, seen: float, **last_values: Any) -> str:
    """A run that completed 2 s after it wrote its last snapshot, at step 5; its name."""
    world.prometheus.steps[RUN] = 5.0
    await world.after(2.0)
    name = write_snapshot(world.runs_dir / RUN, 5)
    folder = world.runs_dir / RUN / "attempts" / "000"
    folder.mkdir(parents=True)
    write_json(folder / LAST_VALUES_FILE, {"step": 5, **last_values})
    await world.after(2.0)
    world.engine.change(RUN, state="completed", live=False)
    world.prometheus.steps.clear()
    world.prometheus.last_step, world.prometheus.ended, world.prometheus.scrapes = seen, 19.0, 3.0
    return name


async def test_verdict_outlives_the_webhook(make: Make) -> None:
    """At its end the journal gets why each candidate is not promoted, once."""
    world = make()
    await ripe(world)
    world.engine.change(RUN, paused=True)
    await world.after(50.0)
    for _ in range(2):
        await world.promoter.flush()
    (judged,) = world.engine.of(SnapshotJudged)
    assert (judged.answer, judged.reasons) == ("inconclusive", ("paused: the run is paused",))


async def test_completed_run_is_judged_without_further_steps(make: Make) -> None:
    """The last snapshot of a completed run is promoted after T although neither step nor scrape came after it."""
    world = make()
    name = await completed(world, seen=5.0)
    await world.after(15.0)
    assert world.engine.promotions == []
    await world.after(6.0)
    assert [promotion[1] for promotion in world.engine.promotions] == [name]


@pytest.mark.parametrize(
    ("seen", "last_values", "reason"),
    [
        (4.0, {}, "steps: Prometheus saw step 4 last, the training ended at step 5"),
        (5.0, {"step": 6}, "steps: Prometheus saw step 5 last, the training ended at step 6"),
        (5.0, {"values": {"value_loss": "NaN"}}, "values: value_loss was not finite"),
    ],
)
async def test_completed_run_whose_end_nobody_saw_or_was_bad_is_not_promoted(
    make: Make, seen: float, last_values: dict[str, Any], reason: str
) -> None:
    """The last steps must have been scraped, and the last values finite; else nothing more is waited for."""
    world = make()
    await completed(world, seen=seen, **last_values)
    await world.after(15.0)
    assert not world.promoter.settled(RUN)
    await world.after(6.0)
    assert world.engine.promotions == []
    assert world.promoter.latest(RUN)[0]["reasons"] == [reason]
    assert world.promoter.settled(RUN)
    assert [(event.reasons, event.final) for event in world.engine.of(SnapshotJudged)] == [((reason,), True)]
    world.prometheus.asked.clear()
    await world.after(60.0)
    assert len(world.prometheus.asked) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "open"}, "state: the run is open"),
        ({"state": "locked"}, "state: the run is locked"),
        ({"attempt": 1}, "attempt: it has ended; its steps come no more"),
        ({"paused": True}, "paused: the run is paused"),
    ],
)
async def test_run_that_is_not_watched_promotes_nothing(make: Make, changes: dict[str, Any], reason: str) -> None:
    """Between attempts, in a pause and for ended attempts there is no promotion, and the reason is told."""
    world = make()
    await ripe(world)
    world.engine.change(RUN, **changes)
    await world.after(100.0)
    (candidate,) = world.promoter.latest(RUN)
    assert (candidate["answer"], world.engine.promotions) == ("inconclusive", [])
    assert reason in candidate["reasons"]


async def test_the_reason_names_the_state_that_the_run_has_come_to(make: Make) -> None:
    """A run that is LOCKED since the last look is told as locked, at once and in the journal."""
    world = make()
    await ripe(world)
    world.engine.change(RUN, state="open")
    await world.after(3.0)
    world.engine.change(RUN, state="locked")
    assert world.promoter.latest(RUN)[0]["reasons"] == ["state: the run is locked"]
    await world.promoter.flush()
    assert [event.reasons for event in world.engine.of(SnapshotJudged)] == [("state: the run is locked",)]


async def test_refusal_of_the_engine_is_an_error_and_is_tried_again(make: Make) -> None:
    """When the run trips between judgement and promotion the engine refuses; the gate says so and goes on."""
    world = make()
    name = await ripe(world)
    promote = world.engine.promote

    async def refuse(*_: Any, **__: Any) -> None:
        raise CommandError("the run is open")

    world.engine.promote = refuse  # type: ignore[method-assign]
    await world.after(20.0)
    assert world.promoter.latest(RUN)[0]["answer"] == "error"
    world.engine.promote = promote  # type: ignore[method-assign]
    await world.after(5.0)
    assert [promotion[1] for promotion in world.engine.promotions] == [name]


async def test_snapshot_that_is_removed_is_forgotten(make: Make) -> None:
    """A candidate that retention or a rollback took away is judged no more."""
    world = make()
    name = await ripe(world)
    SnapshotStore(world.runs_dir / RUN).quarantine([name], reason="rollback", journal_entry=1)
    await world.after(50.0)
    assert world.promoter.latest(RUN) == []
    assert world.engine.of(SnapshotRejected) == []


async def test_watched_steps_leave_out_what_was_blind(make: Make) -> None:
    """Steps that passed while Prometheus was away, the run paused or the watch degraded do not count."""
    world = make()
    for step, down in ((0, False), (30, False), (90, True), (100, False), (140, False)):
        world.prometheus.steps[RUN], world.prometheus.down = float(step), down
        await world.after(6.0)
    assert sum(event.watched for event in world.engine.of(StepsWatched)) == 30 + 40
    assert world.engine.of(StepsWatched)[-1].step == 140


async def test_a_step_is_told_where_it_does_not_count(make: Make) -> None:
    """How far a paused run is, or one whose watch is degraded, is known; no step of it is watched."""
    world = make()
    await world.after(6.0)
    world.faults.append("no beat")
    world.prometheus.steps[RUN] = 50.0
    await world.after(6.0)
    world.engine.change(RUN, paused=True)
    world.prometheus.steps[RUN] = 70.0
    await world.after(6.0)
    looks = world.engine.of(StepsWatched)
    assert [look.step for look in looks[-2:]] == [50, 70]
    assert sum(look.watched for look in looks) == 0


async def test_watched_steps_are_journaled_when_they_are_due_and_at_the_end(make: Make) -> None:
    """The engine says when; a webhook that ends in order leaves none of them out."""
    world = make()
    await world.after(6.0)
    assert world.engine.journaled == []
    world.engine.due = True
    await world.after(6.0)
    assert world.engine.journaled == [RUN]
    await world.promoter.flush()
    assert world.engine.journaled == [RUN, RUN]


async def test_work_of_a_round_is_bounded(make: Make) -> None:
    """60 runs with a ripe snapshot each: the fleet costs three questions a round, the judgements have a limit."""
    names = [f"run-{number}" for number in range(60)]
    world = make(*names, judgements=4, scans=1000)
    for name in names:
        write_snapshot(world.runs_dir / name, 5)
    await world.after(1.0)
    world.prometheus.steps = dict.fromkeys(names, 15.0)
    world.prometheus.asked.clear()
    await world.after(1.0)
    assert len(world.prometheus.asked) == 3
    world.advance(20.0)
    async with asyncio.timeout(60):
        while len(world.engine.promotions) < len(names):
            world.prometheus.asked.clear()
            await world.promoter.round()
            assert len(world.prometheus.asked) <= 3 + 4 * 12
            world.advance(1.0)
            await asyncio.sleep(0.005)  # the files are read in threads
    assert {promotion[0] for promotion in world.engine.promotions} == set(names)


async def test_snapshots_become_stable_in_the_order_of_their_steps(make: Make) -> None:
    """Several that pass in one round are promoted oldest first, so that the newest one is the last."""
    world = make()
    names = [write_snapshot(world.runs_dir / RUN, step) for step in (1, 2, 3)]
    await world.after(2.0)
    world.prometheus.steps[RUN] = 50.0
    world.promoter._runs[RUN].candidates[names[0]].next_look = 1000.0
    await world.after(30.0)
    assert [promotion[1] for promotion in world.engine.promotions] == names


async def test_overtaken_snapshot_is_not_promoted_any_more(make: Make) -> None:
    """A person promoted a newer one: the link never goes back to an older one."""
    world = make()
    name = await ripe(world)
    newer = {"name": "step-000000000009-a000", "step": 9, "attempt": 0}
    world.engine.change(RUN, promoted=(newer,))
    await world.after(30.0)
    (candidate,) = world.promoter.latest(RUN)
    assert candidate["name"] == name
    assert candidate["reasons"] == ["overtaken: step-000000000009-a000 is stable already"]
    assert world.engine.promotions == []


async def test_baselines_of_the_newest_stable_snapshot_are_shown_for_the_present_attempt(make: Make) -> None:
    """Promotion shows the frozen baselines, and the next attempt is judged against the same ones."""
    shown: list[tuple[str, int, dict[str, dict[str, float]]]] = []
    world = make(on_baselines=lambda run, attempt, values: shown.append((run, attempt, values)))
    await ripe(world)
    await world.after(20.0)
    await world.after(1.0)
    world.engine.change(RUN, attempt=1)
    await world.after(1.0)
    frozen = {"approx_kl": {"median": 5.0, "min": 5.0, "max": 5.0}, "step": {"median": 5.0, "min": 5.0, "max": 5.0}}
    assert shown == [(RUN, 0, {}), (RUN, 0, frozen), (RUN, 1, frozen)]


async def test_each_round_looks_for_each_live_attempt(make: Make) -> None:
    """What Prometheus has of it, or that it has nothing; a round without an answer looks at none."""
    world = make(RUN, "other", "ended")
    world.engine.change("ended", live=False)
    world.prometheus.steps = {RUN: 7.0, "ended": 9.0}
    await world.after(2.0)
    world.prometheus.down = True
    await world.after(2.0)
    assert world.engine.looks == [(RUN, 0, 7.0), ("other", 0, None)]
