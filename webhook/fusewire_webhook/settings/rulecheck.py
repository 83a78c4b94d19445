"""Are the rules fit to stop a run? promtool's word, and what promtool cannot know of fusewire's contract.

A trip rule must say what it is (labels), tell people (annotations, a runbook that exists), name the run and the
attempt that it speaks of, read only series that exist, and hold under a missed scrape. The expressions are parsed
with ``promql-parser``; docs/rules.md gives the reasons behind each demand.
"""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import promql_parser as promql
import yaml

from fusewire.metrics import sample_names
from fusewire_webhook.web.metrics import Metrics

IDENTITY = frozenset({"run", "attempt"})
"""Labels without which the webhook cannot know what to stop."""
CLASSES = ("divergence", "infrastructure")
ANNOTATIONS = ("summary", "description", "runbook_url")
SCRAPES = 3
"""A range must span more than three intervals to hold a sample when one scrape in three is missed."""
DEFAULT_INTERVAL = timedelta(seconds=1)
"""Of a group that states none: the interval fusewire's own Prometheus runs with."""

OVERRIDE = "fusewire:override"
OVERRIDE_EXAMPLE = "overrides.example.yaml"
"""Comes with fusewire to be copied: its run is nobody's."""

_FROM_PROMETHEUS = frozenset({"up", "ALERTS", "ALERTS_FOR_STATE", OVERRIDE})
_KEEPS_ALL = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_SCALARS = frozenset({"scalar", "time", "pi"})
_MAKES_LABELS = frozenset({"absent", "absent_over_time", "vector"})


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a rule."""

    file: Path
    rule: str
    """Name of the alert or record; empty: the whole file."""
    message: str
    remedy: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = f"{self.file}: {self.rule}" if self.rule else str(self.file)
        return f"{'warning: ' if self.severity == 'warning' else ''}{where}: {self.message}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class _Rule:
    file: Path
    name: str
    body: Mapping[str, Any]
    expression: promql.Expr
    interval: timedelta
    selectors: tuple[tuple[promql.VectorSelector, timedelta | None], ...] = field(default=())
    """Every selector with the range that it stands in; None: read raw."""

    @property
    def labels(self) -> Mapping[str, Any]:
        return self.body.get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, Any]:
        return self.body.get("annotations") or {}

    @property
    def is_trip(self) -> bool:
        return "alert" in self.body and self.labels.get("action") == "trip"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(selector.name for selector, _ in self.selectors if selector.name)


def check_rules(
    paths: Sequence[Path],
    *,
    promtool: str = "promtool",
    metrics: Collection[str] = (),
    runs: Collection[str] | None = None,
) -> list[Problem]:
    """Everything that is wrong with these rule files, taken together as Prometheus would load them.

    Args:
        promtool: the program; where it is missing, that is a warning.
        metrics: further series that exist, such as those of signals that the trainer declares.
        runs: the configured ones, which overrides may name; None: not known.
    """
    problems = [problem for path in paths for problem in _promtool(path, promtool)]
    rules: list[_Rule] = []
    for path in paths:
        try:
            rules += _read(path)
        except _Unreadable as error:
            if not any(problem.file == path and problem.severity == "error" for problem in problems):
                problems.append(Problem(file=path, rule=error.rule, message=str(error), remedy="correct the file"))
    recorded: dict[str, list[_Rule]] = {}
    for rule in rules:
        if "record" in rule.body:
            recorded.setdefault(rule.name, []).append(rule)
    known = _known_series() | set(metrics) | recorded.keys()
    behind_trips = _behind_trips(rules, recorded)
    for rule in rules:
        if rule.is_trip:
            problems += _contract(rule)
            problems += _identity(rule, recorded)
        trusted = rule.is_trip or rule.name in behind_trips
        problems += _unknown(rule, known, trusted=trusted)
        if trusted:
            problems += _raw(rule, recorded)
    return [*problems, *_overrides(rules, runs)]


_Recorded = Mapping[str, Sequence[_Rule]]
"""Recording rules by the series that they make; several rules may make one, with different labels."""


class _Unreadable(Exception):
    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


def _promtool(path: Path, promtool: str) -> Iterator[Problem]:
    try:
        done = subprocess.run(
            [promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        yield Problem(
            file=path,
            rule="",
            message=f"{promtool} is not installed, so Prometheus' own check was left out",
            remedy="it comes with Prometheus",
            severity="warning",
        )
        return
    if done.returncode:
        text = " ".join(done.stderr.replace("FAILED:", "").split()) or done.stdout.strip()
        yield Problem(file=path, rule="", message=f"promtool: {text}", remedy="correct the file")


def _read(path: Path) -> Iterator[_Rule]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from error
    except yaml.YAMLError as error:
        raise _Unreadable(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise _Unreadable("no rule file: it holds no groups")
    for group in document.get("groups") or ():
        stated = group.get("interval")
        interval = promql.parse_duration(str(stated)) if stated else DEFAULT_INTERVAL
        for body in group.get("rules") or ():
            name = str(body.get("alert") or body.get("record"))
            try:
                expression = promql.parse(str(body.get("expr")))
            except ValueError as error:
                raise _Unreadable(" ".join(str(error).split()), name) from error
            yield _Rule(
                file=path,
                name=name,
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


@cache
def _known_series() -> frozenset[str]:
    names = set(sample_names()) | _FROM_PROMETHEUS
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names.update(family.name + suffix for suffix in suffixes)
    return frozenset(names)


def _behind_trips(rules: Sequence[_Rule], recorded: _Recorded) -> set[str]:
    """Names of the recording rules that some trip rule reads, directly or through others."""
    found: set[str] = set()
    waiting = [name for rule in rules if rule.is_trip for name in rule.reads]
    while waiting:
        name = waiting.pop()
        if name in recorded and name not in found:
            found.add(name)
            waiting += [read for rule in recorded[name] for read in rule.reads]
    return found


# What a trip rule must say ---------------------------------------------------------------------------------


def _contract(rule: _Rule) -> Iterator[Problem]:
    if rule.labels.get("class") not in CLASSES:
        yield _problem(
            rule, "does not say which class of failure it is", f"add the label class: {' or '.join(CLASSES)}"
        )
    if not rule.labels.get("severity"):
        yield _problem(rule, "has no severity", "add the label severity, such as severity: critical")
    for name in ANNOTATIONS:
        if not rule.annotations.get(name):
            yield _problem(rule, f"has no annotation {name}", f"add annotations: {name}")
    if not rule.body.get("keep_firing_for"):
        yield _problem(
            rule,
            "resolves at once: a webhook that is down for a moment would never hear of it",
            "add keep_firing_for: 10m",
        )
    for label in sorted(IDENTITY & rule.labels.keys()):
        yield _problem(rule, f"sets the label {label} itself", "let it come from the series")
    yield from _runbook(rule)


def _runbook(rule: _Rule) -> Iterator[Problem]:
    url = str(rule.annotations.get("runbook_url") or "")
    if not url or "://" in url:
        return
    folders = list(rule.file.resolve().parents)
    if any((folder / url).is_file() for folder in folders):
        return
    if any((folder / url).parent.is_dir() for folder in folders):
        yield _problem(rule, f"its runbook {url} does not exist", "write it")
    else:
        yield Problem(
            file=rule.file,
            rule=rule.name,
            message=f"its runbook {url} is not found from here",
            remedy="a relative address helps nobody elsewhere: write the address of your runbooks",
            severity="warning",
        )


def _problem(rule: _Rule, message: str, remedy: str) -> Problem:
    return Problem(file=rule.file, rule=rule.name, message=message, remedy=remedy)


# Whose alert is it? ----------------------------------------------------------------------------------------


def _identity(rule: _Rule, recorded: _Recorded) -> Iterator[Problem]:
    kept = _kept(rule.expression, _of_recorded(recorded, frozenset()))
    if kept is None or not kept >= IDENTITY:
        lost = ", ".join(sorted(IDENTITY - (kept or frozenset())))
        yield _problem(
            rule,
            f"its expression loses the labels {lost}, so the webhook cannot know what to stop",
            "keep them: by (run, attempt, …), without them in without (…), on (run, attempt, …)",
        )


_Lookup = Callable[[str], frozenset[str]]


def _of_recorded(recorded: _Recorded, busy: frozenset[str]) -> _Lookup:
    """What a series by this name keeps. A rule that reads itself is judged by the rest of its expression."""

    def look_up(name: str) -> frozenset[str]:
        if name not in recorded or name in busy:
            return IDENTITY
        inner = _of_recorded(recorded, busy | {name})
        return IDENTITY.intersection(*(_kept(rule.expression, inner) or () for rule in recorded[name]))

    return look_up


def _kept(expression: Any, of_series: _Lookup) -> frozenset[str] | None:
    """Which labels of the identity the result is sure to carry; None: it is a scalar or a string."""
    kept: frozenset[str] | None = None
    match expression:
        case promql.VectorSelector():
            kept = of_series(expression.name or "")
        case promql.MatrixSelector():
            kept = of_series(expression.vector_selector.name or "")
        case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr():
            kept = _kept(expression.expr, of_series)
        case promql.AggregateExpr():
            kept = _kept_by_aggregation(expression, of_series)
        case promql.BinaryExpr():
            kept = _kept_by_operator(expression, of_series)
        case promql.Call() if expression.func.name in _MAKES_LABELS:
            kept = frozenset()
        case promql.Call() if expression.func.name not in _SCALARS:
            arguments = (_kept(argument, of_series) for argument in expression.args)
            kept = next((labels for labels in arguments if labels is not None), None)
    return kept


def _kept_by_aggregation(expression: promql.AggregateExpr, of_series: _Lookup) -> frozenset[str]:
    inner = _kept(expression.expr, of_series) or frozenset()
    if str(expression.op) in _KEEPS_ALL:
        return inner
    if expression.modifier is None:
        return frozenset()
    if expression.modifier.type == promql.AggModifierType.By:
        return inner.intersection(expression.modifier.labels)
    return inner.difference(expression.modifier.labels)


def _kept_by_operator(expression: promql.BinaryExpr, of_series: _Lookup) -> frozenset[str] | None:
    left, right = _kept(expression.lhs, of_series), _kept(expression.rhs, of_series)
    if left is None or right is None:
        return right if left is None else left
    match str(expression.op):
        case "and" | "unless":
            return left
        case "or":
            return left & right
        case _:
            return _kept_by_matching(left, right, expression.modifier)


def _kept_by_matching(
    left: frozenset[str], right: frozenset[str], modifier: promql.BinModifier | None
) -> frozenset[str]:
    """Of arithmetic and comparisons: the labels of the many side, or those that the two sides were matched on."""
    group = frozenset(modifier.group_labels or ()) if modifier else frozenset()
    card = modifier.card if modifier else promql.VectorMatchCardinality.OneToOne
    if card == promql.VectorMatchCardinality.ManyToOne:
        return left | (right & group)
    if card == promql.VectorMatchCardinality.OneToMany:
        return right | (left & group)
    if modifier is None or modifier.matching is None:
        return left & right
    if modifier.matching.type == promql.LabelModifierType.Include:
        return left.intersection(modifier.matching.labels)
    return left.difference(modifier.matching.labels)


# Does it read what exists, and hold under a missed scrape? -----------------------------------------------------


def _unknown(rule: _Rule, known: Collection[str], *, trusted: bool) -> Iterator[Problem]:
    for name in sorted(rule.reads - set(known)):
        ours = name.startswith(("rl_", "fusewire_", "fusewire:"))
        if name.startswith("scrape_") or not (trusted or ours):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        yield Problem(
            file=rule.file,
            rule=rule.name,
            message=f"no series is called {name}",
            remedy=f"did you mean {close[0]}?" if close else "right only if your trainer declares such a signal",
            severity="error" if close or name.startswith(("fusewire_", "fusewire:")) else "warning",
        )


def _raw(rule: _Rule, recorded: Collection[str]) -> Iterator[Problem]:
    for selector, span in rule.selectors:
        name = selector.name or ""
        if name in recorded or name in _FROM_PROMETHEUS:
            continue
        if span is None:
            yield _problem(
                rule,
                f"reads {name} as it is: a single missed scrape makes it vanish and starts for: again",
                f"write last_over_time({name}{{…}}[{SCRAPES + 1} scrape intervals])",
            )
        elif span <= SCRAPES * rule.interval:
            yield _problem(
                rule,
                f"looks back {span.total_seconds():g} s at {name}, too little for one missed scrape in three",
                f"take more than {SCRAPES} intervals of {rule.interval.total_seconds():g} s",
            )


# Does an override do anything? ---------------------------------------------------------------------------------


def _overrides(rules: Sequence[_Rule], runs: Collection[str] | None) -> Iterator[Problem]:
    """Labels that a constant lacks are missing; a query's may come from its series."""
    known = _overridable(rules)
    first: dict[tuple[str, str, str], _Rule] = {}
    for rule in rules:
        if rule.body.get("record") != OVERRIDE:
            continue
        threshold, run, algorithm = (str(rule.labels.get(name) or "") for name in ("threshold", "run", "algorithm"))
        if not threshold and not rule.selectors:
            yield _problem(rule, "names no threshold, so it does nothing", "add the label threshold")
        if threshold and threshold not in known:
            yield _problem(
                rule, f"no threshold is called {threshold}, so it does nothing", _meant(threshold, known)
            )
        if not (run or algorithm or rule.selectors):
            yield _problem(
                rule,
                f"{threshold or 'it'} is for no run and no algorithm, so it does nothing",
                "add the label run or algorithm",
            )
        if run and runs is not None and run not in runs and rule.file.name != OVERRIDE_EXAMPLE:
            yield Problem(
                file=rule.file,
                rule=rule.name,
                message=f"{threshold} is for the run {run}, which is not configured",
                remedy=_meant(run, runs),
                severity="warning",
            )
        whose = ("run", run) if run else ("algorithm", algorithm)
        earlier = first.setdefault((threshold, *whose), rule)
        if threshold and whose[1] and earlier is not rule:
            yield _problem(
                rule,
                f"a second override of {threshold} for the {whose[0]} {whose[1]} (the first: {earlier.file}): "
                "two make the threshold's rule fail",
                "keep one of them",
            )


def _overridable(rules: Sequence[_Rule]) -> frozenset[str]:
    """Names of the thresholds whose rules look for an override."""
    return frozenset(
        matcher.value
        for rule in rules
        for selector, _ in rule.selectors
        if selector.name == OVERRIDE
        for matcher in selector.matchers.matchers
        if matcher.name == "threshold" and matcher.op == promql.MatchOp.Equal
    )


def _meant(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    if not known:
        return "load the rules that read it too: 'default' beside this file"
    return f"there are {', '.join(sorted(known))}"
