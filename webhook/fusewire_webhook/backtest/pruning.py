"""Which rules can say anything of runs that show only some series: the others cost time and change nothing.

Nothing is rewritten. A rule is left out when its expression is sure to be empty, or when no alert of interest
reads it. Both follow from the parsed expressions by PromQL's own semantics, and never leave out too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

_NEVER_EMPTY = frozenset({"absent", "absent_over_time", "vector", "scalar", "time"})


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A selector: the series that it can match."""

    name: str | None
    """None: any."""
    equal: Mapping[str, str]
    """Labels that must have this value."""

    def can_match(self, rule: Mapping[str, Any]) -> bool:
        """Whether the series of a recording rule, with its fixed labels, can be among them."""
        labels = rule.get("labels") or {}
        return self.name in (None, rule["record"]) and all(
            labels.get(label, value) == value for label, value in self.equal.items()
        )


@dataclass(frozen=True, kw_only=True)
class _Parsed:
    rule: dict[str, Any]
    expression: promql.Expr
    reads: tuple[_Read, ...]


def live_rules(
    rules: Sequence[dict[str, Any]], exposed: Collection[str], *, actions: Collection[str]
) -> list[dict[str, Any]]:
    """Those of ``rules`` that matter for alerts of these ``actions``, where only ``exposed`` series exist."""
    parsed = []
    for rule in rules:
        expression = promql.parse(str(rule["expr"]))
        parsed.append(_Parsed(rule=rule, expression=expression, reads=tuple(_reads(expression))))
    speaking: list[_Parsed] = []
    grown = True
    while grown:
        records = [each.rule for each in speaking if "record" in each.rule]
        found = [each for each in parsed if not _is_empty(each.expression, exposed, records)]
        grown = len(found) > len(speaking)
        speaking = found
    wanted = [
        each
        for each in speaking
        if "alert" in each.rule and (each.rule.get("labels") or {}).get("action") in actions
    ]
    for reader in wanted:  # grows while it is walked
        wanted += [
            each
            for each in speaking
            if "record" in each.rule and each not in wanted and any(r.can_match(each.rule) for r in reader.reads)
        ]
    chosen = {id(each.rule) for each in wanted}
    return [rule for rule in rules if id(rule) in chosen]


def _children(expression: Any) -> Iterator[Any]:
    match expression:
        case promql.MatrixSelector():
            yield expression.vector_selector
        case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.AggregateExpr():
            yield expression.expr
        case promql.BinaryExpr():
            yield expression.lhs
            yield expression.rhs
        case promql.Call():
            yield from expression.args


def _reads(expression: Any) -> Iterator[_Read]:
    if isinstance(expression, promql.VectorSelector):
        yield _read(expression)
    for child in _children(expression):
        yield from _reads(child)


def _read(selector: promql.VectorSelector) -> _Read:
    matchers = selector.matchers.matchers
    equal = {matcher.name: matcher.value for matcher in matchers if matcher.op == promql.MatchOp.Equal}
    return _Read(name=selector.name or equal.pop("__name__", None), equal=equal)


def _is_empty(expression: Any, exposed: Collection[str], records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there can be no result while only ``exposed`` series and those of ``records`` exist."""
    match expression:
        case promql.VectorSelector():
            read = _read(expression)
            some = read.name is None or read.name in exposed or any(map(read.can_match, records))
            return not some
        case promql.Call() if expression.func.name in _NEVER_EMPTY:
            return False
        case promql.BinaryExpr() if str(expression.op) == "or":
            return all(_is_empty(side, exposed, records) for side in (expression.lhs, expression.rhs))
        case promql.BinaryExpr() if str(expression.op) == "unless":
            return _is_empty(expression.lhs, exposed, records)
        case _:
            return any(_is_empty(child, exposed, records) for child in _children(expression))
