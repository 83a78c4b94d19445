"""Which rules can say anything of runs that show only some series: the others cost time and change nothing.

Nothing is rewritten. A rule is left out when its expression is sure to be empty, or when no alert of interest
reads it. Both follow from the parsed expressions by PromQL's own semantics, and never leave out too much: an
expression that the parser does not know counts as one that reads everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser as promql

ALERTS = ("ALERTS", "ALERTS_FOR_STATE")
"""Series that Prometheus makes of every alert that is pending or firing."""
LIMIT = re.compile(r"fusewire:([a-z0-9_]+):limit")
"""A level that a pack records for pictures, in the unit of the signal."""
_NEVER_EMPTY = frozenset({"absent", "absent_over_time", "vector", "scalar", "time"})


@dataclass(frozen=True, kw_only=True)
class Read:
    """A selector: the series that it can match."""

    name: str | None
    """None: any."""
    equal: Mapping[str, str]
    """Labels that must have this value."""

    def can_match(self, made: _Made) -> bool:
        """Whether a series of a rule can be among them."""
        return self.name in (None, made.name) and all(
            made.labels.get(label, value) == value for label, value in self.equal.items()
        )


_ANYTHING = Read(name=None, equal={})


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A series that a rule makes, with the labels whose values are fixed."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parsed:
    rule: dict[str, Any]
    expression: promql.Expr | None
    """None: the parser does not know it."""
    reads: tuple[Read, ...]
    made: tuple[_Made, ...]

    def reads_from(self, other: _Parsed) -> bool:
        """Whether it can read what the other makes."""
        return any(read.can_match(made) for read in self.reads for made in other.made)


def live_rules(
    rules: Sequence[dict[str, Any]], exposed: Collection[str], *, actions: Collection[str], limits: bool = False
) -> list[dict[str, Any]]:
    """Those of ``rules`` that matter for alerts of these ``actions``, where only ``exposed`` series exist.

    Args:
        limits: the recorded levels at which rules trip (:data:`LIMIT`) matter too.
    """
    parsed = [_parsed(rule) for rule in rules]
    speaking: list[_Parsed] = []
    grown = True
    while grown:
        made = [series for each in speaking for series in each.made]
        found = [each for each in parsed if not _is_empty(each.expression, exposed, made)]
        grown = len(found) > len(speaking)
        speaking = found
    wanted = [
        each
        for each in speaking
        if ("alert" in each.rule and (each.rule.get("labels") or {}).get("action") in actions)
        or (limits and LIMIT.fullmatch(str(each.rule.get("record"))))
    ]
    for reader in wanted:  # grows while it is walked
        wanted += [each for each in speaking if each not in wanted and reader.reads_from(each)]
    chosen = {id(each.rule) for each in wanted}
    return [rule for rule in rules if id(rule) in chosen]


@cache
def reads(text: str) -> tuple[Read, ...]:
    """What an expression reads; anything at all where the parser does not know it."""
    expression = _expression(text)
    return (_ANYTHING,) if expression is None else tuple(_reads(expression))


@cache
def _expression(text: str) -> promql.Expr | None:
    try:
        return promql.parse(text)
    except ValueError:  # another version's PromQL than promtool's
        return None


def _parsed(rule: dict[str, Any]) -> _Parsed:
    labels = {
        name: str(value)
        for name, value in (rule.get("labels") or {}).items()
        if "{{" not in str(value)  # a template
    }
    if "alert" in rule:
        labels["alertname"] = rule["alert"]
    names = ALERTS if "alert" in rule else (rule["record"],)
    made = tuple(_Made(name=name, labels=labels) for name in names)
    text = str(rule["expr"])
    return _Parsed(rule=rule, expression=_expression(text), reads=reads(text), made=made)


def _children(expression: Any) -> Iterator[Any]:
    match expression:
        case promql.MatrixSelector():
            yield expression.vector_selector
        case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield expression.expr
        case promql.AggregateExpr():
            yield expression.expr
            if expression.param is not None:
                yield expression.param
        case promql.BinaryExpr():
            yield expression.lhs
            yield expression.rhs
        case promql.Call():
            yield from expression.args


def _reads(expression: Any) -> Iterator[Read]:
    if isinstance(expression, promql.VectorSelector):
        yield _read(expression)
    for child in _children(expression):
        yield from _reads(child)


def _read(selector: promql.VectorSelector) -> Read:
    matchers = selector.matchers.matchers
    equal = {matcher.name: matcher.value for matcher in matchers if matcher.op == promql.MatchOp.Equal}
    return Read(name=selector.name or equal.pop("__name__", None), equal=equal)


def _is_empty(expression: Any, exposed: Collection[str], made: Sequence[_Made]) -> bool:
    """Whether there can be no result while only ``exposed`` series and those that were ``made`` exist."""
    match expression:
        case None:
            return False
        case promql.VectorSelector():
            read = _read(expression)
            return not (read.name is None or read.name in exposed or any(map(read.can_match, made)))
        case promql.Call() if expression.func.name in _NEVER_EMPTY:
            return False
        case promql.BinaryExpr() if str(expression.op) == "or":
            return all(_is_empty(side, exposed, made) for side in (expression.lhs, expression.rhs))
        case promql.BinaryExpr() if str(expression.op) == "unless":
            return _is_empty(expression.lhs, exposed, made)
        case _:
            return any(_is_empty(child, exposed, made) for child in _children(expression))
