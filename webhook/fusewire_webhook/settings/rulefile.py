"""The rules of a file, with parsed expressions and every selector in them; what can be wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import promql_parser as promql
import yaml

DEFAULT_INTERVAL = timedelta(seconds=1)
"""Of a group that states none: the interval fusewire's own Prometheus runs with."""


Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a rule."""

    file: Path
    rule: str
    """Name of the alert or record, or of several; empty: the whole file."""
    message: str
    remedy: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.file}: {self.rule}" if self.rule else str(self.file)
        return f"{'warning: ' if self.severity == 'warning' else ''}{where}: {self.message}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule, as its file has it."""

    file: Path
    name: str
    """Of the alert or record."""
    body: Mapping[str, Any]
    expression: promql.Expr
    interval: timedelta
    """Of its group."""
    selectors: tuple[tuple[promql.VectorSelector, timedelta | None], ...] = field(default=())
    """Every selector with the range that it stands in; None: read raw."""

    @property
    def labels(self) -> Mapping[str, Any]:
        """Those that it sets."""
        return self.body.get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Those of an alert."""
        return self.body.get("annotations") or {}

    @property
    def is_alert(self) -> bool:
        """An alert, not a record."""
        return "alert" in self.body

    @property
    def is_trip(self) -> bool:
        """Does its alert stop a run?"""
        return self.is_alert and self.labels.get("action") == "trip"

    @property
    def reads(self) -> frozenset[str]:
        """Names of the series that it reads."""
        return frozenset(selector.name for selector, _ in self.selectors if selector.name)


def problem(rule: Rule, message: str, remedy: str, severity: Severity = "error") -> Problem:
    """What is wrong with this rule."""
    return Problem(file=rule.file, rule=rule.name, message=message, remedy=remedy, severity=severity)


Recorded = Mapping[str, Sequence[Rule]]
"""Recording rules by the series that they make; several rules may make one, with different labels."""


def recorded_by(rules: Sequence[Rule]) -> Recorded:
    """The recording rules among them."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        if "record" in rule.body:
            found.setdefault(rule.name, []).append(rule)
    return found


def behind(alerts: Iterable[Rule], recorded: Recorded) -> set[str]:
    """Names of the recording rules that some of the alerts read, directly or through others."""
    found: set[str] = set()
    waiting = [name for rule in alerts for name in rule.reads]
    while waiting:
        name = waiting.pop()
        if name in recorded and name not in found:
            found.add(name)
            waiting += [read for rule in recorded[name] for read in rule.reads]
    return found


class Unreadable(Exception):
    """A file holds no rules, or one whose expression cannot be parsed."""

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


def parse(path: Path) -> Any:
    """What YAML makes of a file.

    Raises:
        Unreadable: it cannot be read, or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except Exception as error:  # PyYAML lets out what float(), int(), date() and deep nesting raise
        raise Unreadable(f"not YAML: {' '.join(str(error).split())}") from error


def read(path: Path) -> Iterator[Rule]:
    """The rules of a file.

    Raises:
        Unreadable: it is none.
    """
    document = parse(path)
    if not isinstance(document, dict):
        raise Unreadable("no rule file: it holds no groups")
    for group in _mappings(document, "groups"):
        stated = group.get("interval")
        try:
            interval = promql.parse_duration(str(stated)) if stated else DEFAULT_INTERVAL
        except ValueError as error:
            raise Unreadable(str(error), str(group.get("name"))) from error
        for body in _mappings(group, "rules"):
            name = str(body.get("alert") or body.get("record"))
            if not all(isinstance(body.get(key) or {}, dict) for key in ("labels", "annotations")):
                raise Unreadable("labels and annotations hold names and values", name)
            try:
                yield rule_of(body, file=path, interval=interval)
            except (ValueError, RecursionError) as error:
                raise Unreadable(" ".join(str(error).split()), name) from error


def _mappings(parent: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """The entries of a list in a file."""
    found = parent.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Unreadable(f"{key} is no list of keys and values")
    return found


def rule_of(body: Mapping[str, Any], *, file: Path, interval: timedelta) -> Rule:
    """A rule from its entry in a file; ValueError: its expression is none."""
    expression = promql.parse(str(body.get("expr")))
    return Rule(
        file=file,
        name=str(body.get("alert") or body.get("record")),
        body=body,
        expression=expression,
        interval=interval,
        selectors=tuple(_selectors(expression)),
    )


def _selectors(
    expression: promql.Expr | None, span: timedelta | None = None
) -> Iterator[tuple[promql.VectorSelector, timedelta | None]]:
    match expression:
        case promql.VectorSelector():
            yield expression, span
        case promql.MatrixSelector():
            yield from _selectors(expression.vector_selector, expression.range)
        case promql.SubqueryExpr():
            yield from _selectors(expression.expr, expression.range)
        case promql.ParenExpr() | promql.UnaryExpr():
            yield from _selectors(expression.expr, span)
        case promql.BinaryExpr():
            yield from _selectors(expression.lhs, span)
            yield from _selectors(expression.rhs, span)
        case promql.AggregateExpr():
            yield from _selectors(expression.expr, span)
            yield from _selectors(expression.param, span)
        case promql.Call():
            for argument in expression.args:
                yield from _selectors(argument, span)
        case _:
            pass
