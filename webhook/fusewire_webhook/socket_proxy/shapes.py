"""What a JSON value may be: checks that are put together, and that refuse with the key's path. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from fusewire_webhook.errors import WebhookError

Check = Callable[[Any, str], None]
"""Of a value and its path; raises :class:`Refused`."""

_INT64 = 2**63 - 1


class Refused(WebhookError):
    """Something is asked for that is not allowed. The message names the key and never its value."""

    reason = "refused"


def text(pattern: str = r"[^\0]*", *, rule: str = "") -> Check:
    """A string that the regular expression matches as a whole.

    Args:
        rule: setting that says what is allowed, for the message.
    """
    allowed = re.compile(pattern, re.DOTALL)

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str) or allowed.fullmatch(value) is None:
            _refuse(path, f" by {rule}" if rule else "")

    return check


def number(least: int) -> Check:
    """A whole number that fits 64 bits."""

    def check(value: Any, path: str) -> None:
        if type(value) is not int or not least <= value <= _INT64:
            _refuse(path)

    return check


def flag(value: Any, path: str) -> None:
    """``true`` or ``false``."""
    if type(value) is not bool:
        _refuse(path)


def exactly(wanted: Any) -> Check:
    """This value and no other."""

    def check(value: Any, path: str) -> None:
        if type(value) is not type(wanted) or value != wanted:
            _refuse(path)

    return check


def each(check_one: Check) -> Check:
    """A list of such values."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list):
            _refuse(path)
        for index, one in enumerate(value):
            check_one(one, f"{path}[{index}]")

    return check


def mapping(check_key: Check, check_value: Check) -> Check:
    """An object whose keys are data."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            _refuse(path)
        for key, one in value.items():
            check_key(key, f"a key of {path}")
            check_value(one, f"{path}[{key!r}]")

    return check


def fields(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys, spelled so, and no others."""
    known = {**required, **(optional or {})}

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            _refuse(path)
        for key in required:
            if key not in value:
                raise Refused(f"{_joined(path, key)} must be given")
        for key, one in value.items():
            if key not in known:
                raise Refused(f"{_joined(path, key)!r} is not a key that is allowed")
            known[key](one, _joined(path, key))

    return check


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _refuse(path: str, why: str = "") -> NoReturn:
    raise Refused(f"{path}: its value is not allowed{why}")
