"""The webhook writes postmortems beside the breaker: when, and what happens when that goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import Event, RolledBack, StepsWatched, StopConfirmed
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.breaker.view import RunView, view_of
from fusewire_webhook.postmortem import postmortem_path
from fusewire_webhook.postmortem.__main__ import NOT_TRIPPED
from fusewire_webhook.postmortem.background import PostmortemWriter, Task, run_child
from fusewire_webhook.postmortem.serving import Asked, read_address
from fusewire_webhook.settings.config import AuthConfig
from fusewire_webhook.settings.runs_folder import RunsFolder
from webhook.site import configured, served, until

from .recorded import RUN, TRIP, locked, recovered, started, write_journal, write_run

ASKED = Asked(prometheus_url="http://127.0.0.1:9", scrape_interval=1.0)


class Desk:
    """A writer whose worker a test holds up, and lets fail."""

    def __init__(self, folder: Path, *views: RunView, drain_seconds: float = 5.0) -> None:
        self.folder = RunsFolder(folder)
        self.folder.prepare()
        self.registry = CollectorRegistry()
        self.done: list[tuple[str, int]] = []
        self.begun: list[tuple[str, int]] = []
        self.answer: tuple[int, str] | Exception = (0, "")
        self.free = asyncio.Event()
        self.free.set()
        self.writer = PostmortemWriter(
            self.folder,
            ASKED,
            views=lambda: views,
            registry=self.registry,
            worker=self.work,
            drain_seconds=drain_seconds,
        )

    async def work(self, task: Task) -> tuple[int, str]:
        key = task["run"], task["attempt"]
        self.begun.append(key)
        await self.free.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        self.done.append(key)
        return self.answer

    def hear(self, *events: Event, run: str = RUN) -> None:
        """What the engine tells its listener, each event with the state after it."""
        for number in range(1, len(events) + 1):
            self.writer.stored(run, number, events[number - 1], fold(events[:number]))

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"fusewire_{name}_total") or 0.0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with contextlib.asynccontextmanager(self.writer.serving)():
            yield


async def test_written_after_restart_and_again_once_watched(tmp_path: Path) -> None:
    """A tripped attempt's restart wants its postmortem, the first watched steps of the next one want it again."""
    desk = Desk(tmp_path)
    async with desk.open():
        *before, watched = recovered()
        desk.hear(*before)
        await until(lambda: desk.done == [(RUN, 0)])
        desk.writer.stored(RUN, 11, watched, fold([*before, watched]))
        await until(lambda: len(desk.done) == 2)
        later = StepsWatched(at=TRIP + 15, attempt=1, step=30, watched=5)
        desk.writer.stored(RUN, 12, later, fold([*before, watched, later]))
        await asyncio.sleep(0.05)
    assert desk.done == [(RUN, 0), (RUN, 0)]
    assert desk.count("postmortems") == 2


@pytest.mark.parametrize("until_event", [StopConfirmed, RolledBack])
async def test_written_while_the_restart_waits(tmp_path: Path, until_event: type[Event]) -> None:
    """A back-off, a purge or a pause may hold the restart for hours: once the trainer is stopped there is one."""
    story = recovered()
    last = max(number for number, event in enumerate(story) if isinstance(event, until_event))
    desk = Desk(tmp_path)
    async with desk.open():
        desk.hear(*story[: last + 1])
        await until(lambda: (RUN, 0) in desk.done)


async def test_start_from_a_snapshot_wants_nothing(tmp_path: Path) -> None:
    """What is rolled back without a trip, and what a person stops for good, has no postmortem."""
    desk = Desk(tmp_path)
    async with desk.open():
        desk.hear(*recovered()[:5])
        await asyncio.sleep(0.05)
    assert desk.begun == []


async def test_lockout_is_written_before_the_webhook_ends(tmp_path: Path) -> None:
    """``fusewire run`` ends when a run is locked; what is wanted by then is still written."""
    desk = Desk(tmp_path)
    desk.free.clear()
    async with desk.open():
        desk.hear(*locked())
        asyncio.get_running_loop().call_later(0.1, desk.free.set)
    assert desk.done == [(RUN, 0)]


async def test_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    """A worker that hangs delays the end of the webhook by its bound only."""
    desk = Desk(tmp_path, drain_seconds=0.05)
    desk.free.clear()
    async with desk.open():
        desk.hear(*locked())
    assert desk.done == []


async def test_listener_waits_for_nothing(tmp_path: Path) -> None:
    """While one postmortem hangs the listener returns at once, and what is wanted twice is written once."""
    desk = Desk(tmp_path)
    desk.free.clear()
    async with desk.open():
        desk.hear(*locked(), run="first")
        await until(lambda: desk.begun == [("first", 0)])
        for _ in range(1000):
            desk.hear(*locked()[-1:], run="second")
            desk.writer.stored("second", 1, locked()[-1], fold(locked()))
            desk.writer.stored("second", 2, locked()[0], fold(recovered()))
        desk.free.set()
        await until(lambda: len(desk.done) == 2)
    assert desk.done == [("first", 0), ("second", 0)]


@pytest.mark.parametrize("answer", [OSError("no more processes"), (1, "disk full"), (-9, "")])
async def test_failure_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: tuple[int, str] | Exception
) -> None:
    """A postmortem that cannot be written is one error line and one count; the next one is written."""
    desk = Desk(tmp_path)
    desk.answer = answer
    async with desk.open():
        desk.hear(*locked(), run="first")
        await until(lambda: desk.count("postmortem_failures") == 1)
        desk.answer = (0, "")
        desk.hear(*locked(), run="second")
        await until(lambda: desk.done[-1:] == [("second", 0)])
    assert desk.count("postmortems") == 2
    assert any(record.levelno >= logging.ERROR and "first" in record.getMessage() for record in caplog.records)


async def test_attempt_that_did_not_trip_is_no_failure(tmp_path: Path) -> None:
    """A preempted attempt has a successor but no postmortem: the child says so, and nothing is counted."""
    desk = Desk(tmp_path)
    desk.answer = (NOT_TRIPPED, "")
    async with desk.open():
        desk.hear(started(0, at=1.0), started(1, at=2.0))
        await until(lambda: bool(desk.done))
    assert (desk.count("postmortems"), desk.count("postmortem_failures")) == (0, 0)


async def test_killed_webhook_makes_up_for_it(tmp_path: Path) -> None:
    """At its start a webhook writes what an earlier one did not come to, and only that."""
    there = postmortem_path(tmp_path / "written", 0)
    there.parent.mkdir(parents=True)
    there.write_text("")
    tripped, healthy = fold(recovered()), fold(recovered()[:3])
    views = [view_of("missing", 1, tripped), view_of("written", 1, tripped), view_of("healthy", 1, healthy)]
    views += [view_of("locked", 1, fold(locked())), view_of("stopping", 1, fold(recovered()[:-4]))]
    views += [view_of("waiting", 1, fold(recovered()[:-2]))]
    desk = Desk(tmp_path, *views)
    async with desk.open():
        await until(lambda: ("waiting", 1) in desk.done)  # which has not tripped: the child says so
    assert desk.done == [("missing", 0), ("locked", 0), ("stopping", 0), ("waiting", 0), ("waiting", 1)]


async def test_address_is_announced_to_its_owner_alone(tmp_path: Path) -> None:
    """While the webhook serves, and no longer, the command line finds the Prometheus that it asks."""
    desk = Desk(tmp_path)
    async with desk.open():
        assert read_address(desk.folder) == ASKED
        assert (desk.folder.state / "prometheus.json").stat().st_mode & 0o077 == 0
    assert read_address(desk.folder) is None


def task(runs: Path, **more: Any) -> Task:
    given = {"runs_dir": str(runs), "run": RUN, "attempt": 0, "prometheus_url": None, "scrape_interval": 1.0}
    return {**given, **more}


def test_child_writes_and_ends(tmp_path: Path) -> None:
    """The real child writes the files, tells an attempt that has not tripped, and names what is wrong in a line."""
    write_run(tmp_path)
    write_journal(tmp_path, recovered())
    assert asyncio.run(run_child(task(tmp_path))) == (0, "")
    assert postmortem_path(tmp_path / RUN, 0).exists()
    assert asyncio.run(run_child(task(tmp_path, attempt=1)))[0] == NOT_TRIPPED
    code, said = asyncio.run(run_child(task(tmp_path / "elsewhere")))
    assert code == 1
    assert "there is no journal" in said


def test_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    """A child past its time is gone when the call returns."""
    code, said = asyncio.run(run_child(task(tmp_path), seconds=0.01))
    assert (code, "took longer" in said) == (1, True)


async def test_trip_of_a_served_run_leaves_its_postmortem(tmp_path: Path) -> None:
    """Engine, journal and child together: a person's trip leads to a restart, and its postmortem is served."""
    async with served(configured(tmp_path), FakeActuator()) as service, aiohttp.ClientSession() as session:
        order = {"who": "ada", "why": "the <b>critic</b> looks wrong"}
        async with session.post(f"{service.url}/api/runs/cartpole/trip", json=order) as response:
            assert response.status == 200
        path = postmortem_path(tmp_path / "runs" / "cartpole", 0)
        await until(lambda: service.engine.view("cartpole").attempt == 1)
        await until(path.exists)
        listed = f"{service.url}/api/runs/cartpole/postmortems"
        async with session.get(listed) as response:
            (found,) = (await response.json())["postmortems"]
        assert found["attempt"] == 0
        async with session.get(f"{listed}/attempt-000.html") as response:
            text = await response.text()
            assert response.content_type == "text/html"
            assert response.headers["Content-Security-Policy"].startswith("sandbox;")
        assert "trip by ada: the &lt;b&gt;critic&lt;/b&gt; looks wrong" in text
        for name in ("attempt-000.txt", "..%2F..%2Fattempt.json", "attempt-001.html", ".attempt-000.html.x"):
            async with session.get(f"{listed}/{name}") as response:
                assert (response.status, response.content_type) == (404, "application/json")
        async with session.get(f"{service.url}/api/runs/other/postmortems") as response:
            assert response.status == 404


async def test_postmortems_need_the_command_token(tmp_path: Path) -> None:
    """List and files are behind the token of people."""
    token = tmp_path / "token"
    token.write_text("command-token-8a2e6d40\n")
    config = configured(tmp_path, auth=AuthConfig(command_token_file=str(token)))
    async with served(config, FakeActuator()) as service, aiohttp.ClientSession() as session:
        url = f"{service.url}/api/runs/cartpole/postmortems"
        for path in (url, f"{url}/attempt-000.html"):
            async with session.get(path) as response:
                assert response.status == 401
        async with session.get(url, headers={"Authorization": "Bearer command-token-8a2e6d40"}) as response:
            assert await response.json() == {"run": "cartpole", "postmortems": []}
