"""The engine on a fake machine with a real journal and real snapshots."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from fusewire.snapshots import FileLayer, SnapshotStore, Verification
from fusewire_webhook.actuators import Gone, Handle
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import (
    AlertReported,
    Command,
    Event,
    SnapshotJudged,
    SnapshotRejected,
    SnapshotSeen,
    StepsWatched,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine import engine, guarded_run
from fusewire_webhook.engine.evidence_protocol import ExitEvidence
from fusewire_webhook.engine.journal import Entry
from fusewire_webhook.engine.seen_steps import FRESH_SECONDS
from fusewire_webhook.engine.snapshot_effects import READ_AGAIN_SECONDS
from fusewire_webhook.engine.subscription import Subscription
from fusewire_webhook.errors import CommandError, JournalError, UnknownRunError
from tests.snapshots.support import each_once, failing_reads

from .doubles import RUN, guarding, quick, trip, write_snapshot


async def test_divergence_is_stopped_rolled_back_and_restarted(tmp_path: Path) -> None:
    """A divergence alert leads to the next attempt: last promoted snapshot, half the rate, a new seed."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        target = await guard.promote(100, 0)
        later = write_snapshot(guard.run_dir, 200, 0)
        await guard.engine.submit(RUN, trip(0, step=250))
        state = await guard.running(1)
        assert (state.phase, state.lr_scale, state.resumed_from, state.rng) == ("half_open", 0.5, target, "reseed")
        assert guard.actuator.stops == [(RUN, 0)]
        assert guard.store.get(later).state == "quarantined"
        told = json.loads((guard.run_dir / "attempt.json").read_bytes())
        assert told["attempt"] == 1
        assert told["lr_scale"] == 0.5
        assert told["seed"] == Policy().attempt_seed(1)
        assert told["resume_from"] == str(guard.run_dir / "snapshots" / target)
        launch = guard.actuator.processes[RUN, 1].launch
        assert launch.argv == ("train", f"--resume={guard.run_dir / 'snapshots' / target}")
        assert launch.environment["FUSEWIRE_ATTEMPT"] == "1"


async def test_crash_resumes_the_newest_clean_snapshot_with_the_same_parameters(tmp_path: Path) -> None:
    """A crash quarantines nothing and restarts from the newest candidate; rate, seed and generators stay."""
    async with guarding(tmp_path, quick(seed=7)) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        newest = write_snapshot(guard.run_dir, 200, 0)
        guard.actuator.exit(RUN, 0, 1)
        state = await guard.running(1)
        assert (state.phase, state.lr_scale, state.seed, state.rng) == ("closed", 1.0, 7, "restore")
        assert state.resumed_from == newest
        assert state.infrastructure_failures == 1
        assert not any(info.state == "quarantined" for info in guard.store.list())


async def test_exit_with_evidence_of_divergence_is_a_divergence(tmp_path: Path) -> None:
    """A trainer that died of its NaN is rolled back, not resumed from what it wrote last."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        target = await guard.promote(100, 0)
        write_snapshot(guard.run_dir, 200, 0)
        guard.evidence.exits[RUN, 0] = ExitEvidence(failure_class="divergence", reasons=("kl is NaN",), step=220)
        guard.actuator.exit(RUN, 0, 1)
        state = await guard.running(1)
        assert (state.resumed_from, state.divergences_run, state.infrastructure_failures) == (target, 1, 0)
        assert state.furthest_trip == 220


async def test_ctrl_c_leaves_a_run_that_the_next_start_continues(tmp_path: Path) -> None:
    """A shutdown stops the trainer without using a budget; the next start resumes it under a new attempt number."""
    async with guarding(tmp_path, quick(seed=7)) as guard:
        await guard.running(0)
        name = await guard.promote(100, 0)
        await guard.engine.close(stop_runs=True, who="ann", why="Ctrl-C")
        assert guard.state.shut_down
        assert guard.actuator.alive(RUN) == []
        actuator = guard.actuator
    async with guarding(tmp_path, quick(seed=7), actuator=actuator) as guard:
        state = await guard.running(1)
        assert (state.resumed_from, state.lr_scale, state.seed, state.rng) == (name, 1.0, 7, "restore")
        assert (state.divergences_run, state.infrastructure_failures, state.phase) == (0, 0, "closed")


async def test_no_person_takes_back_a_shutdown_that_has_begun(tmp_path: Path) -> None:
    """A decision while a trainer saves in its grace would start it again, and Ctrl-C wait for its end for ever."""
    saved = asyncio.Event()

    async def save(_: float) -> None:
        await saved.wait()

    actuator = FakeActuator(sleep=save)
    async with guarding(tmp_path, runs={RUN: quick(), "done": quick()}, actuator=actuator) as guard:
        await guard.running(0)
        await guard.running(0, run="done")
        name = await guard.promote(100, 0)
        actuator.exit("done", 0, 0)
        await guard.until(lambda state: state.phase == "completed", run="done")
        ann = partial(Command, who="ann", why="so")
        asked = asyncio.create_task(guard.engine.command(RUN, ann(verb="rollback", snapshot=name)))
        await asyncio.sleep(0)  # it is looking for the snapshot
        closing = asyncio.create_task(guard.engine.close(stop_runs=True, who="ann", why="Ctrl-C"))
        for refused in (
            asked,
            guard.engine.command(RUN, ann(verb="rollback", scratch=True)),
            guard.engine.command("done", ann(verb="reopen")),
        ):
            with pytest.raises(CommandError, match="it is not guarded now"):
                await refused
        assert not closing.done()
        saved.set()
        await asyncio.wait_for(closing, 20)
        assert (guard.state.shut_down, actuator.alive(RUN), actuator.alive("done")) == (True, [], [])


async def test_a_target_is_listed_before_the_start_and_until_the_exit_is_confirmed(tmp_path: Path) -> None:
    """Service discovery knows an attempt's port before its process exists, and forgets it once it is gone."""
    seen: list[list[int]] = []
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        [target] = guard.engine.targets()
        assert target.port == json.loads((guard.run_dir / "attempt.json").read_bytes())["exporter_port"]

        guard.actuator.on_start = lambda _: seen.append([t.attempt for t in guard.engine.targets()])
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        assert seen == [[1]]
        assert [t.attempt for t in guard.engine.targets()] == [1]


async def test_a_completed_run_takes_the_promotion_of_its_last_snapshot(tmp_path: Path) -> None:
    """After a clean end the run is COMPLETED, and the gate's last verdict is still accepted."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        folder = guard.run_dir / "attempts" / "000"
        (folder / "exporter.json").write_text("{}")
        (folder / "completed.json").write_text("{}")
        guard.actuator.exit(RUN, 0, 0)
        view = await guard.engine.wait_finished(RUN)
        assert view.state == "completed"
        name = await guard.promote(300, 0)
        assert SnapshotStore(guard.run_dir).stable().name == name  # type: ignore[union-attr]
        assert [p["name"] for p in guard.engine.view(RUN).promoted] == [name]


async def test_an_observed_attempt_is_promoted_and_then_guarded(tmp_path: Path) -> None:
    """A false alarm in observe mode stops no promotion, and the attempt is guarded once the mode is act."""
    async with guarding(tmp_path, quick(mode="observe")) as guard:
        await guard.running(0)
        await guard.engine.submit(RUN, trip(0, name="FalseAlarm"))
        await guard.until(lambda s: not s.would_have)
        target = await guard.promote(100, 0)
        actuator = guard.actuator
    async with guarding(tmp_path, quick(), actuator=actuator) as guard:
        await guard.engine.submit(RUN, trip(0))
        state = await guard.running(1)
        assert (state.resumed_from, actuator.stops) == (target, [(RUN, 0)])


@pytest.mark.parametrize("sign", ["exporter.json", "last-values.json", "scrape", ""])
async def test_an_exit_0_completes_only_what_never_attached(tmp_path: Path, sign: str) -> None:
    """Exit 0 without run.complete() is no completion of a trainer that left any sign of having attached."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        if sign == "scrape":
            guard.evidence.steps[RUN, 0] = 3
        elif sign:
            (guard.run_dir / "attempts" / "000" / sign).write_text("{}")
        guard.actuator.exit(RUN, 0, 0)
        state = await guard.until(lambda s: s.phase == "completed" or (s.attempt == 1 and s.live))
        assert (state.phase == "completed") == (sign == "")


@dataclass(kw_only=True)
class Hold:
    """Lets a thread wait at a point that the test has chosen."""

    armed: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def here(self) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.release.wait(20)


class HeldStore(SnapshotStore):
    """Snapshots of which a test holds the next full verification, or the next rollback."""

    def __init__(self, run_dir: Path, *, verifying: Hold, rolling_back: Hold) -> None:
        super().__init__(run_dir)
        self._verifying, self._rolling_back = verifying, rolling_back

    def verify(self, name: str, mode: Literal["full", "sampled"] = "full") -> Verification:
        if mode == "full":
            self._verifying.here()
        return super().verify(name, mode)

    def roll_back(self, target: str | None, **decision: Any) -> tuple[str, ...]:
        self._rolling_back.here()
        return super().roll_back(target, **decision)


@pytest.mark.parametrize("crash", [False, True])
async def test_a_persons_rollback_does_not_wait_for_what_it_replaces(tmp_path: Path, crash: bool) -> None:
    """An automatic answer that verifies for minutes is abandoned, and puts nothing away any more."""
    hold = Hold()
    stores = partial(HeldStore, verifying=hold, rolling_back=Hold())
    async with guarding(tmp_path, quick(), stores=stores) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        newer = write_snapshot(guard.run_dir, 200, 0)
        guard.evidence.unclean[newer] = ("KLSpike pending",)
        hold.armed = True
        if crash:
            guard.actuator.exit(RUN, 0, 1)
        else:
            await guard.engine.submit(RUN, trip(0, step=250))
        assert await asyncio.to_thread(hold.reached.wait, 20)
        assert guard.state.stage == ("resume" if crash else "rollback")
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="it is fine", snapshot="200"))
        state = await guard.running(1)
        hold.release.set()
        assert (state.resumed_from, guard.store.get(newer).state) == (newer, "candidate")


async def test_a_rollback_that_has_begun_ends_before_a_person_is_answered(tmp_path: Path) -> None:
    """What it has just put away is no target any more: the person is told so, and the run is not locked for it."""
    hold = Hold()
    stores = partial(HeldStore, verifying=Hold(), rolling_back=hold)
    async with guarding(tmp_path, quick(), stores=stores) as guard:
        await guard.running(0)
        target = await guard.promote(100, 0)
        write_snapshot(guard.run_dir, 200, 0)
        hold.armed = True
        await guard.engine.submit(RUN, trip(0, step=250))
        assert await asyncio.to_thread(hold.reached.wait, 20)
        command = Command(verb="rollback", who="ann", why="it is fine", snapshot="200")
        asked = asyncio.create_task(guard.engine.command(RUN, command))
        await asyncio.sleep(0.2)
        assert not asked.done()
        hold.release.set()
        with pytest.raises(CommandError, match="no usable snapshot"):
            await asked
        state = await guard.running(1)
        assert (state.phase, state.resumed_from) == ("half_open", target)


# One run never delays another ---------------------------------------------------------------------------


async def test_a_slow_stop_never_delays_another_run(tmp_path: Path) -> None:
    """While one run's trainer refuses to die, another is stopped, rolled back and restarted."""
    hold = asyncio.Event()
    actuator = FakeActuator()
    stop = actuator.stop

    async def stubborn(handle: Handle, *, grace_seconds: float) -> Gone:
        if handle["run"] == "slow":
            await hold.wait()
        return await stop(handle, grace_seconds=grace_seconds)

    actuator.stop = stubborn  # type: ignore[method-assign]
    async with guarding(tmp_path, runs={"slow": quick(), "fast": quick()}, actuator=actuator) as guard:
        for run in ("slow", "fast"):
            await guard.running(0, run=run)
        await guard.engine.submit("slow", trip(0))
        await guard.engine.submit("fast", trip(0))
        await guard.running(1, run="fast")
        assert guard.engine.view("slow").state == "open"
        hold.set()
        await guard.running(1, run="slow")


async def test_runs_that_are_not_configured_are_left_alone(tmp_path: Path) -> None:
    """What the journal holds of a run that this webhook does not guard starts nothing."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        with pytest.raises(UnknownRunError, match="'other'"):
            await guard.engine.submit("other", trip(0))
        actuator = guard.actuator
    async with guarding(tmp_path, runs={"other": quick()}, actuator=actuator) as guard:
        await guard.running(0, run="other")
        assert [view.run for view in guard.engine.views()] == ["other"]
        assert actuator.alive(RUN) == [0]


# A disk that is full ------------------------------------------------------------------------------------


async def test_what_cannot_be_journaled_is_not_acted_on(tmp_path: Path) -> None:
    """With a full disk a trip is an error for its sender, and nobody is stopped."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        put = guard.journal.put

        def refuse(run: str, event: Event) -> asyncio.Future[int]:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            future.set_exception(JournalError("database or disk is full"))
            return future

        guard.journal.put = refuse  # type: ignore[method-assign]
        before = guard.state
        with pytest.raises(JournalError, match="full"):
            await guard.engine.submit(RUN, trip(0))
        assert guard.state is before
        assert guard.actuator.stops == []
        guard.journal.put = put  # type: ignore[method-assign]
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)


async def test_an_outcome_that_could_not_be_journaled_is_produced_again(tmp_path: Path, monkeypatch: Any) -> None:
    """The stop is done once more when the disk has room again, and the run goes on."""
    monkeypatch.setattr(guarded_run, "RETRY_SECONDS", 0.01)
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        put, refusals = guard.journal.put, iter(range(3))

        def refuse_stops(run: str, event: Event) -> asyncio.Future[int]:
            if event.kind == "stop_confirmed" and next(refusals, None) is not None:
                raise JournalError("database or disk is full")
            return put(run, event)

        guard.journal.put = refuse_stops  # type: ignore[method-assign]
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        assert guard.kinds().count("stop_confirmed") == 1


# Watched steps -----------------------------------------------------------------------------------------


def looked(step: int, *, attempt: int = 0, watched: int = 10) -> StepsWatched:
    return StepsWatched(attempt=attempt, step=step, watched=watched)


async def test_a_step_is_shown_at_once_and_journaled_before_what_rests_on_it(tmp_path: Path) -> None:
    """A look is no entry of the journal; the trip after it says the step, and the journal has it first."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        before = guard.kinds()
        for step in (100, 130, 160):
            assert not guard.engine.saw(RUN, looked(step, watched=1))
        view = guard.engine.view(RUN)
        assert (view.step, view.journaled_step, guard.engine.steps()) == (160, 0, {RUN: 160})
        await guard.engine.submit(RUN, SnapshotSeen(name="s", step=90, attempt=0))
        assert guard.kinds() == [*before, "snapshot_seen"]
        await guard.engine.submit(RUN, trip(0))
        assert guard.kinds()[len(before) + 1 :][:2] == ["steps_watched", "alert_reported"]
        state = await guard.running(1)
        assert (state.furthest_trip, state.step) == (160, 0)
        assert "KLSpike on attempt 0 at step 160;" in told(guard.journal.read())
        assert guard.engine.view(RUN).step == 0


def told(entries: Iterable[Entry]) -> str:
    """Every decision of a journal, in words."""
    state, decisions = RunState(), []
    for entry in entries:
        state = fold([entry.event], state)
        decisions.append(state.decision)
    return "\n".join(decisions)


@pytest.mark.parametrize(
    "event",
    [
        trip(0),
        trip(0, status="resolved"),
        Command(verb="pause", who="ann", why="debugging"),
        Command(verb="trip", who="ann", why="it looks wrong"),
    ],
    ids=lambda event: event.kind,
)
async def test_whatever_may_decide_something_finds_the_steps_in_the_journal(tmp_path: Path, event: Event) -> None:
    """The state that an event is folded into knows every step that was watched until then."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        guard.engine.saw(RUN, looked(160))
        seq = await guard.engine.submit(RUN, event)
        entries = [entry for entry in guard.journal.read(RUN) if entry.seq <= seq]
        assert fold(entry.event for entry in entries[:-1]).step == 160
        assert entries[-1].event.kind == event.kind


async def test_bookkeeping_journals_no_steps(tmp_path: Path) -> None:
    """Nothing is decided by it."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        guard.engine.saw(RUN, looked(160))
        for event in (
            SnapshotSeen(name="s", step=90, attempt=0),
            SnapshotJudged(name="s", step=90, attempt=0, answer="error"),
        ):
            await guard.engine.submit(RUN, event)
        assert "steps_watched" not in guard.kinds()


async def test_a_trip_says_or_later_where_the_step_is_old(tmp_path: Path) -> None:
    """A figure that the watch saw just now stands as it is; an older one says only how far it was at least."""
    now = [100.0]
    async with guarding(tmp_path, monotonic=lambda: now[0]) as guard:
        await guard.running(0)
        await guard.engine.command(RUN, Command(verb="pause", who="ann", why="debugging"))
        held = []
        for step, age in ((150, 1.0), (170, FRESH_SECONDS + 1.0)):
            guard.engine.saw(RUN, looked(step))
            now[0] += age
            await guard.engine.submit(RUN, trip(0))
            held.append(guard.engine.view(RUN).held_trip)
        await guard.engine.submit(RUN, SnapshotSeen(name="s", step=180, attempt=0))
        guard.engine.saw(RUN, looked(175))
        await guard.engine.submit(RUN, trip(0))
        held.append(guard.engine.view(RUN).held_trip)
        assert held == [f"KLSpike on attempt 0 at step {at}" for at in ("150", "170 or later", "180 or later")]
        reports = [entry.event for entry in guard.journal.read(RUN) if isinstance(entry.event, AlertReported)]
        assert [report.step for report in reports] == [150, None, 175]


async def test_steps_are_journaled_once_a_minute_where_nothing_rests_on_them(tmp_path: Path) -> None:
    """The first ones at once, then as ``saw`` says; each entry has all that were watched since the last."""
    now = [100.0]
    async with guarding(tmp_path, monotonic=lambda: now[0]) as guard:
        await guard.running(0)
        for step in range(100, 10_000, 100):
            if guard.engine.saw(RUN, looked(step, watched=100)):
                await guard.engine.journal_steps(RUN)
            now[0] += 2.0
        entries = [entry.event for entry in guard.journal.read(RUN) if isinstance(entry.event, StepsWatched)]
        assert [event.step for event in entries] == [100, 3100, 6100, 9100]
        assert sum(event.watched for event in entries) == entries[-1].step


async def test_watched_steps_that_the_disk_refused_are_journaled_with_the_next(tmp_path: Path) -> None:
    """With a full disk nothing of the probation clock is lost."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        put = guard.journal.put

        def refuse(run: str, event: Event) -> asyncio.Future[int]:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            future.set_exception(JournalError("database or disk is full"))
            return future

        guard.engine.saw(RUN, looked(160, watched=60))
        guard.journal.put = refuse  # type: ignore[method-assign]
        with pytest.raises(JournalError, match="full"):
            await guard.engine.journal_steps(RUN)
        with pytest.raises(JournalError, match="full"):
            await guard.engine.submit(RUN, trip(0, action="notify"))
        await asyncio.sleep(0)
        guard.journal.put = put  # type: ignore[method-assign]
        guard.engine.saw(RUN, looked(170, watched=10))
        await guard.engine.journal_steps(RUN)
        entries = [entry.event for entry in guard.journal.read(RUN) if isinstance(entry.event, StepsWatched)]
        assert [(event.step, event.watched) for event in entries] == [(170, 70)]


async def test_the_furthest_trip_is_where_the_attempt_was_seen_to_stop(tmp_path: Path) -> None:
    """Looks at an attempt that is being stopped do not hide from the incident how far it came."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        guard.actuator.stop_seconds = 0.2
        guard.evidence.steps[RUN, 0] = 240
        guard.engine.saw(RUN, looked(160))
        await guard.engine.submit(RUN, trip(0))
        guard.engine.saw(RUN, looked(240))
        assert guard.engine.view(RUN).step == 240
        await guard.engine.submit(RUN, trip(0, name="NaN"))
        state = await guard.running(1)
        assert state.furthest_trip == 240


# Stopping and starting ----------------------------------------------------------------------------------


async def test_an_unconfirmed_stop_locks_and_starts_no_second_trainer(tmp_path: Path) -> None:
    """SIGKILL does not reap: LOCKED, "host needs attention", and the target stays listed."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        guard.actuator.unstoppable.add(RUN)
        await guard.engine.submit(RUN, trip(0))
        view = await guard.engine.wait_finished(RUN)
        assert view.state == "locked"
        assert view.reason == "host needs attention: process 4711 is in uninterruptible sleep"
        assert guard.actuator.alive(RUN) == [0]
        assert [target.attempt for target in guard.engine.targets()] == [0]
        guard.actuator.unstoppable.clear()
        await guard.engine.command(RUN, Command(verb="reset", who="ann", why="rebooted"))
        await guard.running(1)


async def test_a_command_that_cannot_be_started_locks_with_the_reason(tmp_path: Path) -> None:
    """A typing error in the command is told once, in a sentence."""
    actuator = FakeActuator()
    actuator.broken[RUN] = "trian: no such file"
    async with guarding(tmp_path, actuator=actuator) as guard:
        view = await guard.engine.wait_finished(RUN)
        assert (view.state, view.reason) == ("locked", "attempt 0 could not be started: trian: no such file")
        assert guard.engine.targets() == []


async def test_a_trainer_that_ended_while_the_webhook_was_away_is_looked_after(tmp_path: Path) -> None:
    """The next webhook finds the exit status and restarts the run."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        actuator = guard.actuator
    actuator.exit(RUN, 0, 1)
    async with guarding(tmp_path, actuator=actuator) as guard:
        assert (await guard.running(1)).infrastructure_failures == 1


async def test_a_living_trainer_is_taken_up_not_started_again(tmp_path: Path) -> None:
    """A restart of the webhook leaves trainers, attempts and targets as they are."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        before, [target] = guard.engine.view(RUN), guard.engine.targets()
        actuator = guard.actuator
    async with guarding(tmp_path, actuator=actuator) as guard:
        assert guard.engine.view(RUN) == before
        assert guard.engine.targets() == [target]
        assert len(actuator.processes) == 1


def lose_journal(folder: Path) -> None:
    for file in folder.glob("journal.db*"):
        file.unlink()


async def test_a_trainer_that_a_lost_journal_knew_is_stopped_before_the_next_starts(tmp_path: Path) -> None:
    """Whoever moves a damaged journal away never gets two trainers of one run."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        actuator = guard.actuator
    lose_journal(tmp_path)
    async with guarding(tmp_path, actuator=actuator) as guard:
        await guard.running(1)
        assert actuator.stops == [(RUN, 0)]
        assert actuator.alive(RUN) == [1]


async def test_a_trainer_that_a_lost_journal_knew_and_nothing_ends_locks(tmp_path: Path) -> None:
    """No second trainer starts beside one that cannot be stopped."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        actuator = guard.actuator
    lose_journal(tmp_path)
    actuator.unstoppable.add(RUN)
    async with guarding(tmp_path, actuator=actuator) as guard:
        view = await guard.engine.wait_finished(RUN)
        assert view.state == "locked"
        assert "attempt 0 still lives" in view.reason
        assert actuator.alive(RUN) == [0]


async def test_a_changed_policy_is_journaled(tmp_path: Path) -> None:
    """Decisions are folded with the policy that held when they were made."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        actuator = guard.actuator
    async with guarding(tmp_path, quick(retry={"lr_factor": 0.25}), actuator=actuator) as guard:
        assert guard.kinds().count("run_declared") == 2
        await guard.engine.submit(RUN, trip(0))
        assert (await guard.running(1)).lr_scale == 0.25


async def test_a_backoff_ends_at_once_when_a_person_decides(tmp_path: Path) -> None:
    """A rollback during a long back-off does not wait for it."""
    async with guarding(tmp_path, quick(retry={"backoff_seconds": 300.0})) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        guard.actuator.exit(RUN, 0, 1)
        await guard.until(lambda state: state.stage == "backoff")
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="no patience", snapshot="100"))
        assert (await guard.running(1)).resumed_step == 100


async def test_the_exporters_own_word_on_its_port_is_followed(tmp_path: Path, monkeypatch: Any) -> None:
    """An exporter that found its port busy is scraped where it says it listens (client_python#155)."""
    monkeypatch.setattr(engine, "ENDPOINT_SECONDS", 0.01)
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        said = {"host": "127.0.0.2", "port": 4321, "pid": 1, "attempt": 0}
        (guard.run_dir / "attempts" / "000" / "exporter.json").write_text(json.dumps(said))
        async with asyncio.timeout(60):
            while guard.engine.targets()[0].port != 4321:  # noqa: ASYNC110 - a file is being polled
                await asyncio.sleep(0.01)
        assert guard.engine.targets()[0].host == "127.0.0.2"


# Snapshots ----------------------------------------------------------------------------------------------


async def test_a_crash_passes_over_a_snapshot_that_is_not_clean(tmp_path: Path) -> None:
    """A candidate with a pending trip alert since goes to quarantine; the clean one before it is resumed."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        clean, unclean = (write_snapshot(guard.run_dir, step, 0) for step in (200, 300))
        guard.evidence.unclean[unclean] = ("KLSpike was pending",)
        guard.actuator.exit(RUN, 0, 1)
        assert (await guard.running(1)).resumed_from == clean
        assert guard.store.get(unclean).state == "quarantined"


async def test_a_crash_without_an_answer_from_prometheus_prefers_the_promoted_snapshot(tmp_path: Path) -> None:
    """An unknown candidate is no clean one; with nothing promoted it is still better than nothing."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        unknown = write_snapshot(guard.run_dir, 50, 0)
        guard.evidence.unclean[unknown] = None
        guard.actuator.exit(RUN, 0, 1)
        assert (await guard.running(1)).resumed_from == unknown
        promoted = await guard.promote(100, 1)
        guard.evidence.unclean[write_snapshot(guard.run_dir, 200, 1)] = None
        guard.actuator.exit(RUN, 1, 1)
        assert (await guard.running(2)).resumed_from == promoted


async def test_a_damaged_stable_snapshot_goes_to_quarantine_and_the_one_before_it_is_used(
    tmp_path: Path,
) -> None:
    """The bytes of the target are checked before anything is rolled back to it."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        older, newest = await guard.promote(100, 0), await guard.promote(200, 0)
        (guard.run_dir / "snapshots" / newest / "state.bin").write_bytes(b"200 of x")
        await guard.engine.submit(RUN, trip(0))
        assert (await guard.running(1)).resumed_from == older
        assert guard.store.get(newest).state == "quarantined"


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "divergence"])
async def test_a_read_error_condemns_no_snapshot(tmp_path: Path, crash: bool) -> None:
    """Every file fails to be read once: it is tried again, the newest snapshot is used, nothing is quarantined."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with guarding(tmp_path, sleep=sleep) as guard:
        await guard.running(0)
        names = [await guard.promote(step, 0) for step in (100, 200, 300)]
        with failing_reads(each_once("state.bin")):
            if crash:
                guard.actuator.exit(RUN, 0, 1)
            else:
                await guard.engine.submit(RUN, trip(0))
            assert (await guard.running(1)).resumed_from == names[-1]
        assert [info.state for info in guard.store.list()] == ["promoted"] * 3
        assert READ_AGAIN_SECONDS[0] in waits


@pytest.mark.parametrize("unread", ["state.bin", "manifest.json"])
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "divergence"])
async def test_a_snapshot_that_cannot_be_read_for_long_is_passed_over_and_lost_to_nobody(
    tmp_path: Path, crash: bool, unread: str
) -> None:
    """Bad blocks under the newest: after a minute the run goes on from the one before; a person can go back."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with guarding(
        tmp_path, quick(snapshots={"keep_quarantined": 0, "keep_quarantined_days": 0.0}), sleep=sleep
    ) as guard:
        await guard.running(0)
        older, newest = await guard.promote(100, 0), await guard.promote(200, 0)
        with failing_reads(lambda path: path.parts[-2:] == (newest, unread)):
            if crash:
                guard.actuator.exit(RUN, 0, 1)
            else:
                await guard.engine.submit(RUN, trip(0))
            assert (await guard.running(1)).resumed_from == older
            assert guard.store.get(newest).why.startswith("could not be read, so the run went further back: ")
        assert [wait for wait in waits if wait] == [*READ_AGAIN_SECONDS]
        assert guard.store.stable() == guard.store.active() == guard.store.get(older)
        assert [snapshot.name for snapshot in guard.state.promoted] == [older]
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="a new disk", snapshot="200"))
        state = await guard.running(2)
        assert (state.resumed_from, [snapshot.name for snapshot in state.promoted]) == (newest, [older, newest])


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "divergence"])
async def test_snapshots_that_cannot_be_read_for_long_lock_and_stay(tmp_path: Path, crash: bool) -> None:
    """A file system that is away is a person's matter: no start from scratch, and every snapshot is still there."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with guarding(tmp_path, sleep=sleep) as guard:
        await guard.running(0)
        for step in (100, 200):
            await guard.promote(step, 0)
        with failing_reads(lambda path: path.name == "state.bin"):
            if crash:
                guard.actuator.exit(RUN, 0, 1)
            else:
                await guard.engine.submit(RUN, trip(0))
            view = await guard.engine.wait_finished(RUN)
        assert view.state == "locked"
        assert "state.bin: cannot be read" in view.reason
        assert [wait for wait in waits if wait] == [*READ_AGAIN_SECONDS], "one wait for all of them"
        assert [info.state for info in guard.store.list()] == ["promoted"] * 2
        await guard.engine.command(RUN, Command(verb="reset", who="ann", why="the file server is back"))
        assert (await guard.running(1)).resumed_step == 200


@pytest.mark.parametrize(("without_stable", "phase"), [("scratch", "closed"), ("lock", "locked")])
async def test_a_crash_that_finds_every_snapshot_damaged_follows_without_stable(
    tmp_path: Path, without_stable: str, phase: str
) -> None:
    """Snapshots existed and none holds: from scratch only where the configuration says so."""
    async with guarding(tmp_path, quick(retry={"without_stable": without_stable})) as guard:
        await guard.running(0)
        for step in (100, 200):
            name = await guard.promote(step, 0)
            (guard.run_dir / "snapshots" / name / "state.bin").write_bytes(b"")
        guard.actuator.exit(RUN, 0, 1)
        state = await guard.until(lambda state: state.phase == "locked" or (state.attempt == 1 and state.live))
        assert (state.phase, state.resumed_from) == (phase, None)
        if phase == "locked":
            assert f"no snapshot can be resumed from: step-000000000100-a000, {name}" in state.reason


async def test_a_crash_before_the_first_snapshot_starts_from_scratch_under_lock_too(tmp_path: Path) -> None:
    """Nothing is lost where nothing was."""
    async with guarding(tmp_path, quick(retry={"without_stable": "lock"})) as guard:
        await guard.running(0)
        guard.actuator.exit(RUN, 0, 1)
        assert (await guard.running(1)).resumed_from is None


async def test_promotions_that_must_not_be_are_refused(tmp_path: Path) -> None:
    """Not of a tripped attempt or an abandoned line, not damaged, missing, or by the journal rejected ones."""

    async def refusal(name: str) -> str:
        with pytest.raises(CommandError) as refused:
            await guard.engine.promote(RUN, name, by="gate", evidence={}, baselines={})
        return str(refused.value)

    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        damaged = write_snapshot(guard.run_dir, 120, 0)
        (guard.run_dir / "snapshots" / damaged / "state.bin").write_bytes(b"120 of x")
        assert "state.bin" in await refusal(damaged)
        assert "no such snapshot" in await refusal("step-000000000999-a000")
        bad = SnapshotRejected(name=write_snapshot(guard.run_dir, 130, 0), step=130, attempt=0)
        await guard.engine.submit(RUN, SnapshotSeen(name=bad.name, step=130, attempt=0))
        await guard.engine.submit(RUN, dataclasses.replace(bad, by="ada"))
        assert guard.engine.view(RUN).unpromoted[0]["rejected"] is False
        await guard.engine.submit(RUN, bad)
        assert "the gate has rejected it" in await refusal(bad.name)
        left = write_snapshot(guard.run_dir, 150, 0)
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        assert "quarantine" in await refusal(left)
        assert [snapshot.step for snapshot in guard.state.promoted] == [100]


async def test_a_promotion_that_was_not_journaled_is_found_at_the_next_start(tmp_path: Path) -> None:
    """The webhook was killed between the link and the journal."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        name = write_snapshot(guard.run_dir, 100, 0)
        guard.store.promote(name, by="gate", evidence={})
        actuator = guard.actuator
    async with guarding(tmp_path, actuator=actuator) as guard:
        assert [snapshot.name for snapshot in guard.state.promoted] == [name]


async def test_a_link_that_a_crash_left_behind_is_renewed_at_the_start(tmp_path: Path) -> None:
    """The webhook was killed between the promotion and its link."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        old, new = await guard.promote(100, 0), await guard.promote(200, 0)
        actuator, link = guard.actuator, guard.run_dir / "stable_checkpoint_latest"
    link.unlink()
    link.symlink_to(f"snapshots/{old}")
    async with guarding(tmp_path, actuator=actuator):
        assert link.resolve().name == new


@pytest.mark.parametrize("person", [False, True], ids=["gate", "person"])
async def test_a_link_that_fails_to_swap_does_not_undo_a_promotion(tmp_path: Path, person: bool) -> None:
    """The promotion is on disk, so it is journaled, it is what a divergence goes back to, and the link follows."""
    fails = True

    def before(effect: str, path: Path) -> None:
        if fails and effect == "symlink":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def stores(run_dir: Path) -> SnapshotStore:
        return SnapshotStore(run_dir, files=FileLayer(before))

    async with guarding(tmp_path, stores=stores) as guard:
        await guard.running(0)
        if person:
            name = write_snapshot(guard.run_dir, 100, 0)
            await guard.engine.command(RUN, Command(verb="promote", who="ann", why="", snapshot=name))
        else:
            name = await guard.promote(100, 0)
        await guard.until(lambda state: [snapshot.name for snapshot in state.promoted] == [name])
        assert not (guard.run_dir / "stable_checkpoint_latest").is_symlink()
        fails = False
        await guard.engine.submit(RUN, trip(0))
        assert (await guard.running(1)).resumed_from == name
        assert (guard.run_dir / "stable_checkpoint_latest").resolve().name == name


async def test_snapshots_are_seen_to_while_nothing_happens(tmp_path: Path, monkeypatch: Any) -> None:
    """Of a completed run nothing is journaled any more: what grows old still goes, what is half done is done."""
    monkeypatch.setattr(engine, "TEND_SECONDS", 0.05)
    config = quick(snapshots={"keep_days": 1.0, "keep_promoted": 1})
    async with guarding(tmp_path, config) as guard:
        await guard.running(0)
        rejected = write_snapshot(guard.run_dir, 100, 0)
        guard.store.reject(rejected, ["it tripped"])
        name = write_snapshot(guard.run_dir, 200, 0)
        for file in ("exporter.json", "completed.json"):
            (guard.run_dir / "attempts" / "000" / file).write_text("{}")
        guard.actuator.exit(RUN, 0, 0)
        await guard.engine.wait_finished(RUN)
        manifest = guard.run_dir / "snapshots" / rejected / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "time": 0.0}))
        told: set[str] = set()
        async with asyncio.timeout(20), guard.engine.subscribe() as happenings:
            guard.store.promote(name, by="gate", evidence={})
            while not told >= {"snapshot_promoted", "snapshots_removed"}:
                told.add((await anext(happenings))[2].kind)
        assert [snapshot.name for snapshot in guard.state.promoted] == [name]
        assert [info.name for info in guard.store.list()] == [name]


async def test_retention_after_a_promotion_is_journaled(tmp_path: Path) -> None:
    """What was deleted is no target any more."""
    config = quick(snapshots={"keep_promoted": 1, "keep_total": 1})
    async with guarding(tmp_path, config) as guard:
        await guard.running(0)
        names = [await guard.promote(step, 0) for step in (100, 200)]
        await guard.until(lambda state: [snapshot.name for snapshot in state.promoted] == names[1:])
        assert [info.name for info in guard.store.list()] == names[1:]


async def test_quarantine_is_limited_in_bytes(tmp_path: Path) -> None:
    """``keep_quarantined_bytes`` of the configuration reaches the disk: the latest in quarantine stay."""
    config = quick(snapshots={"keep_quarantined_bytes": len(b"300 of 0")})
    async with guarding(tmp_path, config) as guard:
        await guard.running(0)
        names = [write_snapshot(guard.run_dir, step, 0) for step in (200, 300)]
        for name in names:
            guard.store.quarantine([name], reason="r", journal_entry=None)
        async with asyncio.timeout(20), guard.engine.subscribe() as happenings:
            await guard.promote(400, 0)
            while (await anext(happenings))[2].kind != "snapshots_removed":
                pass
        assert [info.name for info in guard.store.list() if info.state == "quarantined"] == names[1:]


# The purge hook -----------------------------------------------------------------------------------------


async def test_the_purge_hook_gets_the_targets_watermark(tmp_path: Path) -> None:
    """After the rollback the hook is told up to where the replay data is good; braces of its own survive."""
    told = tmp_path / "told"
    hook = ("sh", "-c", 'printf "%s %s" "$1" "$2" > "$0"', str(told), "{watermark}", '{"keep": 1}')
    async with guarding(tmp_path, quick(purge_command=hook)) as guard:
        await guard.running(0)
        name = write_snapshot(guard.run_dir, 100, 0, watermark=4711)
        await guard.engine.promote(RUN, name, by="gate", evidence={}, baselines={})
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        assert told.read_text() == '4711 {"keep": 1}'


@pytest.mark.parametrize(
    ("hook", "seconds", "reason"),
    [
        (("sh", "-c", "echo no route to the database; exit 3"), 60.0, "exit code 3: no route to the database"),
        (("sleep", "60"), 0.05, "exit code 124: not done in 0.05 s"),
        (("no-such-hook",), 60.0, "exit code 127"),
    ],
)
async def test_a_purge_hook_that_fails_locks(
    hook: tuple[str, ...], seconds: float, reason: str, tmp_path: Path
) -> None:
    """Failed, too slow or missing: the next attempt is not started on data that the bad policy wrote."""
    async with guarding(tmp_path, quick(purge_command=hook, purge_timeout_seconds=seconds)) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        await guard.engine.submit(RUN, trip(0))
        view = await guard.engine.wait_finished(RUN)
        assert view.state == "locked"
        assert reason in view.reason
        assert guard.actuator.alive(RUN) == []


# People -------------------------------------------------------------------------------------------------


async def test_commands_name_snapshots_by_step_or_name_and_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """What a person asks for in vain comes back as one sentence; nothing is journaled."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        entries = len(guard.kinds())
        for command, words in (
            (
                Command(verb="rollback", who="ann", why="", snapshot="90"),
                "no usable snapshot 90; steps that there are: 100",
            ),
            (Command(verb="reset", who="ann", why=""), "only a locked run can be reset"),
            (Command(verb="promote", who="ann", why="", snapshot="100"), "promoted already"),
        ):
            with pytest.raises(CommandError, match=words):
                await guard.engine.command(RUN, command)
        assert len(guard.kinds()) == entries


async def test_a_rollback_to_a_damaged_snapshot_stops_nothing(tmp_path: Path) -> None:
    """The damage is told before the healthy attempt is ended for it."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        name = await guard.promote(100, 0)
        (guard.run_dir / "snapshots" / name / "state.bin").write_bytes(b"")
        entries = len(guard.kinds())
        with pytest.raises(CommandError, match=r"is damaged: state\.bin"):
            await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="", snapshot="100"))
        assert guard.actuator.alive(RUN) == [0]
        assert len(guard.kinds()) == entries


async def test_a_persons_promotion_that_fails_says_why(tmp_path: Path) -> None:
    """A damaged snapshot is not promoted on anybody's word, and the decision tells the reason."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        name = write_snapshot(guard.run_dir, 100, 0)
        (guard.run_dir / "snapshots" / name / "state.bin").write_bytes(b"100 of x")
        await guard.engine.command(RUN, Command(verb="promote", who="ann", why="", snapshot="100"))
        state = await guard.until(lambda state: not state.promotions)
        assert state.decision.startswith(f"{name} was not promoted: ")
        assert state.promoted == ()


async def test_pause_and_resume_hold_a_trip_until_it_is_reported_again(tmp_path: Path) -> None:
    """Nothing happens to a paused run; after the resume the next report of the alert acts."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.engine.command(RUN, Command(verb="pause", who="ann", why="debugging"))
        await guard.engine.submit(RUN, trip(0))
        view = guard.engine.view(RUN)
        assert (view.paused, view.held_trip) == (True, "KLSpike on attempt 0 at step 0 or later")
        view = await guard.engine.command(RUN, Command(verb="resume", who="ann", why=""))
        assert (view.paused, view.held_trip, view.attempt) == (False, "", 0)
        assert guard.actuator.stops == []
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)


async def test_a_persons_rollback_loses_no_stable_snapshot_and_can_be_undone(tmp_path: Path) -> None:
    """A typo sets stable snapshots aside: retention leaves them, and naming one brings it back."""
    keep = {"keep_quarantined": 0, "keep_quarantined_days": 0.0, "keep_promoted": 9}
    async with guarding(tmp_path, quick(snapshots=keep)) as guard:
        await guard.running(0)
        names = [await guard.promote(step, 0) for step in (100, 200, 300, 400)]
        typo = Command(verb="rollback", who="ann", why="a typo", snapshot="100")
        await guard.engine.command(RUN, typo)
        assert (await guard.running(1)).resumed_from == names[0]
        newer = await guard.promote(150, 1)
        assert [info.name for info in guard.store.list() if info.was_promoted] == names[1:]
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="as it was", snapshot="400"))
        state = await guard.running(2)
        assert state.resumed_from == names[3]
        assert [snapshot.name for snapshot in state.promoted] == [names[0], names[3]]
        await guard.engine.submit(RUN, trip(2))
        assert (await guard.running(3)).resumed_from == names[3]
        assert guard.store.get(newer).restorable


async def test_what_a_divergence_set_aside_is_no_target(tmp_path: Path) -> None:
    """The refusal says that it is in quarantine, why, and where."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        name = write_snapshot(guard.run_dir, 200, 0)
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        with pytest.raises(CommandError, match=f"in quarantine .*KLSpike.*quarantine/{name}"):
            await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="", snapshot=name))


async def test_a_dismissed_alert_does_not_act_when_it_is_reported_again(tmp_path: Path) -> None:
    """``keep_firing_for`` repeats what a person has dismissed: it is recorded; a new occurrence acts."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        await guard.engine.command(RUN, Command(verb="pause", who="ann", why="looking"))
        await guard.engine.submit(RUN, trip(0, starts_at="2026-01-01T00:00:00Z"))
        resume = Command(at=1767226000.0, verb="resume", who="ann", why="a known spike", dismiss=True)
        assert "dismissed: KLSpike" in (await guard.engine.command(RUN, resume)).decision
        await guard.engine.submit(RUN, trip(0, starts_at="2026-01-01T00:00:00Z"))
        assert guard.actuator.stops == []
        await guard.engine.submit(RUN, trip(0, starts_at="2026-01-01T00:07:00Z"))
        await guard.running(1)


async def test_a_subscriber_sees_everything_once_and_ends_with_the_engine(tmp_path: Path) -> None:
    """A subscription yields what the journal holds, in its order, and ends when the engine closes."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        subscription = guard.engine.subscribe()
        first = await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
    seen = [(seq, event.kind) async for _, seq, event in subscription]
    assert seen == [(entry.seq, entry.event.kind) for entry in guard.journal.read(after=first - 1)]


async def test_a_reader_that_falls_behind_loses_its_subscription_not_the_engine() -> None:
    """A subscription's memory is bounded."""
    closed: list[Subscription] = []
    subscription = Subscription(on_close=closed.append, backlog=2)
    for seq in range(5):
        subscription.put((RUN, seq, trip(0)))
    assert closed == [subscription]
    assert [seq async for _, seq, _ in subscription] == [0, 1]


async def test_a_failing_listener_does_not_stop_the_engine(tmp_path: Path) -> None:
    """Who only watches cannot break what is watched."""

    def fail(run: str, seq: int, event: Event, state: RunState) -> None:
        raise RuntimeError("metrics are broken")

    async with guarding(tmp_path, listeners=(fail,)) as guard:
        await guard.running(0)
