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

    def watch(self) -> DiscoveryWatch:
        return DiscoveryWatch(expected=lambda: self.targets, clock=lambda: self.seconds)


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
