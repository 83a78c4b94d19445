"""How ``fusewire run`` waits and ends."""

from __future__ import annotations

import asyncio
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from fusewire.snapshots import SnapshotStore, Verification
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import Command, Event
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.cli import FAILED, LOCKED, OK
from fusewire_webhook.cli.guarding import Interrupts, all_finished, allow_files, exit_code, stop, unless
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import JournalError
from fusewire_webhook.service import Service
from fusewire_webhook.settings.config import AlertmanagerConfig
from fusewire_webhook.watch.prometheus import ManagedAlert
from tests.breaker.doubles import write_snapshot

from .site import configured, served, until


async def test_a_full_disk_does_not_save_the_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shutdown cannot be journaled, the trainers are stopped all the same, and it is said."""
    config, actuator, said = configured(tmp_path, "a", "b"), FakeActuator(), list[str]()

    def full(self: Journal, run: str, event: Event) -> asyncio.Future[int]:
        raise JournalError("journal.db: not stored: disk full")

    async with served(config, actuator) as service:
        monkeypatch.setattr(Journal, "put", full)
        await stop(service, config, Interrupts(), said.append)
        assert (actuator.alive("a"), actuator.alive("b")) == ([], [])
    assert said == ["stopping a, b without a journal entry"]


async def test_retention_spares_what_the_gate_verifies(tmp_path: Path) -> None:
    """Gate and engine share one store of a run, which knows what is being read."""
    async with served(configured(tmp_path), FakeActuator()) as service:
        assert service.promoter._runs["cartpole"].store is service.engine.store("cartpole")


def test_the_limit_on_open_files() -> None:
    """It is raised as far as is permitted, and never lowered: a thousand guarded processes take more than 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_what_comes_first() -> None:
    """The result where the work is done first, nothing and a cancelled work where the event comes first."""
    event, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        return 7

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    assert await unless(event, work()) == (True, 7)
    event.set()
    assert await unless(event, endless()) == (False, None)
    assert cancelled.is_set()


async def test_an_error_of_the_work_is_raised() -> None:
    """What fails while we wait for it is not swallowed."""

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(asyncio.Event(), fails())


class _Verdict:
    """A promoter whose last verdict comes at the third look."""

    period = 0.0

    def __init__(self, *candidates: str) -> None:
        self.looks = 0
        self.candidates = candidates

    def settled(self, run: str) -> bool:
        self.looks += 1
        return self.looks >= 3

    def patience(self, run: str) -> float:
        return 60.0

    def undecided(self, run: str) -> list[str]:
        return [*self.candidates]


@pytest.mark.parametrize("candidates", [["step-000000000010-a000"], []])
async def test_a_completed_run_waits_for_the_verdict_on_its_last_snapshot(
    tmp_path: Path, candidates: list[str]
) -> None:
    """The end of the run comes after the gate's word on what it left, and a wait for it is announced."""
    config, promoter, said, actuator = configured(tmp_path, "a"), _Verdict(*candidates), list[str](), FakeActuator()
    async with served(config, actuator) as service:
        actuator.exit("a", 0, 0)  # never attached: exit code 0 means completed
        await all_finished(replace(service, promoter=promoter), config, said.append)  # type: ignore[arg-type]
    assert promoter.looks == 3
    assert len(said) == len(candidates)


async def test_a_promotion_that_a_person_asked_for_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completed run whose snapshot verifies longer than the gate waits is guarded until it is promoted."""
    config, said, actuator, verify = configured(tmp_path, "a"), list[str](), FakeActuator(), SnapshotStore.verify
    held = threading.Event()

    def slow(self: SnapshotStore, name: str, mode: Literal["full", "sampled"] = "full") -> Verification:
        assert held.wait(60)
        return verify(self, name, mode)

    monkeypatch.setattr(SnapshotStore, "verify", slow)
    async with served(config, actuator) as service:
        name = write_snapshot(tmp_path / "runs" / "a", 100, 0)
        actuator.exit("a", 0, 0)
        await service.engine.wait_finished("a")
        await service.engine.command("a", Command(verb="promote", who="ann", why="it is good", snapshot=name))
        promoter = replace(service, promoter=_Verdict())  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(all_finished(promoter, config, said.append))
        await asyncio.wait({waiting}, timeout=1)
        early = waiting.done()
        held.set()
        await asyncio.wait_for(waiting, 60)
        view = service.engine.view("a")
    assert (early, [one["name"] for one in view.promoted]) == (False, [name])
    assert said == [f"a: waiting until {name} is promoted, as ann asked (Ctrl-C: do not wait)"]


async def lock(service: Service, actuator: FakeActuator, run: str) -> None:
    """Its newest attempt fails: the first failure locks."""
    before = service.engine.view(run).lockouts
    actuator.exit(run, actuator.alive(run)[-1], 1)
    await until(lambda: service.engine.view(run).lockouts > before)


async def reset(service: Service, actuator: FakeActuator, run: str) -> None:
    """A person has it started again."""
    await service.engine.command(run, Command(verb="reset", who="me", why="found it"))
    await until(lambda: bool(actuator.alive(run)))


async def test_a_run_that_is_reset_is_guarded_until_it_ends_again(tmp_path: Path) -> None:
    """The end of the others does not end the guarding of a trainer that a person has started anew."""
    config, actuator = configured(tmp_path, "a", "b"), FakeActuator()
    async with served(config, actuator) as service:
        judged = replace(service, promoter=_Verdict())  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(all_finished(judged, config, [].append))
        await lock(service, actuator, "a")
        await reset(service, actuator, "a")
        actuator.exit("b", 0, 0)
        await service.engine.wait_finished("b")
        await asyncio.wait({waiting}, timeout=0.5)
        assert not waiting.done()
        actuator.exit("a", actuator.alive("a")[-1], 0)
        await asyncio.wait_for(waiting, 60)
        assert [view.state for view in service.engine.views()] == ["completed", "completed"]


async def test_a_reset_while_people_are_being_paged_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that ends meanwhile for a second time is paged for that lock, too, and each wait is told once."""
    monkeypatch.setattr("fusewire_webhook.service.PAGING_SECONDS", 0.0)
    config, actuator, said = configured(tmp_path), FakeActuator(), list[str]()
    paging = replace(config, alertmanager=AlertmanagerConfig(people_file="people.yml"))

    class Paging:
        """An Alertmanager that has the alert; a person resets the run at its first look."""

        resets = 1

        async def alerts(self) -> list[ManagedAlert]:
            if self.resets:
                self.resets -= 1
                await reset(service, actuator, "cartpole")
            labels = {"alertname": "BreakerLocked", "run": "cartpole"}
            return [ManagedAlert(labels=labels, annotations={}, state="active", silenced_by=())]

    async with served(config, actuator) as service:
        waiting = asyncio.ensure_future(
            all_finished(replace(service, alertmanager=Paging()), paging, said.append)  # type: ignore[arg-type]
        )
        await lock(service, actuator, "cartpole")
        await until(lambda: bool(actuator.alive("cartpole")))
        await asyncio.wait({waiting}, timeout=0.5)
        assert not waiting.done()
        await lock(service, actuator, "cartpole")
        await asyncio.wait_for(waiting, 60)
    assert [line.partition(",")[0] for line in said] == 2 * ["cartpole: LOCKED"]


@pytest.mark.parametrize(
    ("states", "code"),
    [(["completed"], OK), (["completed", "locked"], LOCKED), (["completed", "closed"], FAILED)],
)
def test_exit_codes(states: list[str], code: int) -> None:
    """A locked run outweighs the others; only a completed one counts as success."""
    views = [replace(view_of("r", 0, RunState()), state=state) for state in states]
    assert exit_code(views) == code
