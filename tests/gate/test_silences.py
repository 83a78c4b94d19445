"""A silence on a trip alert is a pause."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker.events import Command, Event
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.prometheus import ActiveAlert, ManagedAlert, Matcher, RuleGroup, Silence
from fusewire_webhook.watch.silences import SilenceWatch, Trips, matches, silences_of, trip_labels

from .conftest import RUN, Engine
from .test_triprules import group, rule

TRIPS = Trips(expected=trip_labels([group(rule("KLSpike", labels={"action": "trip", "class": "divergence"}))]))
FIRING = {"alertname": "KLSpike", "action": "trip", "run": RUN, "attempt": "0", "signal": "approx_kl"}


PAUSE = Command(verb="pause", who="ada", why="moving racks", source="silence", silence="1")
RESUME = replace(PAUSE, verb="resume", why="the silence has ended")
HELD = {"source": "silence", "who": "ada", "why": "moving racks", "silence": "1"}


@dataclass
class Servers:
    """Both servers, as far as silences need them."""

    found: list[Silence] = field(default_factory=list)
    active: list[dict[str, str]] = field(default_factory=list)
    muted: list[dict[str, str]] = field(default_factory=list)

    def watch(self, engine: Engine) -> SilenceWatch:
        alertmanager: Any = Muting(self)
        prometheus: Any = self
        return SilenceWatch(engine, alertmanager=alertmanager, prometheus=prometheus)

    async def rules(self) -> list[RuleGroup]:
        return [group(rule("KLSpike"))]

    async def alerts(self) -> list[ActiveAlert]:
        return [ActiveAlert(labels=labels, annotations={}, state="pending") for labels in self.active]


@dataclass
class Muting:
    """Alertmanager."""

    servers: Servers

    async def silences(self) -> list[Silence]:
        return self.servers.found

    async def alerts(self) -> list[ManagedAlert]:
        return [
            ManagedAlert(labels=labels, state="suppressed", silenced_by=("1",)) for labels in self.servers.muted
        ]


def silence(*matchers: Matcher, state: str = "active") -> Silence:
    return Silence(id="1", state=state, created_by="ada", comment="moving racks", matchers=matchers)


def equal(name: str, value: str) -> Matcher:
    return Matcher(name=name, value=value)


def regex(name: str, value: str, *, is_equal: bool = True) -> Matcher:
    return Matcher(name=name, value=value, is_regex=True, is_equal=is_equal)


@pytest.mark.parametrize(
    ("matchers", "hit"),
    [
        ((equal("run", RUN),), True),
        ((equal("run", "other"),), False),
        ((equal("alertname", "KLSpike"),), True),
        ((equal("alertname", "DiskFull"),), False),
        ((equal("action", "trip"), equal("run", RUN)), True),
        ((equal("action", "notify"), equal("run", RUN)), False),
        ((regex("run", "cart"),), False),
        ((regex("run", "cart.*"),), True),
        ((regex("run", "cart.*", is_equal=False),), False),
        ((equal("attempt", "0"),), True),
        ((equal("attempt", "1"),), False),
        ((equal("rack", ""),), True),
        ((equal("class", "infrastructure"),), False),
        ((regex("run", "("),), False),
        ((), False),
    ],
)
def test_matchers_decide_on_the_labels_of_a_trip_alert(
    tmp_path: Path, matchers: tuple[Matcher, ...], hit: bool
) -> None:
    """A silence pauses a run exactly if it would mute one of the trip alerts of its present attempt."""
    (view,) = Engine(tmp_path, RUN).views()
    assert bool(silences_of(view, [silence(*matchers)], TRIPS)) == hit


@pytest.mark.parametrize(
    ("changes", "hit"),
    [
        ({}, True),
        ({"attempt": "1"}, False),
        ({"run": "other"}, False),
        ({"signal": "value_loss"}, False),
        ({"action": "notify"}, False),
    ],
)
async def test_a_silence_on_labels_of_the_alert_itself_pauses_once_there_is_one(
    tmp_path: Path, changes: dict[str, str], hit: bool
) -> None:
    """``signal=…`` says nothing beforehand; it pauses as soon as such an alert of the present attempt is active."""
    engine, servers = Engine(tmp_path, RUN), Servers(found=[silence(equal("signal", "approx_kl"))])
    watch = servers.watch(engine)
    await watch.look()
    assert engine.events == []
    servers.active = [{**FIRING, **changes}]
    await watch.look()
    assert bool(engine.events) == hit


async def test_what_alertmanager_mutes_is_silenced(tmp_path: Path) -> None:
    """A label that only Alertmanager sees (``cluster``, added on the way) pauses by Alertmanager's word."""
    engine, servers = Engine(tmp_path, RUN), Servers(found=[silence(equal("cluster", "eu"))])
    servers.active = [FIRING]
    watch = servers.watch(engine)
    await watch.look()
    assert engine.events == []
    servers.muted = [{**FIRING, "cluster": "eu"}]
    await watch.look()
    assert engine.events == [(RUN, PAUSE)]


async def test_a_silence_pauses_until_it_ends_not_until_its_alert_does(tmp_path: Path) -> None:
    """The alert may come back at any time: only the end of the silence resumes, or an attempt it does not name."""
    engine = Engine(tmp_path, RUN)
    servers = Servers(found=[silence(equal("signal", "approx_kl"), equal("attempt", "0"))], active=[FIRING])
    watch = servers.watch(engine)
    await watch.look()
    engine.change(RUN, paused=True, pauses=(HELD,))
    servers.active = []
    await watch.look()
    assert engine.events == [(RUN, PAUSE)]
    engine.change(RUN, attempt=1)
    await watch.look()
    assert engine.events == [(RUN, PAUSE), (RUN, RESUME)]


async def test_a_person_who_resumes_overrules_the_silence(tmp_path: Path) -> None:
    """What a person has resumed is not paused again by the same silence, but by another one."""
    engine, servers = Engine(tmp_path, RUN), Servers(found=[silence(equal("run", RUN))])
    engine.change(RUN, lifted=("1",))
    watch = servers.watch(engine)
    await watch.look()
    assert engine.events == []
    servers.found.append(replace(servers.found[0], id="2"))
    await watch.look()
    assert engine.events == [(RUN, replace(PAUSE, silence="2"))]


async def test_two_looks_at_once_pause_once(tmp_path: Path) -> None:
    """Reconciliation looks too, and may do so at the same time."""
    engine, servers = Engine(tmp_path, RUN), Servers(found=[silence(equal("run", RUN))])
    submit = engine.submit

    async def slowly(run: str, event: Event) -> None:
        await asyncio.sleep(0)
        await submit(run, event)
        engine.change(RUN, paused=True, pauses=(HELD,))

    engine.submit = slowly  # type: ignore[method-assign]
    watch = servers.watch(engine)
    await asyncio.gather(watch.look(), watch.look())
    assert engine.events == [(RUN, PAUSE)]


def test_negative_matcher_on_an_absent_label() -> None:
    """``rack!=a`` matches where there is no rack, as in Alertmanager."""
    assert matches(Matcher(name="rack", value="a", is_equal=False), {})


async def test_pause_and_resume_are_journaled_once_with_author_and_comment(tmp_path: Path) -> None:
    """The silence's beginning pauses, its end resumes; a pause that a person made stays."""
    engine, servers = Engine(tmp_path, RUN, "other"), Servers()
    watch = servers.watch(engine)
    engine.change("other", paused=True, pauses=({"source": "cli", "who": "bob", "why": "lunch", "silence": ""},))
    servers.found = [silence(equal("run", RUN))]
    await watch.look()
    engine.change(RUN, paused=True, pauses=(HELD,))
    await watch.look()
    servers.found = [silence(equal("run", RUN), state="expired")]
    await watch.look()
    assert engine.events == [(RUN, PAUSE), (RUN, RESUME)]


async def test_an_outage_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While Alertmanager does not answer the log has one line, and one more once it answers again."""
    looks: list[int] = []
    answers = asyncio.Event()

    class Away(Muting):
        async def silences(self) -> list[Silence]:
            looks.append(1)
            if len(looks) in {5, 10}:
                answers.set()
            if len(looks) == 5:
                return []
            raise PrometheusError(f"Alertmanager did not answer look {len(looks)}")

    alertmanager: Any = Away(Servers())
    prometheus: Any = Servers()
    watch = SilenceWatch(Engine(tmp_path, RUN), alertmanager=alertmanager, prometheus=prometheus, interval=0.0)
    task = asyncio.create_task(watch.run())
    for _ in range(2):
        await asyncio.wait_for(answers.wait(), 60)
        answers.clear()
    task.cancel()
    assert [
        record.getMessage().split(" (")[0] for record in caplog.records if record.name.endswith("silences")
    ] == [
        "the silences could not be read: Alertmanager did not answer look 1",
        "the silences are read again",
        "the silences could not be read: Alertmanager did not answer look 6",
    ]
