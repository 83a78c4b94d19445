"""Events in words."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from fusewire_webhook.breaker.events import KINDS, AlertReported, Event
from fusewire_webhook.breaker.words import describe, verdict


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
