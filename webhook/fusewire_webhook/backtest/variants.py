"""Copies of a pack with one number changed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from fusewire_webhook.backtest.pack import THRESHOLD, Pack, seconds, written
from fusewire_webhook.errors import ConfigError

_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_LAST_NUMBER = re.compile(r"[-+]?[\w.]+(?:(?<=[eE])[-+]\d+)?\s*$")


def changed(pack: Pack, key: str, value: str, folder: Path) -> Pack:
    """A copy of the pack in ``folder`` with one number changed.

    Args:
        key: the name of a threshold; ``Alert.threshold``, the number that the alert's expression ends with being
            compared to; or ``Alert.for``.
        value: a number, or a duration for ``Alert.for``.

    Raises:
        ConfigError: the pack has no such number, or the value is none.
    """
    change = _change(key, value)
    documents = []
    hits = 0
    for document in pack.documents:
        copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(document))
        for group in copy.get("groups") or ():
            hits += sum(change(rule) for rule in group.get("rules") or ())
        documents.append(copy)
    if not hits:
        raise ConfigError(
            f"--sweep {key}: the pack has no such number; it has {', '.join(pack.thresholds) or 'no thresholds'}, "
            "NameOfAlert.threshold and NameOfAlert.for"
        )
    return written(documents, folder)


def _change(key: str, value: str) -> Callable[[dict[str, Any]], bool]:
    """What changes a rule if it holds the number, and says whether it does."""
    alert, dot, what = key.partition(".")
    if dot and what == "for":
        try:
            seconds(value)
        except ValueError as error:
            raise ConfigError(f"--sweep {key}: {error}") from None
    else:
        value = repr(_number(key, value))

    def change(rule: dict[str, Any]) -> bool:
        if dot and rule.get("alert") == alert and what == "for":
            rule["for"] = value
        elif dot and rule.get("alert") == alert and what == "threshold":
            rule["expr"] = _compared_with(value, str(rule["expr"]), key)
        elif not dot and rule.get("record") == THRESHOLD and (rule.get("labels") or {}).get("threshold") == key:
            rule["expr"] = f"fusewire:attempt * {value}"
        else:
            return False
        return True

    return change


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"--sweep {key}: {value!r} is no number")
    return number


def _compared_with(value: str, text: str, key: str) -> str:
    other = _LAST_NUMBER.sub(f" {value}", text)
    if _limit(text) is None or _limit(other) != float(value):
        raise ConfigError(
            f"--sweep {key}: its expression does not end with a comparison with a number; "
            "sweep the threshold that it reads"
        )
    return other


def _limit(text: str) -> float | None:
    """The number that an expression as a whole is compared with."""
    expression = promql.parse(text)
    if isinstance(expression, promql.BinaryExpr) and str(expression.op) in _COMPARISONS:
        return expression.rhs.val if isinstance(expression.rhs, promql.NumberLiteral) else None
    return None
