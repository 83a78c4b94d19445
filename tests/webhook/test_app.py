"""The HTTP surface, on a real listener."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from blockbuster import BlockBuster

from fusewire_webhook.breaker.events import Event
from fusewire_webhook.settings.redact import Secret
from fusewire_webhook.watch.deadman import WatchStatus
from fusewire_webhook.web.app import build_app

from .app_doubles import Beats, Engine, build


@pytest.fixture(autouse=True)
def blocking_calls() -> Iterator[None]:
    """A blocking call of the webhook on the event loop is an error."""
    detector = BlockBuster("fusewire_webhook")
    detector.activate()
    yield
    detector.deactivate()


ALERT, COMMAND = "alert-token-0123456789", "command-token-0123456789"
Client = TestClient[web.Request, web.Application]
Open = Callable[..., Awaitable[Client]]


@pytest.fixture
def engine() -> Engine:
    return Engine("cartpole")


@pytest.fixture
def beats() -> Beats:
    return Beats()


@pytest.fixture
async def serve(engine: Engine, beats: Beats) -> AsyncIterator[Open]:
    """Start an application; keyword arguments change its dependencies."""
    clients: list[Client] = []

    async def start(**changes: Any) -> Client:
        client = TestClient(TestServer(build_app(build(engine, beats, **changes))))
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


def alert(name: str = "KlSpike", run: str = "cartpole", **labels: str) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": name, "run": run, "attempt": "0", "action": "trip", **labels},
        "annotations": {},
    }


def body(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "alerts": list(alerts)}


async def samples(client: Client) -> dict[str, float]:
    lines = (await (await client.get("/metrics")).text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_an_alert_is_stored_before_the_answer(serve: Open, engine: Engine) -> None:
    """200 says that the event is in the engine's hands."""
    client = await serve()
    response = await client.post("/alerts", json=body(alert()))
    assert response.status == 200
    assert [(run, event.payload()["alertname"]) for run, event in engine.events] == [("cartpole", "KlSpike")]
    assert (await samples(client))['fusewire_alerts_received_total{outcome="trip"}'] == 1


async def test_what_was_not_stored_is_asked_for_again(serve: Open, engine: Engine) -> None:
    """503, which Alertmanager retries, where the journal could not take it."""
    client = await serve()
    engine.full = True
    response = await client.post("/alerts", json=body(alert()))
    assert response.status == 503
    assert (await samples(client))['fusewire_intake_errors_total{reason="not_stored"}'] == 1
    engine.full = False
    assert (await client.post("/alerts", json=body(alert()))).status == 200


async def test_a_fault_in_storing_one_alert_is_a_counted_503(
    serve: Open, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happened to it, Alertmanager must send it again, and its neighbours are stored."""
    client = await serve()
    submit = engine.submit

    async def stumble(run: str, event: Event) -> int:
        if event.payload()["alertname"] == "Odd":
            raise MemoryError
        return await submit(run, event)

    monkeypatch.setattr(engine, "submit", stumble)
    assert (await client.post("/alerts", json=body(alert("Odd"), alert()))).status == 503
    assert (await samples(client))['fusewire_intake_errors_total{reason="not_stored"}'] == 1
    assert len(engine.events) == 1


async def test_a_journal_that_cannot_store_makes_it_unready(serve: Open, engine: Engine) -> None:
    """A full disk shows in ``/readyz`` until something was stored again."""
    client = await serve()
    engine.full = True
    await client.post("/alerts", json=body(alert()))
    response = await client.get("/readyz")
    assert response.status == 503
    assert (await response.json())["reasons"] == ["journal: journal.db: no space left on device"]
    engine.full = False
    await client.post("/alerts", json=body(alert()))
    assert (await client.get("/readyz")).status == 200


async def test_a_journal_in_trouble_shows_before_an_alert_comes(serve: Open) -> None:
    """What else is journaled fails first: nobody has to wait for a trip to learn that it cannot be stored."""
    client = await serve(journal_trouble=lambda: "journal.db: not stored: disk full")
    response = await client.get("/readyz")
    assert response.status == 503
    assert (await response.json())["reasons"] == ["journal: journal.db: not stored: disk full"]


async def test_an_alert_of_an_unknown_run_is_announced(serve: Open, engine: Engine) -> None:
    """It is answered 200 (a repetition would not help), counted, and shown in the API; nothing is guessed."""
    client = await serve()
    for _ in range(2):
        assert (await client.post("/alerts", json=body(alert(run="acrobot"), alert()))).status == 200
    assert len(engine.events) == 2
    overview = await (await client.get("/api/runs")).json()
    assert overview["unknown_alerts"] == [{"run": "acrobot", "alertname": "KlSpike", "count": 2, "last_at": 100.0}]
    assert (await samples(client))['fusewire_alerts_received_total{outcome="unknown_run"}'] == 2


async def test_an_alert_without_a_run_is_not_every_run(serve: Open, engine: Engine) -> None:
    """A trip alert whose labels lost ``run`` touches nothing."""
    client = await serve()
    nameless = alert()
    del nameless["labels"]["run"]
    assert (await client.post("/alerts", json=body(nameless))).status == 200
    assert engine.events == []


async def test_strangers_are_bounded(serve: Open) -> None:
    """An unlimited number of unknown names does not grow the memory: the newest hundred kinds are kept."""
    client = await serve()
    await client.post("/alerts", json=body(*(alert(run=f"r{n}") for n in range(150))))
    strangers = (await (await client.get("/api/runs")).json())["unknown_alerts"]
    assert [stranger["run"] for stranger in strangers] == [f"r{n}" for n in reversed(range(50, 150))]


async def test_a_watchdog_beats_and_is_not_journaled(serve: Open, engine: Engine, beats: Beats) -> None:
    """The always-firing alert feeds the dead man's switch and nothing else."""
    client = await serve()
    watchdog = {"status": "firing", "labels": {"alertname": "Watchdog"}, "annotations": {"value": "17.5"}}
    assert (await client.post("/alerts", json=body(watchdog))).status == 200
    assert beats.values == [17.5]
    assert engine.events == []


async def test_a_body_beyond_aiohttps_default_is_taken(serve: Open, engine: Engine) -> None:
    """Thousands of alerts (here 3 MiB) in one body are taken, also compressed."""
    client = await serve()
    data = json.dumps(body(*(alert(padding="x" * 1000) for _ in range(2900)))).encode()
    assert len(data) > 3 * 1024 * 1024
    headers = {"Content-Type": "application/json"}
    assert (await client.post("/alerts", data=io.BytesIO(data), headers=headers)).status == 200
    headers["Content-Encoding"] = "gzip"
    assert (await client.post("/alerts", data=gzip.compress(data), headers=headers)).status == 200
    assert len(engine.events) == 2 * 2900


async def test_a_body_of_more_than_16_mib_is_refused(serve: Open, engine: Engine) -> None:
    """413, counted, and nothing happens."""
    client = await serve()
    response = await client.post("/alerts", data=io.BytesIO(b" " * (16 * 1024 * 1024 + 1)))
    assert response.status == 413
    assert (await samples(client))['fusewire_intake_errors_total{reason="too_large"}'] == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"?", "not_json"), (b"[]", "not_object"), (b"{}", "no_alerts"), (b'{"alerts": [1]}', "bad_alert")],
)
async def test_garbage_is_counted_by_its_reason(serve: Open, data: bytes, reason: str) -> None:
    """4xx, so that Alertmanager drops it, and a counter that says why."""
    client = await serve()
    assert (await client.post("/alerts", data=data)).status == 400
    assert (await samples(client))[f'fusewire_intake_errors_total{{reason="{reason}"}}'] == 1


async def test_a_body_that_is_not_packed_as_it_says_is_garbage(serve: Open) -> None:
    """4xx and counted: sent again it would be no better."""
    client = await serve()
    assert (await client.post("/alerts", data=b"no gzip", headers={"Content-Encoding": "gzip"})).status == 400
    assert (await samples(client))['fusewire_intake_errors_total{reason="not_readable"}'] == 1


async def test_a_bad_alert_is_refused_after_its_neighbours_are_stored(serve: Open, engine: Engine) -> None:
    """400 says that something was unreadable; what was readable is durable all the same."""
    client = await serve()
    assert (await client.post("/alerts", json=body({"status": "firing"}, alert()))).status == 400
    assert len(engine.events) == 1


@pytest.mark.parametrize(("path", "token", "other"), [("/sd", ALERT, COMMAND), ("/api/runs", COMMAND, ALERT)])
async def test_each_token_opens_its_own_paths(serve: Open, path: str, token: str, other: str) -> None:
    """401 without a token, 403 with a wrong one or the other one; bearer and basic authentication both work."""
    client = await serve(alert_token=Secret(ALERT), command_token=Secret(COMMAND))
    bearer = {"Authorization": f"Bearer {token}"}
    basic = {"Authorization": "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()}
    assert (await client.get(path)).status == 401
    assert (await client.get(path, headers={"Authorization": "Basic ???"})).status == 401
    assert (await client.get(path, headers={"Authorization": f"Bearer {other}"})).status == 403
    assert (await client.get(path, headers={"Authorization": "Bearer ü"})).status == 403
    assert (await client.get(path, headers=bearer)).status == 200
    assert (await client.get(path, headers=basic)).status == 200
    counted = await samples(client)
    assert counted['fusewire_intake_errors_total{reason="unauthorized"}'] == 2
    assert counted['fusewire_intake_errors_total{reason="forbidden"}'] == 2


async def test_requests_for_targets_are_told(serve: Open) -> None:
    """Who was refused at /sd scrapes nothing: each request is told with what became of it, others' are not."""
    told: list[tuple[str, str]] = []
    client = await serve(
        alert_token=Secret(ALERT), discovery=lambda outcome, sender: told.append((outcome, sender))
    )
    await client.post("/alerts", json=body(alert()))
    for headers in ({}, {"Authorization": f"Bearer {COMMAND}"}, {"Authorization": f"Bearer {ALERT}"}):
        await client.get("/sd", headers=headers)
    assert told == [(outcome, "127.0.0.1") for outcome in ("unauthorized", "forbidden", "answered")]


async def test_an_unauthenticated_alert_does_nothing(serve: Open, engine: Engine) -> None:
    """401, counted, no event."""
    client = await serve(alert_token=Secret(ALERT))
    assert (await client.post("/alerts", json=body(alert()))).status == 401
    assert engine.events == []


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {"Host": "rebound.example:9095"}]
)
async def test_a_web_page_cannot_command_an_open_webhook(
    serve: Open, engine: Engine, headers: dict[str, str]
) -> None:
    """On loopback without tokens, a browser that visits a hostile page is no way in."""
    client = await serve()
    command = {"who": "mallory", "why": "fun"}
    response = await client.post("/api/runs/cartpole/trip", json=command, headers=headers)
    assert response.status == 403
    assert (await client.post("/alerts", json=body(alert()), headers=headers)).status == 403
    assert engine.events == []


async def test_open_paths_need_no_token(serve: Open) -> None:
    """Probes and scrapes come without credentials."""
    client = await serve(alert_token=Secret(ALERT), command_token=Secret(COMMAND))
    assert [(await client.get(path)).status for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]


async def test_ready_is_not_alive(serve: Open, beats: Beats) -> None:
    """A degraded watch makes it unready with the reasons, and leaves it alive."""
    beats.state = WatchStatus(problems={"watchdog": "no beat for 50 s"})
    client = await serve()
    response = await client.get("/readyz")
    assert response.status == 503
    assert (await response.json())["reasons"] == ["watchdog: no beat for 50 s"]
    assert (await client.get("/healthz")).status == 200
    assert (await samples(client))['fusewire_monitoring_degraded{part="watchdog"}'] == 1


async def test_a_failed_reload_leaves_it_ready_and_is_told(serve: Open, beats: Beats) -> None:
    """A server that goes on with what it had before still watches: 200, with the remark beside it."""
    beats.state = WatchStatus(remarks={"prometheus": "the last reload failed"})
    client = await serve()
    response = await client.get("/readyz")
    answer = {"ready": True, "reasons": [], "remarks": ["prometheus: the last reload failed"]}
    assert (response.status, await response.json()) == (200, answer)
    overview = await (await client.get("/api/runs")).json()
    assert overview["monitoring"]["remarks"] == {"prometheus": "the last reload failed"}


async def test_a_background_task_that_ends_makes_it_unready(serve: Open) -> None:
    """A promoter or reconciler that died is visible, not silent."""

    async def dies() -> None:
        raise RuntimeError("lost its way")

    client = await serve(background={"promoter": dies})
    await asyncio.sleep(0)
    response = await client.get("/readyz")
    assert response.status == 503
    assert (await response.json())["reasons"] == ["promoter ended: RuntimeError: lost its way"]


async def test_discovery_gives_the_identity(serve: Open) -> None:
    """``/sd`` names run, attempt and algorithm, and the parameters of the scrape."""
    client = await serve(scrape_interval_seconds=0.25)
    assert await (await client.get("/sd")).json() == [
        {
            "targets": ["127.0.0.1:9101"],
            "labels": {
                "run": "cartpole",
                "attempt": "3",
                "algorithm": "ppo",
                "__scrape_interval__": "250ms",
                "__scrape_timeout__": "250ms",
                "__param_window": "10",
                "__param_attempt": "3",
            },
        }
    ]


async def test_a_command_is_journaled_with_who_and_why(serve: Open, engine: Engine) -> None:
    """The answer is the run's picture after the command."""
    client = await serve()
    response = await client.post(
        "/api/runs/cartpole/rollback", json={"who": " ada ", "why": "bad", "snapshot": "s"}
    )
    assert (await response.json())["run"] == "cartpole"
    ((run, event),) = engine.events
    assert run == "cartpole"
    assert event.payload() == {
        "verb": "rollback", "who": "ada", "why": "bad", "snapshot": "s", "scratch": False, "source": "api",
        "silence": "", "dismiss": False,
    }  # fmt: skip


async def test_a_resume_may_dismiss_what_the_pause_held(serve: Open, engine: Engine) -> None:
    """``"dismiss": true`` reaches the engine; with another verb it is refused."""
    client = await serve()
    body = {"who": "ada", "why": "a known spike", "dismiss": True}
    await client.post("/api/runs/cartpole/resume", json=body)
    ((_, event),) = engine.events
    assert event.payload()["dismiss"] is True
    assert (await client.post("/api/runs/cartpole/pause", json=body)).status == 400
    assert (await client.post("/api/runs/cartpole/resume", json={**body, "dismiss": "yes"})).status == 400


@pytest.mark.parametrize(
    "sent",
    ["[" * 100_000, '{"who":' * 100_000, '{"who": "ada", "why": "bad", "snapshot": "s", "scratch": true}'],
)
async def test_a_command_that_cannot_be_understood_is_refused(serve: Open, engine: Engine, sent: str) -> None:
    """400 and nothing happens, also where it nests too deep or names a snapshot and none."""
    client = await serve()
    headers = {"Content-Type": "application/json"}
    assert (await client.post("/api/runs/cartpole/rollback", data=sent, headers=headers)).status == 400
    assert engine.events == []


async def test_a_command_is_confirmed_only_by_its_field(serve: Open, engine: Engine) -> None:
    """Who does not send ``confirm`` has not confirmed anything."""
    client = await serve()
    for more in ({}, {"confirm": False}, {"confirm": True}):
        body = {"who": "ada", "why": "bad", "scratch": True, **more}
        assert (await client.post("/api/runs/cartpole/rollback", json=body)).status == 200
    assert engine.confirmed == [False, False, True]


@pytest.mark.parametrize(
    ("path", "command", "status"),
    [
        ("/api/runs/cartpole/rollback", {"who": "ada", "why": "bad", "scratch": True, "confirm": "yes"}, 400),
        ("/api/runs/acrobot/trip", {"who": "ada", "why": "bad"}, 404),
        ("/api/runs/cartpole/explode", {"who": "ada", "why": "bad"}, 404),
        ("/api/runs/cartpole/shutdown", {"who": "ada", "why": "bad"}, 404),
        ("/api/runs/cartpole/reset", {"who": "ada", "why": "bad"}, 409),
        ("/api/runs/cartpole/trip", {"who": "ada"}, 400),
        ("/api/runs/cartpole/trip", {"who": "", "why": "bad"}, 400),
        ("/api/runs/cartpole/trip", {"who": "ada", "why": "bad", "snapshot": 3}, 400),
        ("/api/runs/cartpole/trip", {"who": "ada", "why": "bad", "force": True}, 400),
        ("/api/runs/cartpole/trip", {"who": "ada", "why": "bad", "source": "silence"}, 400),
        ("/api/runs/cartpole/trip", ["ada"], 400),
    ],
)
async def test_a_command_that_cannot_be_is_explained(serve: Open, path: str, command: Any, status: int) -> None:
    """Every refusal is JSON with one sentence."""
    client = await serve()
    response = await client.post(path, json=command)
    assert response.status == status
    assert (await response.json())["error"]


async def test_a_command_must_be_declared_as_json(serve: Open, engine: Engine) -> None:
    """A form of a web page cannot be a command."""
    client = await serve()
    response = await client.post("/api/runs/cartpole/trip", data='{"who": "a", "why": "b"}')
    assert response.status == 415
    assert engine.events == []


async def test_a_run_and_its_log(serve: Open, engine: Engine) -> None:
    """One run's picture; its log page by page; an unknown run is 404 and not an empty log."""
    client = await serve()
    for _ in range(3):
        await client.post("/alerts", json=body(alert()))
    assert (await (await client.get("/api/runs/cartpole")).json())["state"] == "closed"
    page = await (await client.get("/api/runs/cartpole/log?after=1&limit=1")).json()
    assert [entry["seq"] for entry in page["entries"]] == [2]
    assert (await client.get("/api/runs/acrobot/log")).status == 404
    assert (await client.get("/api/runs/cartpole/log?after=x")).status == 400


async def test_not_a_number_stays_readable(serve: Open, engine: Engine) -> None:
    """Browsers cannot parse NaN: it is null in the API."""
    client = await serve()
    engine.change("cartpole", lr_scale=float("nan"))
    text = await (await client.get("/api/runs/cartpole")).text()
    assert json.loads(text, parse_constant=pytest.fail)["lr_scale"] is None


async def test_live_updates(serve: Open, engine: Engine) -> None:
    """The stream begins with the overview and brings every change; nothing is left of it when the client goes."""
    client = await serve()
    async with client.get("/api/events") as stream:
        assert await stream.content.readline() == b"event: overview\n"
        await stream.content.readuntil(b"\n\n")
        engine.change("cartpole", attempt=4)
        assert await stream.content.readline() == b"event: run\n"
        assert json.loads((await stream.content.readline()).removeprefix(b"data: "))["view"]["attempt"] == 4
    async with asyncio.timeout(60):
        while engine.followers:
            engine.change("cartpole", attempt=5)  # writing to it shows that the client has gone
            await asyncio.sleep(0.01)


async def test_a_shutdown_ends_the_streams(serve: Open, engine: Engine) -> None:
    """An open console does not hold the webhook up."""
    client = await serve()
    async with client.get("/api/events") as stream:
        await stream.content.readuntil(b"\n\n")
        async with asyncio.timeout(30):  # aiohttp would wait for the client for a minute
            await client.server.close()
    assert not engine.followers
