"""What the console asks of the webhook, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from breaker.doubles import trip, write_snapshot
from fusewire_webhook.breaker.events import Command, SnapshotSeen, StepsWatched
from fusewire_webhook.console import assets
from fusewire_webhook.console.signals import named_by_alerts
from fusewire_webhook.console.timeline import timeline
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.deadman import WatchStatus

from .conftest import Clock
from .site import TOKEN, Site, site

RUN = "cartpole"
Visit = Callable[..., AbstractAsyncContextManager[tuple[Site, aiohttp.ClientSession]]]


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    """Serve the console and talk to it; the session keeps cookies as a browser does."""

    @asynccontextmanager
    async def visit(*names: str, **how: Any) -> AsyncIterator[tuple[Site, aiohttp.ClientSession]]:
        jar = aiohttp.CookieJar(unsafe=True)
        async with (
            site(tmp_path, *(names or (RUN,)), **how) as served,
            aiohttp.ClientSession(served.url, cookie_jar=jar) as session,
        ):
            yield served, session

    return visit


async def sign_in(session: aiohttp.ClientSession, token: str = TOKEN, **more: Any) -> aiohttp.ClientResponse:
    return await session.post("/console/session", json={"token": token}, **more)


async def test_every_file_is_served_under_a_strict_policy(visit: Visit) -> None:
    """No inline script or style, no other origin; what is known is not sent again; nothing else is served."""
    async with visit(token=TOKEN) as (_, session):
        for path in ("/", *(f"/console/files/{name}" for name in assets.load())):
            answer = await session.get(path)
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            again = await session.get(path, headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        assert (await session.get("/console/files/..%2Froutes.py")).status == 404


async def test_the_cookie_is_for_this_server_and_no_script(visit: Visit) -> None:
    """HttpOnly, SameSite=Strict, of a limited life; it opens ``/api`` and never holds the token."""
    async with visit(token=TOKEN) as (_, session):
        assert (await session.get("/api/runs")).status == 401
        answer = await sign_in(session)
        assert await answer.json() == {"needed": True, "seconds_left": 12 * 3600.0}
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Max-Age=43200"} <= set(cookie.split("; "))
        assert TOKEN not in cookie
        assert (await session.get("/api/runs")).status == 200
        assert 43_000 < (await (await session.get("/console/session")).json())["seconds_left"] <= 43_200
        await session.delete("/console/session")
        assert (await session.get("/api/runs")).status == 401


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (403, {"token": "wrong-token-wrong-token"}, {}),
        (403, {"token": 3}, {}),
        (400, {}, {}),
        (400, [], {}),
        (403, {"token": TOKEN}, {"Origin": "http://127.0.0.1:1"}),
        (403, {"token": TOKEN}, {"Content-Type": "text/plain"}),
    ],
)
async def test_signing_in_is_refused(visit: Visit, status: int, body: Any, headers: dict[str, str]) -> None:
    """Without the token, with garbage, or from the page of another origin."""
    async with visit(token=TOKEN) as (_, session):
        answer = await session.post("/console/session", json=body, headers=headers)
        assert answer.status == status
        assert (await answer.json())["error"]
        assert "Set-Cookie" not in answer.headers


async def test_a_cookie_is_not_forged_nor_used_twice_as_long(visit: Visit, clock: Clock) -> None:
    """Another end, another signature, another token's session and an expired one open nothing."""
    async with visit(token=TOKEN, clock=clock) as (served, session):
        answer = await sign_in(session)
        ((name, morsel),) = answer.cookies.items()
        until, nonce, signature = morsel.value.split(".")
        zeros = "0" * 64
        longer = f"{int(until) + 9999}.{nonce}.{signature}"
        for forged in (longer, f"{until}.{nonce}.{zeros}", f"{until}.{nonce}.é", f"²{morsel.value}", "..", ""):
            async with aiohttp.ClientSession(served.url, headers={"Cookie": f"{name}={forged}"}) as other:
                assert (await other.get("/api/runs")).status == 401
        late = {"Cookie": f"{name}={morsel.value}"}
        for seconds, status in ((12 * 3600.0 - 1.0, 200), (2.0, 401)):
            clock.now += seconds
            assert (await session.get("/api/runs", headers=late)).status == status


async def test_a_session_opens_no_path_of_machines(visit: Visit) -> None:
    """The cookie stands for the command token: alerts and discovery keep theirs."""
    async with visit(token=TOKEN, alert_token=TOKEN[::-1]) as (_, session):
        await sign_in(session)
        assert (await session.get("/sd")).status == 401
        assert (await session.post("/alerts", json={"alerts": []})).status == 401


async def test_another_page_cannot_use_the_session(visit: Visit) -> None:
    """A page on another port of this host gets the cookie sent along, and is refused by its origin."""
    async with visit(token=TOKEN) as (served, session):
        await sign_in(session)
        command = {"who": "mallory", "why": "fun"}
        foreign = {"Origin": "http://127.0.0.1:8888"}
        answer = await session.post(f"/api/runs/{RUN}/trip", json=command, headers=foreign)
        assert answer.status == 403
        assert (await session.post(f"/api/runs/{RUN}/trip", data=b"{}")).status == 415
        assert served.journaled(RUN, "command") == []


async def events(stream: aiohttp.ClientResponse, wanted: str) -> AsyncIterator[dict[str, Any]]:
    """The data of each event of a name, as they come."""
    name = b""
    while True:
        async with asyncio.timeout(60):
            while line := await stream.content.readline():
                if line.startswith(b"event: "):
                    name = line.removeprefix(b"event: ").strip()
                elif line.startswith(b"data: ") and name == wanted.encode():
                    break
        if not line:
            return
        yield json.loads(line.removeprefix(b"data: "))


@pytest.fixture
def no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open stream says nothing to show that it is open."""
    monkeypatch.setattr("fusewire_webhook.web.stream.BEAT_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_beat")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_an_open_stream_hears_of_the_watch_at_once(visit: Visit, busy: bool) -> None:
    """Degraded, worse, and whole again, not only with the next beat, whether runs report or not."""
    async with visit() as (served, session), session.get("/api/events") as stream:

        async def train() -> None:
            while busy:
                await served.engine.submit(RUN, StepsWatched(attempt=0, step=1, watched=1))
                await asyncio.sleep(0.2)

        training = asyncio.create_task(train())
        heard = events(stream, "watch")
        for problems in ({"watchdog": "no beat"}, {"watchdog": "no beat", "rules": "bad"}, {"rules": "worse"}, {}):
            served.watch[0] = WatchStatus(problems=problems)
            assert (await anext(heard))["monitoring"]["problems"] == problems
        training.cancel()


async def test_an_open_stream_hears_how_far_runs_have_come(visit: Visit) -> None:
    """Steps that the journal does not have yet, of those that advanced, as the run's view has them."""
    async with visit() as (served, session), session.get("/api/events") as stream:
        heard = events(stream, "steps")
        for step in (70, 90):
            served.engine.saw(RUN, StepsWatched(attempt=0, step=step, watched=20))
            assert await anext(heard) == {RUN: step}
            answer = await session.get(f"/api/runs/{RUN}")
            assert (await answer.json())["step"] == step
        assert served.journaled(RUN, "steps_watched") == []


async def test_an_open_stream_hears_whether_runs_are_watched(visit: Visit) -> None:
    """Once for each change, not for each look, as the run's view has it."""
    async with visit() as (served, session), session.get("/api/events") as stream:
        heard = events(stream, "watches")
        for updates, state in ((None, "starting"), (7.0, "watched")):
            for ahead in range(3):
                more = None if updates is None else updates + ahead
                served.engine.looked(RUN, 0, more, scrape_interval=1.0)
            assert (await anext(heard))[RUN]["state"] == state
            answer = await session.get(f"/api/runs/{RUN}")
            assert (await answer.json())["watch"]["state"] == state


@pytest.mark.usefixtures("no_beat")
async def test_an_open_stream_hears_of_strangers(visit: Visit) -> None:
    """Each alert of a run that nobody guards reaches the console that is open, counted."""
    async with visit() as (_, session), session.get("/api/events") as stream:
        heard = events(stream, "watch")
        alert = {"status": "firing", "labels": {"alertname": "KLSpike", "run": "other"}, "annotations": {}}
        for count in (1, 2):
            await session.post("/alerts", json={"version": "4", "alerts": [alert]})
            (stranger,) = (await anext(heard))["unknown_alerts"]
            assert (stranger["run"], stranger["count"]) == ("other", count)


async def test_a_stream_ends_with_its_session(visit: Visit, clock: Clock) -> None:
    """An expired session, and one that was signed out in another tab, hear nothing more; a token does."""
    async with visit(token=TOKEN, clock=clock) as (served, session):
        await sign_in(session)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        async with session.get("/api/events") as stream, asyncio.timeout(60):
            await stream.content.readuntil(b"\n\n")
            clock.now += 12 * 3600.0
            await stream.content.read()
        await sign_in(session)
        async with (
            aiohttp.ClientSession(served.url, headers=bearer) as other,
            session.get("/api/events") as stream,
            other.get("/api/events") as kept,
        ):
            await stream.content.readuntil(b"\n\n")
            await session.delete("/console/session")
            with contextlib.suppress(aiohttp.ClientError):
                async with asyncio.timeout(60):
                    await stream.content.read()
            await served.engine.submit(RUN, StepsWatched(attempt=0, step=1, watched=1))
            assert (await anext(events(kept, "run")))["kind"] == "steps_watched"


async def test_without_a_token_no_session_is_needed(visit: Visit) -> None:
    """On loopback without a command token the console works at once."""
    async with visit() as (_, session):
        assert await (await session.get("/console/session")).json() == {"needed": False, "seconds_left": None}
        assert (await session.get("/api/runs")).status == 200


async def test_a_decision_on_an_old_picture_is_refused(visit: Visit) -> None:
    """409 with what happened since; bookkeeping is no objection, and who does not ask is not asked."""
    async with visit() as (served, session):

        async def decide(verb: str, **more: Any) -> tuple[int, dict[str, Any]]:
            answer = await session.post(f"/api/runs/{RUN}/{verb}", json={"who": "ada", "why": "x", **more})
            return answer.status, await answer.json()

        seen = served.engine.view(RUN).seq
        await served.engine.submit(RUN, StepsWatched(attempt=0, step=10, watched=10))
        await served.engine.submit(RUN, SnapshotSeen(name="s", step=5, attempt=0))
        await served.engine.submit(RUN, trip(None, action="", name="ReturnDrawdown"))
        status, view = await decide("pause", seen_seq=seen)
        assert (status, view["paused"]) == (200, True)
        status, refused = await decide("resume", seen_seq=seen)
        assert (status, refused["reason"]) == (409, "unseen")
        assert refused["error"] == f"not done: since you looked at {RUN}, this happened: ada: pause: x"
        assert (await decide("resume", seen_seq=view["seq"]))[0] == 200
        assert (await decide("pause"))[0] == 200
        assert (await decide("resume", seen_seq="3"))[0] == 400
        assert len(served.journaled(RUN, "command")) == 3


@pytest.mark.parametrize("locked", [False, True])
async def test_passing_over_stable_snapshots_must_be_confirmed(visit: Visit, locked: bool) -> None:
    """409 names the field and what would go; nothing is journaled. Where no stable one goes nobody is asked."""
    async with visit() as (served, session):
        first, last = await served.promoted(RUN, 100), await served.promoted(RUN, 200)
        write_snapshot(served.runs_dir / RUN, 300, 0)
        if locked:
            served.actuator.unstoppable.add(RUN)
            await served.engine.submit(RUN, trip(0))
            await served.engine.wait_finished(RUN)
            served.actuator.unstoppable.clear()
        verb = "reset" if locked else "rollback"

        async def decide(**more: Any) -> tuple[int, dict[str, Any]]:
            answer = await session.post(f"/api/runs/{RUN}/{verb}", json={"who": "ada", "why": "x", **more})
            return answer.status, await answer.json()

        for going, count, stable in (({"snapshot": "100"}, 2, 1), ({"scratch": True}, 3, 2)):
            status, refused = await decide(**going)
            assert (status, refused["reason"]) == (409, "unconfirmed")
            assert f"moves {count} snapshots ({stable} stable) to quarantine" in refused["error"]
            assert '"confirm": true' in refused["error"]
            assert (await decide(**going, confirm=False))[0] == 409
        assert served.journaled(RUN, "command") == []
        assert served.engine.view(RUN).promoted[-1]["name"] == last
        going = {"snapshot": "100", "confirm": True} if locked else {"snapshot": "200"}
        assert (await decide(**going))[0] == 200
        await served.until(lambda: served.engine.view(RUN).live and served.engine.view(RUN).attempt == 1)
        assert served.engine.view(RUN).resumed_from == (first if locked else last)
        if locked:  # what a person's reset set aside comes back like what a rollback did
            answer = await session.post(
                f"/api/runs/{RUN}/rollback", json={"who": "ada", "why": "x", "snapshot": "200"}
            )
            assert answer.status == 200
            await served.until(lambda: served.engine.view(RUN).resumed_from == last)


async def test_a_trip_that_is_under_way_is_a_decision(visit: Visit) -> None:
    """Between the alert and the confirmed stop, a person who has not seen the alert is told of it."""
    async with visit() as (served, session):
        seen = served.engine.view(RUN).seq
        served.actuator.stop_seconds = 60.0
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        body = {"who": "ada", "why": "x", "scratch": True, "seen_seq": seen}
        answer = await session.post(f"/api/runs/{RUN}/rollback", json=body)
        assert answer.status == 409
        assert "KLSpike" in (await answer.json())["error"]


async def test_of_commands_at_once_one_is_done(visit: Visit) -> None:
    """Twenty that rest on the same picture: one is journaled, nineteen are told by whom."""
    async with visit() as (served, session):
        seen = served.engine.view(RUN).seq

        async def decide(number: int) -> int:
            body = {"who": f"p{number}", "why": "x", "scratch": True, "seen_seq": seen}
            return (await session.post(f"/api/runs/{RUN}/rollback", json=body)).status

        answers = await asyncio.gather(*(decide(number) for number in range(20)))
        assert sorted(answers) == [200] + 19 * [409]
        assert len(served.journaled(RUN, "command")) == 1


async def test_the_timeline_is_complete_page_by_page() -> None:
    """Newest first, without bookkeeping, nothing lost or twice at any page size, in a journal of many runs."""
    journal = [
        {"seq": seq, "kind": "steps_watched" if seq % 3 else "command"} for seq in range(1, 40_000) if seq % 7 == 0
    ]

    async def read_log(run: str, after: int, limit: int) -> list[dict[str, Any]]:
        return [entry for entry in journal if entry["seq"] > after][:limit]

    wanted = [entry["seq"] for entry in reversed(journal) if entry["kind"] == "command"]
    for limit in (7, 100, 5000):
        found: list[int] = []
        before = 40_000
        while before:
            page = await timeline(read_log, RUN, before=before, limit=limit)
            assert len(page["entries"]) <= limit
            found += [entry["seq"] for entry in page["entries"]]
            before = page["before"]
        assert found == wanted


@pytest.mark.parametrize(
    ("signal", "query", "status"),
    [
        ("approx_kl", "start=1&end=61", 200),
        ("step", "start=1&end=61", 200),
        ("up", "start=1&end=61", 404),
        ("approx_kl{}", "start=1&end=61", 404),
        ("approx_kl", "start=61&end=1", 400),
        ("approx_kl", "start=nan&end=1", 400),
        ("approx_kl", "start=0&end=99999999", 400),
        ("approx_kl", "", 400),
    ],
)
async def test_only_signals_of_the_catalogue_are_asked_for(
    visit: Visit, signal: str, query: str, status: int
) -> None:
    """No request becomes a query of its own."""
    async with visit() as (served, session):
        answer = await session.get(f"/api/runs/{RUN}/signals/{signal}?{query}")
        assert answer.status == status
        assert len(served.prometheus.asked) == (status == 200)


async def test_the_future_is_not_drawn(visit: Visit) -> None:
    """A plot that reaches past now asks only up to now, and nothing where all of it lies ahead."""
    async with visit() as (served, session):
        now = time.time()
        await session.get(f"/api/runs/{RUN}/signals/approx_kl?start={now - 60}&end={now + 60}")
        assert now <= served.prometheus.last_end < now + 50
        answer = await session.get(f"/api/runs/{RUN}/signals/approx_kl?start={now + 60}&end={now + 90}")
        assert (await answer.json())["series"] == []
        assert len(served.prometheus.asked) == 1


async def test_a_runs_name_cannot_leave_its_matcher(visit: Visit) -> None:
    """Quotes and backslashes of a name are escaped in PromQL."""
    name = 'a" or vector(1) #\\'
    async with visit(name) as (served, session):
        url = session._base_url
        assert url is not None
        answer = await session.get(url / "api" / "runs" / name / "signals" / "approx_kl" % {"start": 1, "end": 61})
        assert answer.status == 200
        assert served.prometheus.asked == ['max by (attempt) (rl_approx_kl{run="a\\" or vector(1) #\\\\"})']


async def test_a_silent_prometheus_is_a_sentence(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plot says why there is none; the catalogue is there all the same."""
    async with visit() as (served, session):

        async def away(*_: Any, **__: Any) -> Any:
            raise PrometheusError("Prometheus cannot be reached")

        monkeypatch.setattr(served.prometheus, "query_range", away)
        monkeypatch.setattr(served.prometheus, "rules", away)
        plot = await session.get(f"/api/runs/{RUN}/signals/approx_kl?start=1&end=61")
        assert (plot.status, (await plot.json())["error"]) == (503, "Prometheus cannot be reached")
        choices = await (await session.get(f"/api/runs/{RUN}/signals")).json()
        assert choices["problem"] == "Prometheus cannot be reached"
        assert "approx_kl" in [signal["name"] for signal in choices["signals"]]


async def test_an_alert_names_its_signals(visit: Visit) -> None:
    """They come from the rule's expression, so that a rule of the user's own has its plot too."""
    async with visit() as (served, session):
        answer = await (await session.get(f"/api/runs/{RUN}/signals")).json()
        assert answer["alerts"] == {"KLSpike": ["approx_kl"]}
        (group,) = await served.prometheus.rules()
        (rule,) = group.rules
        object.__setattr__(
            rule, "query", 'fusewire:past{signal="value_loss"} < rl_grad_norm_run_min + my_approx_klx'
        )
        assert named_by_alerts([group]) == {"KLSpike": ["value_loss", "grad_norm"]}
        object.__setattr__(rule, "query", 'rl_seconds_since_step > 60 unless rl_approx_kl_run_min{steps="3"} > 1')
        assert named_by_alerts([group]) == {"KLSpike": ["step", "approx_kl"]}


async def test_the_ladder_tells_what_lies_on_the_disk(visit: Visit) -> None:
    """Newest first, quarantined and half-written ones too; a candidate says what it waits for."""
    async with visit() as (served, session):
        stable = await served.promoted(RUN, 100)
        doubtful = write_snapshot(served.runs_dir / RUN, 200, 0)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        await served.until(lambda: served.engine.view(RUN).attempt == 1 and served.engine.view(RUN).live)
        waiting = write_snapshot(served.runs_dir / RUN, 150, 1)
        (served.runs_dir / RUN / "snapshots" / "step-000000000300-a001").mkdir()
        served.verdicts[RUN] = [{"name": waiting, "answer": "inconclusive", "reasons": ["3 of 9 s passed"]}]
        rungs = (await (await session.get(f"/api/runs/{RUN}/snapshots")).json())["snapshots"]
        assert [(rung["name"], rung["state"]) for rung in rungs] == [
            (waiting, "candidate"), (doubtful, "quarantined"), (stable, "promoted"),
            ("step-000000000300-a001", "unusable"),
        ]  # fmt: skip
        assert rungs[0]["why"] == "inconclusive; 3 of 9 s passed"
        assert "KLSpike" in rungs[1]["why"]
        assert rungs[2]["links"] == ["stable", "active"]


async def test_an_unknown_run_is_not_found(visit: Visit) -> None:
    """404 with a sentence, on every path of a run."""
    async with visit() as (served, session):
        await served.engine.command(RUN, Command(verb="pause", who="ada", why="x"))
        for path in ("timeline", "snapshots", "signals", "signals/approx_kl?start=1&end=2"):
            answer = await session.get(f"/api/runs/acrobot/{path}")
            assert answer.status == 404
            assert "acrobot" in (await answer.json())["error"]
