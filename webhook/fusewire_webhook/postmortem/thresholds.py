"""Which plain bound a rule has: ``rl_<signal>`` (or its run_min, run_max) compared with a number. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

_SIGNAL = re.compile(r"rl_([a-z][a-z0-9_]*?)(_run_min|_run_max|_minibatch_max)?")
_COMPARISONS = {">": ">", ">=": ">=", "<": "<", "<=": "<=", "==": "==", "!=": "!="}
_KEEPS_UNIT = {"max", "min", "avg"}
_OVER_TIME = {"last_over_time", "max_over_time", "min_over_time", "avg_over_time"}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """``signal`` ``op`` a number, which is literal or the value of another query."""

    signal: str
    op: str
    value: float | None
    query: str = ""
    """Gives the number where ``value`` is None."""


def bounds(expression: str) -> list[Bound]:
    """The plain bounds in a rule's expression, joined by ``or`` or ``and`` too; empty where it has none."""
    try:
        parsed = promql.parse(expression)
    except ValueError:
        return []
    return list(_bounds(parsed))


def signals(expression: str) -> list[str]:
    """Every signal that an expression reads, in the order of their appearance."""
    found = re.findall(r"\brl_([a-z][a-z0-9_]*)", expression)
    return list(dict.fromkeys(re.sub(r"_(run_min|run_max|past_min|past_max|minibatch_max)$", "", n) for n in found))


def _bounds(expression: Any) -> Iterator[Bound]:
    if isinstance(expression, promql.ParenExpr) or _picks(expression):
        yield from _bounds(expression.expr)
    elif isinstance(expression, promql.BinaryExpr):
        op = str(expression.op)
        if op in {"or", "and", "unless"}:
            yield from _bounds(expression.lhs)
            if op == "or":
                yield from _bounds(expression.rhs)
        elif op in _COMPARISONS and (signal := _signal(expression.lhs)) is not None:
            bound = _number(signal, op, expression.rhs)
            if bound is not None:
                yield bound


def _number(signal: str, op: str, side: Any) -> Bound | None:
    while isinstance(side, promql.ParenExpr):
        side = side.expr
    if isinstance(side, promql.NumberLiteral):
        return Bound(signal=signal, op=op, value=float(side.val))
    if isinstance(side, promql.UnaryExpr) and isinstance(side.expr, promql.NumberLiteral):
        return Bound(signal=signal, op=op, value=-float(side.expr.val))
    if isinstance(side, promql.VectorSelector) and str(side.name).startswith("fusewire:threshold"):
        return Bound(signal=signal, op=op, value=None, query=side.prettify())
    return None


def _signal(side: Any) -> str | None:
    """The one signal of an expression that keeps its unit; None: it is arithmetic, or none."""
    while True:
        if isinstance(side, promql.ParenExpr) or _picks(side):
            side = side.expr
        elif isinstance(side, promql.Call) and side.func.name in _OVER_TIME:
            side = side.args[0]
        elif isinstance(side, promql.MatrixSelector):
            side = side.vector_selector
        else:
            break
    if not isinstance(side, promql.VectorSelector) or side.name is None:
        return None
    match = _SIGNAL.fullmatch(side.name)
    return match[1] if match else None


def _picks(expression: Any) -> bool:
    """An aggregation whose values are in the unit of what it aggregates."""
    return isinstance(expression, promql.AggregateExpr) and str(expression.op) in _KEEPS_UNIT
