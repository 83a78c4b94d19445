"""Reconciliation, without servers: what counts as undelivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker.events import AlertReported, Command, Event
from fusewire_webhook.errors import JournalError, PrometheusError
from fusewire_webhook.watch.prometheus import ActiveAlert, RuntimeInfo, Sample
from fusewire_webhook.watch.reconcile import Reconciler

from .conftest import RUN, Engine
from .test_silences import Servers, equal, silence

TRIP = {"alertname": "KLSpike", "alertstate": "firing", "action": "trip", "class": "divergence", "run": RUN}


@dataclass
class Answers:
    """What fires now, and what has fired lately."""

    firing: list[dict[str, str]] = field(default_factory=list)
    over: list[dict[str, str]] = field(default_factory=list)
    active_at: str = "2026-01-01T00:00:00Z"
    start_time: str = "2026-01-01T00:00:00Z"
    reloaded: str = "2026-01-01T00:00:00Z"

    async def runtime(self) -> RuntimeInfo:
        return RuntimeInfo(start_time=self.start_time, last_config_time=self.reloaded, reload_succeeded=True)

    async def query(self, expr: str, time: float | None = None) -> list[Sample]:
        series = self.firing + (self.over if expr.startswith("last_over_time") else [])
        return [Sample(labels={"__name__": "ALERTS", **labels}, value=1.0, time=0.0) for labels in series]

    async def alerts(self) -> list[ActiveAlert]:
        return [
            ActiveAlert(
                labels={name: value for name, value in labels.items() if name != "alertstate"},
                annotations={"summary": "KL is high"},
                state="firing",
                active_at=self.active_at,
            )
            for labels in self.firing
        ]


@dataclass
class World:
    engine: Engine
    answers: Answers
    reconciler: Reconciler

    def told(self) -> list[tuple[str, int | None, str]]:
        return [(event.status, event.attempt, event.summary) for event in self.engine.of(AlertReported)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    engine, answers = Engine(tmp_path, RUN), Answers()
    engine.change(RUN, attempt=2)
    stand_in: Any = answers
    return World(engine, answers, Reconciler(engine, prometheus=stand_in, confirm=0.0))


async def test_firing_alert_of_the_present_attempt_is_reported_once(world: World) -> None:
    """What fires for the live attempt and was not delivered is journaled with its annotations, once."""
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    assert [await world.reconciler.look(), await world.reconciler.look()] == [1, 0]
    assert world.told() == [("firing", 2, "KL is high")]


async def test_what_is_over_is_recorded_as_resolved(world: World) -> None:
    """An alert that fired during an outage and is over is evidence only."""
    world.answers.over = [{**TRIP, "attempt": "2"}]
    assert await world.reconciler.look() == 1
    assert world.told() == [("resolved", 2, "")]


@pytest.mark.parametrize("delivered", [True, False])
async def test_an_alert_that_was_over_and_fires_again_is_reported(world: World, delivered: bool) -> None:
    """That it is over was told once, by whomever; that it fires is another thing."""
    if delivered:
        over = AlertReported(alertname="KLSpike", status="resolved", attempt=2, action="trip")
        world.reconciler.stored(RUN, over)
    else:
        world.answers.over = [{**TRIP, "attempt": "2"}]
        assert [await world.reconciler.look(), await world.reconciler.look()] == [1, 0]
        world.answers.over = []
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    assert [await world.reconciler.look(), await world.reconciler.look()] == [1, 0]
    assert world.told()[-1] == ("firing", 2, "KL is high")


async def test_of_an_alert_with_several_series_the_firing_one_counts(world: World) -> None:
    """One signal's alert is over, the other's fires: the alert fires."""
    world.answers.firing = [{**TRIP, "attempt": "2", "signal": "value_loss"}]
    world.answers.over = [{**TRIP, "attempt": "2", "signal": "policy_loss"}]
    assert await world.reconciler.look() == 1
    assert world.told() == [("firing", 2, "KL is high")]


async def test_alert_without_attempt_is_told_without_guessing(world: World) -> None:
    """A lost attempt label stays lost: the breaker decides what it means."""
    world.answers.firing = [TRIP]
    assert [await world.reconciler.look(), await world.reconciler.look()] == [1, 0]
    assert world.told() == [("firing", None, "KL is high")]


@pytest.mark.parametrize("labels", [{"attempt": "1"}, {"attempt": "2", "run": "stranger"}])
async def test_older_attempts_and_strangers_are_left_alone(world: World, labels: dict[str, str]) -> None:
    """An alert that keeps firing for an attempt that is gone, or for a run that is not guarded, is not news."""
    world.answers.firing = [{**TRIP, **labels}]
    assert await world.reconciler.look() == 0
    assert world.engine.events == []


@pytest.mark.parametrize("changes", [{"tripped": True}, {"live": False}])
async def test_attempt_that_has_tripped_or_ended_is_left_alone(world: World, changes: dict[str, Any]) -> None:
    """An attempt trips at most once, and a dead one not at all."""
    world.engine.change(RUN, **changes)
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    assert await world.reconciler.look() == 0


async def test_delivered_alert_counts_again_after_a_resume(world: World) -> None:
    """What Alertmanager delivered during a pause was not acted on: if it still fires afterwards it is reported."""
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    delivered = AlertReported(alertname="KLSpike", status="firing", attempt=2, action="trip")
    world.reconciler.stored(RUN, delivered)
    assert await world.reconciler.look() == 0
    world.reconciler.stored(RUN, Command(verb="resume", who="ada", why="done"))
    assert await world.reconciler.look() == 1


@pytest.mark.parametrize("delivered", [True, False])
async def test_what_was_delivered_and_held_is_not_called_undelivered(
    world: World, delivered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says what is so: held by a pause, or not delivered."""
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    if delivered:
        world.reconciler.stored(RUN, AlertReported(alertname="KLSpike", status="firing", attempt=2, action="trip"))
    world.reconciler.stored(RUN, Command(verb="resume", who="ada", why="done"))
    assert await world.reconciler.look() == 1
    assert ("had not been delivered" in caplog.text) != delivered
    assert ("held by a pause" in caplog.text) == delivered


def at(minute: int) -> float:
    """Unix seconds of a minute of 2026."""
    return 1_767_225_600.0 + 60.0 * minute


async def dismissed(world: World, *, began: float | None = at(1)) -> None:
    """An alert that began at minute 1 was delivered during a pause, and dismissed at minute 5."""
    world.answers.firing, world.answers.active_at = [{**TRIP, "attempt": "2"}], "2026-01-01T00:01:00Z"
    world.reconciler.stored(RUN, AlertReported(alertname="KLSpike", status="firing", attempt=2, action="trip"))
    world.reconciler.stored(RUN, Command(verb="resume", who="ada", why="harmless", dismiss=True))
    world.engine.change(RUN, dismissed=({"alert": "KLSpike", "until": at(5), "began": began},))


async def test_another_occurrence_of_a_dismissed_alert_is_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The dismissed one never is, whether it was delivered or not; one that began after the dismissal is, once."""
    await dismissed(world)
    assert [await world.reconciler.look(), await world.reconciler.look()] == [0, 0]
    world.answers.firing = []
    assert await world.reconciler.look() == 0
    world.answers.firing, world.answers.active_at = [{**TRIP, "attempt": "2"}], "2026-01-01T00:09:00Z"
    assert [await world.reconciler.look(), await world.reconciler.look()] == [1, 0]
    (event,) = world.engine.of(AlertReported)
    assert (event.status, event.began) == ("firing", at(9))
    assert "had not been delivered" in caplog.text
    world.answers.active_at = "2026-01-01T00:20:00Z"
    assert await world.reconciler.look() == 1, "yet another one"


async def test_another_occurrence_that_was_delivered_is_not_reported_again(world: World) -> None:
    """Alertmanager tells when it fired, which is later than when its condition came true."""
    await dismissed(world)
    starts_at = "2026-01-01T00:09:30Z"
    world.reconciler.stored(
        RUN, AlertReported(alertname="KLSpike", status="firing", attempt=2, action="trip", starts_at=starts_at)
    )
    world.answers.active_at = "2026-01-01T00:09:00Z"
    assert await world.reconciler.look() == 0


@pytest.mark.parametrize(
    ("changes", "began"),
    [
        ({"start_time": "2026-01-01T00:08:00Z"}, at(1)),
        ({"reloaded": "2026-01-01T00:08:00Z"}, at(1)),
        ({"start_time": "2026-01-01T00:02:00Z"}, at(1)),
        ({}, None),
    ],
)
async def test_a_dismissed_alert_that_prometheus_may_have_begun_again_is_not_reported(
    world: World, changes: dict[str, str], began: float | None
) -> None:
    """After its restart or reload what goes on begins again: nothing tells it from another occurrence."""
    await dismissed(world, began=began)
    world.answers.active_at = "2026-01-01T00:09:00Z"
    for name, value in changes.items():
        setattr(world.answers, name, value)
    assert await world.reconciler.look() == 0


async def test_alert_that_could_not_be_stored_is_tried_again(world: World) -> None:
    """A full disk costs nothing but time."""
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    submit = world.engine.submit

    async def refuse(run: str, event: Event) -> None:
        raise JournalError("disk is full")

    world.engine.submit = refuse  # type: ignore[method-assign]
    await world.reconciler.look()
    world.engine.submit = submit  # type: ignore[method-assign]
    await world.reconciler.look()
    assert world.told() == [("firing", 2, "KL is high")]


async def test_what_is_silenced_is_paused_before_it_is_reported(world: World) -> None:
    """Alertmanager does not deliver what it mutes: the pause comes first, so that the report stops nothing."""
    stand_in: Any = world.answers
    firing = {**TRIP, "attempt": "2", "signal": "approx_kl"}
    silences = Servers(found=[silence(equal("signal", "approx_kl"))], active=[firing]).watch(world.engine)
    reconciler = Reconciler(world.engine, prometheus=stand_in, confirm=0.0, silences=silences.look)
    world.answers.firing = [firing]
    await reconciler.look()
    assert [event.kind for _, event in world.engine.events] == ["command", "alert_reported"]


async def test_without_alertmanager_what_fires_is_acted_on(world: World) -> None:
    """Its outage is what reconciliation is for: nobody can say then what is silenced."""

    async def away() -> None:
        raise PrometheusError("Alertmanager cannot be reached")

    stand_in: Any = world.answers
    reconciler = Reconciler(world.engine, prometheus=stand_in, confirm=0.0, silences=away)
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    assert await reconciler.look() == 1


async def test_a_pause_that_could_not_be_stored_holds_the_report(world: World) -> None:
    """A silenced run is not stopped because the disk was full for a moment."""

    async def refuse() -> None:
        raise JournalError("disk is full")

    stand_in: Any = world.answers
    reconciler = Reconciler(world.engine, prometheus=stand_in, confirm=0.0, silences=refuse)
    world.answers.firing = [{**TRIP, "attempt": "2"}]
    with pytest.raises(JournalError):
        await reconciler.look()
    assert world.engine.events == []
