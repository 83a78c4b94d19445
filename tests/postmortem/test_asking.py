"""A Prometheus that answers slowly, badly or for somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fusewire_webhook.postmortem.asking import by_attempt, observe
from fusewire_webhook.postmortem.telling import tell
from fusewire_webhook.watch.prometheus import Prometheus, Series

from .recorded import RUN, TRIP, entries, recovered

STORY = tell(RUN, entries(recovered()))


class Server:
    """Answers every instant query with one number, and the rest as a test wants it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""
        self.status = 200
        self.answers = asyncio.Event()
        """Nothing but instant queries is answered until it is set."""
        self.answers.set()

    async def query(self, request: web.Request) -> web.Response:
        self.asked.append((await request.post())["query"])  # type: ignore[arg-type]
        result: Any = {"resultType": "scalar", "result": [TRIP + 60, str(TRIP + 60)]}
        return web.json_response({"status": "success", "data": result})

    async def other(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        await self.answers.wait()
        return web.json_response({"status": "error", "error": "overloaded"}, status=self.status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """On a free port."""
    server = Server()
    app = web.Application()
    app.add_routes([web.post("/api/v1/query", server.query), web.route("*", "/{rest:.*}", server.other)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    server.answers.set()
    await runner.cleanup()


async def test_what_it_refuses_is_said_and_left_out(server: Server) -> None:
    """Rules and ranges that are refused leave the rest of the answers in place."""
    async with aiohttp.ClientSession() as session:
        observed = await observe(Prometheus(server.url, session=session), STORY, clock=lambda: TRIP + 60)
    assert "overloaded" in observed.problem
    assert (observed.rules, observed.around, observed.whole) == ((), {}, {})
    assert observed.tripped_at == TRIP


async def test_patience_ends(server: Server) -> None:
    """Past its patience a collection asks nothing more, and says so."""
    async with aiohttp.ClientSession() as session:
        prometheus = Prometheus(server.url, session=session)
        observed = await observe(prometheus, STORY, clock=time.time, patience_seconds=-1.0)
    assert server.asked == ["time()"]
    assert "too slow" in observed.problem


async def test_an_answer_that_does_not_come_ends_with_the_patience(server: Server) -> None:
    """A question is not waited for past the patience of the whole collection, however patient the client is."""
    server.answers.clear()
    async with aiohttp.ClientSession() as session, asyncio.timeout(60.0):
        prometheus = Prometheus(server.url, session=session, timeout=600.0)
        observed = await observe(prometheus, STORY, clock=lambda: TRIP + 60, patience_seconds=2.0)
    assert "too slow" in observed.problem
    assert len(server.asked) == 2


async def test_names_cannot_leave_their_matcher(server: Server) -> None:
    """A run name with quotes and braces stays one label value in every query."""
    story = tell('x"} or up{a="', entries(recovered()))
    async with aiohttp.ClientSession() as session:
        await observe(Prometheus(server.url, session=session), story, clock=lambda: TRIP + 60)
    assert all('x\\"} or up{a=\\"' in asked for asked in server.asked if "run=" in asked)
    assert sum("run=" in asked for asked in server.asked) >= 2


def test_main_process_speaks_for_the_attempt() -> None:
    """Of several ranks the series without a rank counts; phases, strangers and labels that lie are left out."""
    points = ((1.0, 1.0),)
    name = {"__name__": "rl_approx_kl"}
    series = [
        Series(labels={**name, "attempt": "3", "rank": "1"}, points=((1.0, 9.0),)),
        Series(labels={**name, "attempt": "3"}, points=points),
        Series(labels={**name, "attempt": "3", "role": "critic"}, points=((1.0, 8.0),)),
        Series(labels={"__name__": "rl_phase", "attempt": "3", "phase": "evaluate"}, points=points),
        Series(labels={**name, "attempt": "x"}, points=points),
        Series(labels={"__name__": "up", "attempt": "3"}, points=points),
    ]
    found = by_attempt(series)
    assert {attempt: set(traces) for attempt, traces in found.items()} == {3: {"approx_kl"}}
    assert found[3]["approx_kl"].values.tolist() == [1.0]
