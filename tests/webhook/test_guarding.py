"""How ``fusewire run`` waits and ends."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import view_of
from fusewire_webhook.cli import FAILED, LOCKED, OK
from fusewire_webhook.cli.guarding import Interrupts, all_finished, allow_files, exit_code, stop, unless
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import JournalError

from .site import configured, served


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


@pytest.mark.parametrize(
    ("states", "code"),
    [(["completed"], OK), (["completed", "locked"], LOCKED), (["completed", "closed"], FAILED)],
)
def test_exit_codes(states: list[str], code: int) -> None:
    """A locked run outweighs the others; only a completed one counts as success."""
    views = [replace(view_of("r", 0, RunState()), state=state) for state in states]
    assert exit_code(views) == code
