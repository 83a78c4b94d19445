"""Situations of intake that have hurt people, through HTTP, the real journal and the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import JournalError
from fusewire_webhook.service import Service

from .site import configured, served, until

STARTS = "2026-01-01T00:00:00Z"


def alert(
    attempt: int | None = 0, *, status: str = "firing", starts: str = STARTS, **labels: str
) -> dict[str, Any]:
    given = {"alertname": "KLSpike", "run": "cartpole", "action": "trip", "class": "divergence", **labels}
    if attempt is not None:
        given["attempt"] = str(attempt)
    return {"status": status, "labels": given, "annotations": {}, "startsAt": starts}


class Sender:
    """An Alertmanager, and what it has done to the machine."""

    def __init__(self, service: Service, actuator: FakeActuator, session: aiohttp.ClientSession) -> None:
        self.service, self.actuator, self._session = service, actuator, session

    async def post(self, *alerts: dict[str, Any], **fields: Any) -> int:
        body = {"version": "4", "status": "firing", "alerts": list(alerts), **fields}
        async with self._session.post(f"{self.service.url}/alerts", json=body) as response:
            return response.status

    async def log(self) -> list[dict[str, Any]]:
        async with self._session.get(f"{self.service.url}/api/runs/cartpole/log") as response:
            entries: list[dict[str, Any]] = (await response.json())["entries"]
            return entries

    @property
    def view(self) -> RunView:
        return self.service.engine.view("cartpole")

    async def restarted(self, attempt: int) -> None:
        await until(lambda: self.actuator.alive("cartpole") == [attempt] and self.view.state == "half_open")

    async def nothing_more(self) -> None:
        """Whatever was begun by now would show."""
        await asyncio.sleep(0.2)


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[Sender]:
    actuator = FakeActuator()
    async with served(configured(tmp_path), actuator) as service, aiohttp.ClientSession() as session:
        yield Sender(service, actuator, session)


async def test_a_resolved_alert_is_never_an_action(sender: Sender) -> None:
    """It is recorded, and that is all."""
    assert await sender.post(alert(status="resolved")) == 200
    await sender.nothing_more()
    assert sender.actuator.stops == []
    assert sender.view.state == "closed"


async def test_a_group_with_one_resolved_and_one_firing(sender: Sender) -> None:
    """Only the firing one acts, and it is the one that the decision names."""
    await sender.post(alert(status="resolved", alertname="EntropyCollapse"), alert(alertname="NonFiniteValue"))
    await sender.restarted(1)
    assert sender.view.trips == {"divergence": 1, "infrastructure": 0}


async def test_the_old_alert_again_by_another_peer_after_it_was_resolved(sender: Sender) -> None:
    """A duplicate of an attempt that has tripped is evidence and no second rollback."""
    await sender.post(alert())
    await sender.restarted(1)
    await sender.post(alert(status="resolved"))
    await sender.post(alert())
    await sender.nothing_more()
    assert sender.actuator.stops == [("cartpole", 0)]
    assert sender.view.divergences == 1


async def test_prometheus_restarts_and_the_alert_has_a_new_start(sender: Sender) -> None:
    """``startsAt`` says nothing: the attempt has used its one trip."""
    await sender.post(alert())
    await sender.post(alert(starts="2026-01-01T00:05:00Z"))
    await sender.restarted(1)
    await sender.post(alert(starts="2026-01-01T00:10:00Z"))
    await sender.nothing_more()
    assert sender.actuator.stops == [("cartpole", 0)]


async def test_a_sender_that_posts_again_before_the_answer(sender: Sender) -> None:
    """Ten copies at once are all answered 200 and do the work once."""
    assert await asyncio.gather(*(sender.post(alert()) for _ in range(10))) == [200] * 10
    await sender.restarted(1)
    await sender.nothing_more()
    assert sender.actuator.stops == [("cartpole", 0)]


async def test_two_peers_deliver_after_the_journal_was_away(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 for as long as nothing can be stored; then one trip, and one retry is consumed."""

    def unstorable(self: Journal, run: str, event: Event) -> asyncio.Future[int]:
        raise JournalError("journal.db: not stored: disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "put", unstorable)
        assert await sender.post(alert()) == 503
        assert await sender.post(alert()) == 503
    assert sender.actuator.stops == []
    assert [await sender.post(alert()), await sender.post(alert())] == [200, 200]
    await sender.restarted(1)
    assert sender.view.divergences == 1


async def test_an_alert_of_an_older_attempt(sender: Sender) -> None:
    """It is recorded and touches nothing of the attempt that runs now."""
    await sender.post(alert(0))
    await sender.restarted(1)
    await sender.post(alert(0, alertname="EntropyCollapse"))
    await sender.nothing_more()
    assert sender.actuator.alive("cartpole") == [1]


async def test_a_clock_that_is_hours_off(sender: Sender) -> None:
    """No decision looks at the sender's clock: an alert from the past or the future trips like any other."""
    await sender.post(alert(0, starts="1999-01-01T00:00:00Z"))
    await sender.restarted(1)
    await sender.post(alert(1, starts="2999-01-01T00:00:00Z"))
    await sender.restarted(2)


async def test_a_truncated_group(sender: Sender) -> None:
    """What was sent acts, and the journal says that more existed."""
    await sender.post(alert(), truncatedAlerts=7)
    await sender.restarted(1)
    entries = await sender.log()
    assert [entry["incomplete"] for entry in entries if entry["kind"] == "alert_reported"] == [True]


async def test_an_alert_for_people_only(sender: Sender) -> None:
    """Without ``action="trip"`` an alert is recorded, whatever else it says."""
    await sender.post(alert(action="notify", severity="critical"))
    await sender.nothing_more()
    assert sender.actuator.stops == []


async def test_one_runs_alert_leaves_the_others_alone(tmp_path: Path) -> None:
    """A trip of one run, with a slow stop, delays neither another run's intake nor its restart."""
    stopped = asyncio.Event()

    async def take(seconds: float) -> None:
        if seconds:
            await stopped.wait()

    actuator = FakeActuator(stop_seconds=60.0, sleep=take)
    config = configured(tmp_path, "cartpole", "other")
    async with served(config, actuator) as service, aiohttp.ClientSession() as session:
        sender = Sender(service, actuator, session)
        await sender.post(alert())
        await until(lambda: actuator.stops == [("cartpole", 0)])
        actuator.stop_seconds = 0.0
        await sender.post(alert(run="other"))
        await until(lambda: actuator.alive("other") == [1])
        assert actuator.alive("cartpole") == [0]
        stopped.set()
        await sender.restarted(1)
