"""A webhook killed at any boundary ends where an undisturbed one does.

Each scenario is played once undisturbed, which counts its boundaries: before and after each journal write and each
action. Then it is played once for each of them, with the engine killed there: nothing of it goes on, and a new
one starts on the same journal, the same snapshots and the same machine. Who was not answered sends again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fusewire.snapshots import SnapshotStore, snapshot_name
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.actions import Action
from fusewire_webhook.breaker.events import (
    KINDS,
    Command,
    Event,
    MonitoringChanged,
    SnapshotJudged,
    SnapshotRejected,
    SnapshotSeen,
    StepsWatched,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.evidence_protocol import ExitEvidence
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import RunConfig

from .doubles import RUN, SetEvidence, quick, trip, write_snapshot


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """Every death of a task is logged as critical: here it is meant."""
    caplog.set_level(logging.CRITICAL + 1)


class KilledError(BaseException):
    """The engine is dead; no ``except Exception`` brings it back."""


@dataclass(kw_only=True)
class Stage:
    """One webhook after the other on one machine."""

    folder: Path
    config: RunConfig
    kill_at: Callable[[int], bool]
    actuator: FakeActuator = field(default_factory=FakeActuator)
    evidence: SetEvidence = field(default_factory=SetEvidence)
    passed: list[str] = field(default_factory=list)
    deaths: int = 0

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / RUN

    @property
    def state(self) -> RunState:
        return self.engine.state(RUN)

    async def open(self) -> None:
        """Start a webhook, again if it is killed meanwhile."""
        while True:
            self.dead = asyncio.Event()
            self.journal = Journal(self.folder / "journal.db")
            self.engine = Engine(
                runs_dir=self.folder / "runs",
                runs={RUN: self.config},
                journal=self.journal,
                actuator=self.actuator,
                evidence=self.evidence,
                checkpoint=self._checkpoint,
            )
            try:
                await self.engine.start()
            except KilledError:
                await self.close()
            else:
                return

    async def close(self) -> None:
        """Nothing of the engine goes on."""
        await self.engine.close(stop_runs=False)
        self.journal.close()

    async def play(self, act: Callable[[Stage], Awaitable[object]], done: Callable[[RunState], bool]) -> None:
        """Let something happen, again if nobody answered, until the state says that it did."""
        while not done(self.state):
            acting = asyncio.ensure_future(self._act(act, done))
            dying = asyncio.ensure_future(self.dead.wait())
            await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if self.dead.is_set():
                acting.cancel()
                await asyncio.gather(acting, return_exceptions=True)
                await self.close()
                await self.open()
            else:
                await acting

    async def _act(self, act: Callable[[Stage], Awaitable[object]], done: Callable[[RunState], bool]) -> None:
        async with self.engine.subscribe() as happenings:
            try:
                await act(self)
            except KilledError:
                await asyncio.Event().wait()
            while not done(self.state):
                await anext(happenings)

    def _checkpoint(self, label: str) -> None:
        if self.dead.is_set():
            raise KilledError
        self.passed.append(label)
        if self.kill_at(len(self.passed)):
            self.deaths += 1
            self.dead.set()
            raise KilledError


# What happens ------------------------------------------------------------------------------------------


def runs(attempt: int) -> Callable[[RunState], bool]:
    return lambda s: s.attempt > attempt or (s.attempt == attempt and s.live and s.procedure is None)


async def nothing(stage: Stage) -> None:
    """Wait only."""


def promotes(step: int, attempt: int) -> tuple[Callable[[Stage], Awaitable[object]], Callable[[RunState], bool]]:
    name = snapshot_name(step, attempt)

    async def act(stage: Stage) -> None:
        if not (stage.run_dir / "snapshots" / name).exists():
            write_snapshot(stage.run_dir, step, attempt)
        await stage.engine.promote(RUN, name, by="gate", evidence={}, baselines={})

    return act, lambda s: any(snapshot.name == name for snapshot in s.promoted)


def writes_and_trips(step: int, attempt: int) -> Callable[[Stage], Awaitable[object]]:
    async def act(stage: Stage) -> None:
        if not any(info.step == step for info in SnapshotStore(stage.run_dir).list()):
            write_snapshot(stage.run_dir, step, attempt)
        await stage.engine.submit(RUN, trip(attempt, step=step + 50))

    return act


def dies(attempt: int, code: int) -> Callable[[Stage], Awaitable[object]]:
    async def act(stage: Stage) -> None:
        if attempt in stage.actuator.alive(RUN):
            stage.actuator.exit(RUN, attempt, code)

    return act


def tells(event: Event) -> Callable[[Stage], Awaitable[object]]:
    async def act(stage: Stage) -> None:
        await stage.engine.submit(RUN, event)

    return act


def noted(name: str, state: RunState) -> bool:
    return name in state.noted and not state.would_have


def says(verb: Any, done: Callable[[RunState], bool], **more: Any) -> tuple[Any, Callable[[RunState], bool]]:
    async def act(stage: Stage) -> None:
        await stage.engine.command(RUN, Command(verb=verb, who="ann", why="because", **more))

    return act, done


async def completes(stage: Stage) -> None:
    attempt = stage.state.attempt
    folder = stage.run_dir / "attempts" / f"{attempt:03d}"
    (folder / "exporter.json").write_text("{}")
    (folder / "completed.json").write_text("{}")
    if attempt in stage.actuator.alive(RUN):
        stage.actuator.exit(RUN, attempt, 0)


async def divergence(stage: Stage) -> None:
    """Promotion, divergence, rollback with a purge hook, recovery past the incident."""
    await stage.play(nothing, runs(0))
    await stage.play(*promotes(100, 0))
    await stage.play(writes_and_trips(200, 0), runs(1))
    await stage.play(*promotes(400, 1))


async def crash(stage: Stage) -> None:
    """A crash, then one that was a divergence, until the budget of the incident is used."""
    stage.evidence.exits[RUN, 1] = ExitEvidence(failure_class="divergence", reasons=("NaN",), step=220)
    await stage.play(nothing, runs(0))
    await stage.play(*promotes(100, 0))
    await stage.play(*promotes(150, 0))
    await stage.play(dies(0, 1), runs(1))
    await stage.play(dies(1, 1), runs(2))
    await stage.play(writes_and_trips(300, 2), lambda s: s.phase == "locked")


async def people(stage: Stage) -> None:
    """Promotion and rollback by a person, Ctrl-C and the next start, a clean end."""
    await stage.play(nothing, runs(0))
    await stage.play(*promotes(100, 0))
    write_snapshot(stage.run_dir, 200, 0)
    await stage.play(*says("promote", lambda s: len(s.promoted) == 2, snapshot="200"))
    rolled = runs(1)
    await stage.play(*says("rollback", lambda s: rolled(s) or s.procedure is not None, snapshot="100"))
    await stage.play(nothing, rolled)
    await stage.play(*says("shutdown", lambda s: s.shut_down or s.attempt > 1))
    if stage.state.shut_down:
        await stage.close()
        await stage.open()
    await stage.play(nothing, runs(2))
    await stage.play(completes, lambda s: s.phase == "completed")


async def holds(stage: Stage) -> None:
    """A pause, a trip that it holds, the resume, then a hang."""
    await stage.play(nothing, runs(0))
    await stage.play(*says("pause", lambda s: s.pauses != ()))
    await stage.play(tells(trip(0)), lambda s: s.held_trip != "")
    await stage.play(*says("resume", lambda s: not s.pauses))
    await stage.play(tells(trip(0, name="Hang", failure_class="infrastructure")), runs(1))


async def observes(stage: Stage) -> None:
    """Two alerts that are noted only, and a crash that nobody answers."""
    await stage.play(nothing, runs(0))
    for name in ("KLSpike", "Hang"):
        await stage.play(tells(trip(0, name=name)), partial(noted, name))
    await stage.play(dies(0, 1), lambda s: s.phase == "locked" and not s.would_have)


async def stubborn(stage: Stage) -> None:
    """A process that no signal ends, and a person who starts again once it is gone."""
    await stage.play(nothing, runs(0))
    stage.actuator.unstoppable.add(RUN)
    await stage.play(tells(trip(0)), lambda s: s.phase == "locked")
    stage.actuator.unstoppable.clear()
    await stage.play(*says("reset", lambda s: s.phase != "locked"))
    await stage.play(nothing, runs(1))


async def broken(stage: Stage) -> None:
    """A command that cannot be started any more uses up the budget; a person repairs it and starts again."""
    await stage.play(nothing, runs(0))
    stage.actuator.broken[RUN] = "no such file"
    await stage.play(dies(0, 1), lambda s: s.phase == "locked")
    stage.actuator.broken.clear()
    await stage.play(*says("reset", lambda s: s.phase != "locked"))
    await stage.play(nothing, runs(2))


async def damaged(stage: Stage) -> None:
    """A snapshot that a person may not promote, one that cannot be gone back to, and a purge hook that fails."""
    await stage.play(nothing, runs(0))
    await stage.play(*promotes(100, 0))
    await stage.play(*promotes(200, 0))
    write_snapshot(stage.run_dir, 300, 0)
    for step in (200, 300):
        (stage.run_dir / "snapshots" / snapshot_name(step, 0) / "state.bin").write_bytes(b"something else")
    refused = says("promote", lambda s: "was not promoted" in s.decision, snapshot=snapshot_name(300, 0))
    await stage.play(*refused)
    await stage.play(tells(trip(0, step=350)), lambda s: s.phase == "locked")


async def watched(stage: Stage) -> None:
    """What the watch tells of snapshots and steps, a part of it that fails, and what retention deletes."""
    await stage.play(nothing, runs(0))
    name = write_snapshot(stage.run_dir, 50, 0)
    about: dict[str, Any] = {"name": name, "step": 50, "attempt": 0}
    await stage.play(tells(SnapshotSeen(**about)), lambda s: s.unpromoted != ())
    judged = SnapshotJudged(**about, answer="inconclusive", reasons=("too early",))
    await stage.play(tells(judged), lambda s: s.unpromoted[0].reasons == ("too early",))
    rejected = SnapshotRejected(**about, reasons=("KLSpike fired",))
    await stage.play(tells(rejected), lambda s: s.unpromoted[0].rejected)
    degraded = MonitoringChanged(degraded=True)
    await stage.play(tells(degraded), lambda _: any(e.event.kind == degraded.kind for e in stage.journal.read(RUN)))
    await stage.play(tells(StepsWatched(attempt=0, step=70, watched=70)), lambda s: s.step == 70)
    for step in (100, 200):
        await stage.play(*promotes(step, 0))
    again = SnapshotSeen(name=snapshot_name(200, 0), step=200, attempt=0)
    await stage.play(tells(again), lambda s: (len(s.promoted), s.unpromoted) == (1, ()))


def sees(
    step: int, attempt: int, act: Callable[[Stage], Awaitable[object]]
) -> Callable[[Stage], Awaitable[object]]:
    """The watch sees the attempt at a step that the journal does not have; then something happens."""

    async def seen(stage: Stage) -> None:
        watched = max(0, step - stage.state.step)
        stage.engine.saw(RUN, StepsWatched(attempt=attempt, step=step, watched=watched))
        await act(stage)

    return seen


async def time_passes(stage: Stage) -> None:
    await stage.engine.journal_steps(RUN)


async def seen(stage: Stage) -> None:
    """Steps that are journaled with what rests on them: a trip, the end of probation, an exit, a person's trip."""
    await stage.play(nothing, runs(0))
    await stage.play(*promotes(100, 0))
    await stage.play(*promotes(120, 0))
    await stage.play(sees(160, 0, tells(trip(0))), runs(1))
    await stage.play(sees(250, 1, time_passes), lambda s: s.step == 250)
    await stage.play(sees(400, 1, time_passes), runs(2))
    await stage.play(sees(300, 2, dies(2, 1)), runs(3))
    tripped = runs(4)
    by_ann, _ = says("trip", tripped)
    await stage.play(sees(330, 3, by_ann), lambda s: tripped(s) or s.procedure is not None)
    await stage.play(nothing, tripped)
    await stage.play(*promotes(500, 4))


SCENARIOS: Mapping[str, tuple[Callable[[Stage], Awaitable[None]], RunConfig]] = {
    "divergence": (divergence, quick(purge_command=("true", "{watermark}"))),
    "crash": (crash, quick(retry={"divergences_per_incident": 2})),
    "people": (people, quick()),
    "holds": (holds, quick()),
    "observes": (observes, quick(mode="observe")),
    "stubborn": (stubborn, quick()),
    "broken": (broken, quick(retry={"infrastructure_failures": 2})),
    "damaged": (damaged, quick(purge_command=("false",))),
    "seen": (seen, quick(retry={"probation_steps": 200})),
    "watched": (watched, quick(snapshots={"keep_promoted": 1, "keep_total": 1})),
}


def never(_: int) -> bool:
    """An undisturbed webhook."""
    return False


async def play(name: str, folder: Path, kill_at: Callable[[int], bool]) -> tuple[dict[str, Any], Stage]:
    """A whole scenario; what is left at its end, and the stage."""
    await asyncio.to_thread(folder.mkdir)
    scenario, config = SCENARIOS[name]
    stage = Stage(folder=folder, config=config, kill_at=kill_at)
    await stage.open()
    try:
        async with asyncio.timeout(60):
            await scenario(stage)
    finally:
        await stage.close()
    assert fold(entry.event for entry in stage.journal.read(RUN)) == stage.state
    left = {
        "state": stage.state.to_json(),
        "snapshots": {info.name: info.state for info in SnapshotStore(stage.run_dir).list()},
        "links": {p.name: p.readlink().name for p in stage.run_dir.iterdir() if p.is_symlink()},
        "started": [*stage.actuator.processes],
        "alive": stage.actuator.alive(RUN),
        "resumed from": [p.launch.argv[-1].rpartition("/")[2] for p in stage.actuator.processes.values()],
    }
    return left, stage


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_webhook_killed_at_any_boundary_ends_where_an_undisturbed_one_does(
    name: str, tmp_path: Path
) -> None:
    """Same state, same counters, same snapshots, same attempts, whatever the instant of the kill."""
    expected, undisturbed = await play(name, tmp_path / "undisturbed", never)
    assert len(undisturbed.passed) > 25
    for boundary in range(1, len(undisturbed.passed) + 1):
        left, stage = await play(name, tmp_path / f"{boundary}", lambda number: number == boundary)  # noqa: B023
        assert stage.deaths == 1
        assert left == expected, f"killed at {boundary}: {undisturbed.passed[boundary - 1]}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
async def test_a_webhook_that_keeps_dying_still_gets_there(seed: int, tmp_path: Path) -> None:
    """Killed at one boundary in seven, again and again, each run still ends in the same state."""
    deaths = 0
    for name in SCENARIOS:
        chance = random.Random(f"{name} {seed}")
        expected, _ = await play(name, tmp_path / name, never)
        left, stage = await play(name, tmp_path / f"{name}-dying", lambda _: chance.random() < 1 / 7)  # noqa: B023
        deaths += stage.deaths
        assert left == expected
    assert deaths > 2 * len(SCENARIOS)


async def test_every_kind_of_boundary_is_walked(tmp_path: Path) -> None:
    """The scenarios together pass each action that there is, and the journaling of each kind of event."""
    kinds: set[str] = set()
    for name in SCENARIOS:
        _, stage = await play(name, tmp_path / name, never)
        kinds.update(label.rpartition(":")[2] for label in stage.passed)
    assert kinds == {*KINDS, *(action.__name__ for action in Action.__subclasses__())}
