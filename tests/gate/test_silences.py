"""A silence on a trip alert is a pause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker.events import Command
from fusewire_webhook.watch.prometheus import Matcher, RuleGroup, Silence
from fusewire_webhook.watch.silences import SilenceWatch, first_match, matches, trip_labels

from .conftest import RUN, Engine
from .test_triprules import group, rule

ALERTS = trip_labels([group(rule("KLSpike", labels={"action": "trip", "class": "divergence"}))])


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
    assert (first_match([silence(*matchers)], ALERTS, view) is not None) == hit


def test_negative_matcher_on_an_absent_label() -> None:
    """``rack!=a`` matches where there is no rack, as in Alertmanager."""
    assert matches(Matcher(name="rack", value="a", is_equal=False), {})


class Servers:
    """Both servers, as far as silences need them."""

    def __init__(self) -> None:
        self.found: list[Silence] = []

    async def silences(self) -> list[Silence]:
        return self.found

    async def rules(self) -> list[RuleGroup]:
        return [group(rule("KLSpike"))]


async def test_pause_and_resume_are_journaled_once_with_author_and_comment(tmp_path: Path) -> None:
    """The silence's beginning pauses, its end resumes; a pause that a person made stays."""
    engine, servers = Engine(tmp_path, RUN, "other"), Servers()
    stand_in: Any = servers
    watch = SilenceWatch(engine, alertmanager=stand_in, prometheus=stand_in)
    engine.change("other", paused=True, pauses=({"source": "cli", "who": "bob", "why": "lunch"},))
    servers.found = [silence(equal("run", RUN))]
    await watch.look()
    pause = {"source": "silence", "who": "ada", "why": "moving racks"}
    engine.change(RUN, paused=True, pauses=(pause,))
    await watch.look()
    servers.found = [silence(equal("run", RUN), state="expired")]
    await watch.look()
    assert engine.events == [
        (RUN, Command(verb="pause", who="ada", why="moving racks", source="silence")),
        (RUN, Command(verb="resume", who="ada", why="the silence has ended", source="silence")),
    ]
