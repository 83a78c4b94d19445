"""Events in words."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from fusewire_webhook.breaker.events import KINDS, AlertReported, AttemptStarted, Command, Event
from fusewire_webhook.breaker.words import Repeats, describe, verdict


def example(cls: type[Event]) -> Event:
    """An event of the kind with a plausible value in each field."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        hint = get_type_hints(cls)[field.name]
        kind = get_origin(hint) or hint
        options = [one for one in get_args(hint) if isinstance(one, str)]
        values[field.name] = options[0] if options else {str: "word", int: 3, float: 1.5, bool: True}.get(kind)
        if kind is tuple:
            values[field.name] = ("word",)
        elif kind is dict:
            values[field.name] = {}
    return cls(**values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_has_words(kind: str) -> None:
    """Each kind is told in a sentence of its own, on one line."""
    words = describe(example(KINDS[kind]))
    assert words != kind
    assert "\n" not in words


def test_words_from_outside_do_nothing_to_a_terminal() -> None:
    """Escape sequences and line breaks of an alert are not printed."""
    event = AlertReported(
        alertname="A", status="firing", attempt=1, action="trip", summary="\x1b[2Jgone\nlocked: no"
    )
    assert describe(event) == "trip alert A firing (attempt 1):  [2Jgone locked: no"
    assert verdict("locked", "locked: \x07") == "locked:  "


def test_a_state_is_said_once() -> None:
    """A decision that begins with its state is not prefixed with it again."""
    assert verdict("locked", "locked: budget used") == "locked: budget used"
    assert verdict("closed", "attempt 1 started") == "closed: attempt 1 started"


def firing(name: str, attempt: int, *, began: str = "2026-01-01T00:00:00Z") -> AlertReported:
    """A trip alert as it is reported each minute for as long as it fires."""
    return AlertReported(
        at=0.0, alertname=name, status="firing", attempt=attempt, action="trip", starts_at=began, labels={}
    )


def test_what_an_alert_reports_again_is_known_by_its_first_report() -> None:
    """Also where other alerts come between; another occurrence and another attempt are news."""
    repeats = Repeats()
    reports = [
        firing("A", 0),
        firing("B", 0),
        firing("A", 0),
        firing("A", 0, began="2026-01-01T00:05:00Z"),
        firing("A", 1),
    ]
    assert [repeats.of(number, event)[0] for number, event in enumerate(reports)] == [0, 1, 0, 3, 4]


def test_an_alert_of_an_attempt_that_was_replaced_is_told_as_such() -> None:
    """It comes for minutes after the restart, and stops nothing."""
    repeats = Repeats()
    events = [
        AttemptStarted(at=0.0, attempt=0, handle={}),
        firing("A", 0),
        AttemptStarted(at=1.0, attempt=1, handle={}),
        firing("B", 0),
        firing("B", 1),
    ]
    assert [repeats.of(number, event)[1] for number, event in enumerate(events)] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_command_makes_news_of_what_the_present_attempt_reports() -> None:
    """What a pause has held may act when it is reported again; what is over for good is no news."""
    repeats = Repeats()
    resume = Command(at=0.0, verb="resume", who="ada", why="x")
    events = [AttemptStarted(at=0.0, attempt=1, handle={}), firing("A", 0), firing("A", 1), resume, firing("A", 0)]
    assert [repeats.of(number, event)[0] for number, event in enumerate([*events, firing("A", 1)])] == [
        0,
        1,
        2,
        3,
        1,
        5,
    ]
