"""The dead man's switch, without servers: beats and direct questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.deadman import DeadMansSwitch, WatchStatus
from fusewire_webhook.watch.prometheus import RuleGroup, RuntimeInfo

from .test_triprules import NOW, group, rule

WATCHDOG = rule("Watchdog", labels={"action": "watchdog"}, query="vector(time())", for_seconds=0.0)


@dataclass
class Server:
    """Stands for one of the servers."""

    up: bool = True
    started: str = "1970-01-01T00:00:00Z"
    reloaded: bool = True
    groups: list[RuleGroup] = field(default_factory=lambda: [group(rule(), WATCHDOG)])

    async def ready(self) -> None:
        if not self.up:
            raise PrometheusError("it is away")

    async def reload_succeeded(self) -> bool:
        await self.ready()
        return self.reloaded

    async def now(self) -> float:
        return NOW

    async def runtime(self) -> RuntimeInfo:
        return RuntimeInfo(start_time=self.started, last_config_time=self.started, reload_succeeded=self.reloaded)

    async def rules(self) -> list[RuleGroup]:
        return self.groups


@dataclass
class World:
    prometheus: Server = field(default_factory=Server)
    alertmanager: Server = field(default_factory=Server)
    seconds: float = 1000.0
    told: list[WatchStatus] = field(default_factory=list)

    def switch(self) -> DeadMansSwitch:
        async def tell(status: WatchStatus) -> None:
            self.told.append(status)

        prometheus: Any = self.prometheus
        alertmanager: Any = self.alertmanager
        return DeadMansSwitch(
            prometheus=prometheus, alertmanager=alertmanager, clock=lambda: self.seconds, on_change=tell
        )


def test_only_an_advancing_value_beats() -> None:
    """Alertmanager repeats a dead Prometheus' alert for minutes; that is no sign of life."""
    world = World()
    switch = world.switch()
    assert [switch.beat(value) for value in (10.0, 20.0, 20.0, 20.0, float("nan"))] == [
        True,
        True,
        False,
        False,
        False,
    ]
    world.seconds += 45.0
    assert not switch.status().degraded
    world.seconds += 1.0
    assert not switch.beat(20.0)
    assert switch.status().reasons == ("watchdog: no advancing beat for 46 s",)
    assert switch.beat(66.0)
    assert not switch.status().degraded


def test_a_watchdog_that_never_came_degrades_after_the_same_time() -> None:
    """No beat at all since the start: degraded after 45 s, not before."""
    world = World()
    switch = world.switch()
    assert (switch.status().degraded, switch.status().beat_age) == (False, None)
    world.seconds += 45.5
    assert switch.reasons() == ("watchdog: no advancing beat for 46 s",)


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_jumps_of_prometheus_clock_do_not_matter(jump: float) -> None:
    """A clock that was set forward or back costs at most one beat."""
    world = World()
    switch = world.switch()
    switch.beat(10_000.0)
    for beat in range(1, 7):
        world.seconds += 10.0
        switch.beat(10_000.0 + jump + 10.0 * beat)
        assert not switch.status().degraded
    world.seconds += 10.0
    assert switch.beat(10_070.0 + jump)


def test_two_peers_that_repeat_old_values_do_not_beat() -> None:
    """Two Alertmanagers that repeat different values of a dead Prometheus keep nobody alive."""
    switch = World().switch()
    switch.beat(10.0)
    switch.beat(20.0)
    assert [switch.beat(value) for value in (10.0, 20.0, 10.0, 20.0, 10.0)] == [False] * 5


@pytest.mark.parametrize("part", ["prometheus", "alertmanager"])
async def test_one_missed_answer_is_no_alarm_two_are(part: str) -> None:
    """A restart within two seconds costs one answer; a server that stays away is announced, and its return too."""
    world = World()
    switch = world.switch()
    server: Server = getattr(world, part)
    server.up = False
    await switch.ask()
    await switch.announce()
    assert world.told == []
    await switch.ask()
    await switch.announce()
    await switch.announce()
    assert [list(status.problems) for status in world.told] == [[part]]
    server.up = True
    await switch.ask()
    await switch.announce()
    assert [status.degraded for status in world.told] == [True, False]


@pytest.mark.parametrize("part", ["prometheus", "alertmanager"])
async def test_a_failed_reload_is_told_and_blinds_nobody(part: str) -> None:
    """At once and once, also while the server is away; promotions go on, and the next good reload is told too."""
    world = World()
    switch = world.switch()
    server: Server = getattr(world, part)
    server.reloaded = False
    for _ in range(2):
        await switch.ask()
        await switch.announce()
    assert [(status.degraded, *status.remarks) for status in world.told] == [(False, part)]
    assert switch.reasons() == ()
    server.up = False
    for _ in range(2):
        await switch.ask()
        await switch.announce()
    server.up = server.reloaded = True
    await switch.ask()
    await switch.announce()
    assert [(status.degraded, *status.remarks) for status in world.told[1:]] == [(True, part), (False,)]


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ([group(rule())], "the rule Watchdog is not loaded"),
        ([group(WATCHDOG)], "no rule with action=trip is loaded"),
        ([group(rule(health="err", last_error="bad join"), WATCHDOG)], "rule KLSpike of group g is err: bad join"),
    ],
)
async def test_rules_that_do_not_watch_are_a_fault(groups: list[RuleGroup], problem: str) -> None:
    """Rules that are not loaded or fail degrade the watch."""
    world = World()
    world.prometheus.groups = groups
    switch = world.switch()
    await switch.ask()
    await switch.ask()
    assert problem in switch.status().problems["rules"]


@pytest.mark.parametrize(("seconds_ago", "degraded"), [(30, False), (100, True)])
async def test_rules_get_two_intervals_after_a_start_of_prometheus(seconds_ago: int, degraded: bool) -> None:
    """Rules that were not evaluated yet are no fault just after a restart or reload, and one later."""
    world = World()
    started = datetime.fromtimestamp(NOW - seconds_ago, UTC)
    world.prometheus.started = started.isoformat()
    world.prometheus.groups = [group(rule(health="unknown"), WATCHDOG, interval=15.0, last_evaluation=-1.0)]
    switch = world.switch()
    await switch.ask()
    await switch.ask()
    assert switch.status().degraded == degraded


async def test_a_fault_in_the_announcement_does_not_stop_the_switch() -> None:
    """What goes wrong while a change is told is logged, and the next change is told again."""
    world = World()
    switch = world.switch()
    switch.beat(1.0)
    calls: list[bool] = []

    async def tell(status: WatchStatus) -> None:
        calls.append(status.degraded)
        raise RuntimeError("journal is full")

    switch._on_change = tell
    world.seconds += 50.0
    await switch.announce()
    switch.beat(2.0)
    await switch.announce()
    assert calls == [True, False]
