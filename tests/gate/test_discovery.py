"""Whether Prometheus asks for its targets."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from fusewire_webhook.watch.discovery import REFUSED_SECONDS, SILENT_SECONDS, DiscoveryWatch


@dataclass
class World:
    """The clock, and whether there is anything to scrape."""

    seconds: float = 1000.0
    targets: bool = True

    def watch(self, *, token: bool = True) -> DiscoveryWatch:
        return DiscoveryWatch(expected=lambda: self.targets, token=token, clock=lambda: self.seconds)


def test_nobody_asks() -> None:
    """It is a fault once there has been something to scrape for longer than Prometheus' default interval."""
    world = World(targets=False)
    watch = world.watch()
    for _ in range(3):
        world.seconds += SILENT_SECONDS
        assert watch.problem() == ""
    world.targets = True
    assert watch.problem() == ""
    world.seconds += 61
    assert watch.problem() == ""
    world.seconds += 30
    assert watch.problem().startswith("nobody has asked /sd for 91 s")
    watch.asked("answered")
    assert watch.problem() == ""


def test_who_asks_once_a_minute_asks() -> None:
    """A slow ``refresh_interval`` is no outage."""
    world = World()
    watch = world.watch()
    for _ in range(100):
        watch.asked("answered")
        for _ in range(6):
            assert watch.problem() == ""
            world.seconds += 10


def test_refusals_are_a_fault_sooner_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line when they begin and one when they end, however many there were."""
    world = World()
    watch = world.watch()
    watch.problem()
    for _ in range(int(REFUSED_SECONDS) + 1):
        assert watch.problem() == ""
        watch.asked("unauthorized", "10.0.0.7")
        world.seconds += 1
    assert "type: Bearer" in watch.problem()
    watch.asked("answered")
    assert watch.problem() == ""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.partition(",")[0] for line in lines] == ["/sd is refused to 10.0.0.7", "/sd is answered again"]


def test_a_stranger_beside_a_prometheus_that_is_answered() -> None:
    """Somebody else's refusals say nothing about the Prometheus that gets its answers."""
    world = World()
    watch = world.watch()
    for _ in range(200):
        watch.asked("answered")
        watch.asked("forbidden", "10.0.0.8")
        world.seconds += 1
        assert watch.problem() == ""


@pytest.mark.parametrize("begun", [0, 10])
def test_a_stranger_beside_a_prometheus_that_asks_once_a_minute(begun: int) -> None:
    """One refusal is no fault while Prometheus gets its answers, also when a run begins between two of them."""
    world = World(targets=begun == 0)
    watch = world.watch()
    for second in range(300):
        if second % 60 == 0:
            watch.asked("answered")
        if second == begun + 2:
            watch.asked("unauthorized", "10.0.0.8")
        world.targets = second >= begun
        assert watch.problem() == ""
        world.seconds += 1


def test_a_token_that_was_changed() -> None:
    """Refusals after answers are a fault once Prometheus' default interval has passed without an answer."""
    world = World()
    watch = world.watch()
    assert watch.problem() == ""
    watch.asked("answered")
    for _ in range(int(SILENT_SECONDS) + 1):
        assert watch.problem() == ""
        watch.asked("forbidden", "10.0.0.7")
        world.seconds += 1
    assert "Prometheus is refused at /sd" in watch.problem()


@pytest.mark.parametrize(("token", "remedy"), [(True, "auth.alert_token_file"), (False, "http://127.0.0.1:")])
def test_the_remedy_of_a_refusal_exists(token: bool, remedy: str) -> None:
    """Without a token a foreign name is what is refused, and there is no token file to look into."""
    world = World()
    watch = world.watch(token=token)
    watch.problem()
    world.seconds += REFUSED_SECONDS + 1
    watch.asked("forbidden", "10.0.0.7")
    assert remedy in watch.problem()
    assert ("is not the one in" in watch.problem()) is token
