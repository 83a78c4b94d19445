"""Are the rules fit to stop a run? promtool's word, and what promtool cannot know of fusewire's contract.

A trip rule must say what it is (labels), tell people (annotations, a runbook that exists), name the run and the
attempt that it speaks of, read only series that exist, and hold under a missed scrape. The expressions are parsed
with ``promql-parser``; docs/rules.md gives the reasons behind each demand.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser as promql

from fusewire_webhook.settings import packs
from fusewire_webhook.settings.rulefile import (
    Problem,
    Recorded,
    Rule,
    Unreadable,
    problem,
    read,
    recorded_by,
    rule_of,
)
from fusewire_webhook.settings.rulereads import OVERRIDE, range_problems, read_problems

if TYPE_CHECKING:
    from fusewire_webhook.settings.config import Config
    from fusewire_webhook.watch.prometheus import RuleGroup

IDENTITY = frozenset({"run", "attempt"})
"""Labels without which the webhook cannot know what to stop."""
ACTIONS = ("trip", "hold", "notify", "watchdog")
CLASSES = ("divergence", "infrastructure")
ANNOTATIONS = ("summary", "description", "runbook_url")

THRESHOLD = "fusewire:threshold"
"""What the trip rules compare with: an override, or the pack's own number."""
OVERRIDE_EXAMPLE = "overrides.example.yaml"
"""Comes with fusewire to be copied: its run is nobody's."""

_KEEPS_ALL = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_SCALARS = frozenset({"scalar", "time", "pi"})
_MAKES_LABELS = frozenset({"absent", "absent_over_time", "vector"})


def configured_problems(entries: Sequence[str], config: Config) -> list[Problem]:
    """What is wrong with the rule files that entries of ``prometheus.rule_files`` name, for the runs configured.

    Raises:
        ConfigError: one of the entries names no file.
    """
    from fusewire_webhook.stack.binaries import resolve_rule_files  # noqa: PLC0415 - loads aiohttp

    return check_rules(
        [Path(file) for file in resolve_rule_files(packs.rule_files(entries))],
        runs=config.runs or None,
        algorithms={run.algorithm for run in config.runs.values()} or None,
        scrape_seconds=config.prometheus.scrape_interval_seconds,
    )


def check_rules(
    paths: Sequence[Path],
    *,
    promtool: str = "promtool",
    metrics: Collection[str] = (),
    runs: Collection[str] | None = None,
    algorithms: Collection[str] | None = None,
    scrape_seconds: float = 0.0,
) -> list[Problem]:
    """Everything that is wrong with these rule files, taken together as Prometheus would load them.

    Args:
        promtool: the program; where it is missing, that is a warning.
        metrics: further series that exist, such as those of signals that the trainer declares.
        runs: the configured ones, which overrides may name; None: not known.
        algorithms: theirs, likewise.
        scrape_seconds: the interval of the scrapes; 0: not known, so that only a group's own interval counts.
    """
    problems = [one for path in paths for one in _promtool(path, promtool)]
    rules: list[Rule] = []
    for path in paths:
        try:
            rules += read(path)
        except Unreadable as error:
            if not any(one.file == path and one.severity == "error" for one in problems):
                problems.append(Problem(file=path, rule=error.rule, message=str(error), remedy="correct the file"))
    recorded = recorded_by(rules)
    for rule in rules:
        problems += _action(rule)
        if rule.is_trip:
            problems += _contract(rule)
            problems += _identity(rule, recorded)
    problems += read_problems(rules, recorded, metrics=metrics, scrape=timedelta(seconds=scrape_seconds))
    return [*problems, *_overrides(rules, {"run": runs, "algorithm": algorithms})]


def check_loaded(groups: Sequence[RuleGroup], *, scrape_seconds: float) -> list[Problem]:
    """Which files of a running Prometheus would be blind at this interval of the scrapes."""
    rules: list[Rule] = []
    for group in groups:
        for loaded in group.rules:
            kind = "alert" if loaded.kind == "alerting" else "record"
            body = {kind: loaded.name, "expr": loaded.query, "labels": loaded.labels}
            with contextlib.suppress(ValueError):  # a newer PromQL than the parser's
                rules.append(rule_of(body, file=Path(group.file), interval=timedelta(seconds=group.interval)))
    return list(range_problems(rules, recorded_by(rules), scrape=timedelta(seconds=scrape_seconds)))


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


# What a trip rule must say ---------------------------------------------------------------------------------


def _action(rule: Rule) -> Iterator[Problem]:
    """What an alert asks for must be something that fusewire does."""
    action = rule.labels.get("action")
    if not rule.is_alert or action in ACTIONS:
        return
    if action is not None:
        close = difflib.get_close_matches(str(action).lower(), ACTIONS, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(ACTIONS)}"
        yield problem(rule, f"there is no action {action}, so it stops nothing", meant)
    elif rule.labels.get("class") in CLASSES:
        yield problem(
            rule, "has a class and no action, so it stops nothing", "add the label action: trip", "warning"
        )


def _contract(rule: Rule) -> Iterator[Problem]:
    if rule.labels.get("class") not in CLASSES:
        yield problem(
            rule, "does not say which class of failure it is", f"add the label class: {' or '.join(CLASSES)}"
        )
    if not rule.labels.get("severity"):
        yield problem(rule, "has no severity", "add the label severity, such as severity: critical")
    for name in ANNOTATIONS:
        if not rule.annotations.get(name):
            yield problem(rule, f"has no annotation {name}", f"add annotations: {name}")
    if not rule.body.get("keep_firing_for"):
        yield problem(
            rule,
            "resolves at once: a webhook that is down for a moment would never hear of it",
            "add keep_firing_for: 10m",
        )
    for label in sorted(IDENTITY & rule.labels.keys()):
        yield problem(rule, f"sets the label {label} itself", "let it come from the series")
    yield from _runbook(rule)


def _runbook(rule: Rule) -> Iterator[Problem]:
    url = str(rule.annotations.get("runbook_url") or "")
    if not url or "://" in url:
        return
    folders = list(rule.file.resolve().parents)
    if any((folder / url).is_file() for folder in folders):
        return
    if any((folder / url).parent.is_dir() for folder in folders):
        yield problem(rule, f"its runbook {url} does not exist", "write it")
    else:
        yield Problem(
            file=rule.file,
            rule=rule.name,
            message=f"its runbook {url} is not found from here",
            remedy="a relative address helps nobody elsewhere: write the address of your runbooks",
            severity="warning",
        )


# Whose alert is it? ----------------------------------------------------------------------------------------


def _identity(rule: Rule, recorded: Recorded) -> Iterator[Problem]:
    kept = _kept(rule.expression, _of_recorded(recorded, frozenset()))
    if kept is None or not kept >= IDENTITY:
        lost = ", ".join(sorted(IDENTITY - (kept or frozenset())))
        yield problem(
            rule,
            f"its expression loses the labels {lost}, so the webhook cannot know what to stop",
            "keep them: by (run, attempt, …), without them in without (…), on (run, attempt, …)",
        )


_Lookup = Callable[[str], frozenset[str]]


def _of_recorded(recorded: Recorded, busy: frozenset[str]) -> _Lookup:
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


# Does an override do anything? ---------------------------------------------------------------------------------


def _overrides(rules: Sequence[Rule], configured: Mapping[str, Collection[str] | None]) -> Iterator[Problem]:
    """Labels that a constant lacks are missing; a query's may come from its series."""
    known, defaults = _overridable(rules), _defaults(rules)
    first: dict[tuple[str, str, str], Rule] = {}
    for rule in rules:
        if rule.body.get("record") != OVERRIDE:
            continue
        threshold, run, algorithm = (str(rule.labels.get(name) or "") for name in ("threshold", "run", "algorithm"))
        if not threshold and not rule.selectors:
            yield problem(rule, "names no threshold, so it does nothing", "add the label threshold")
        if threshold and threshold not in known:
            yield problem(rule, f"no threshold is called {threshold}, so it does nothing", _meant(threshold, known))
        if not (run or algorithm or rule.selectors):
            yield problem(
                rule,
                f"{threshold or 'it'} is for no run and no algorithm, so it does nothing",
                "add the label run or algorithm",
            )
        number, default = _number(rule.expression), defaults.get(threshold)
        if number is not None and default is not None and (math.isnan(number) or number < 0 <= default):
            why = "nothing exceeds it" if math.isnan(number) else "it is compared with what is never negative"
            least = " from 0 on" if default >= 0 else ""
            yield problem(
                rule,
                f"{threshold} cannot be {number:g}: {why}",
                f"write a number{least} (the default is {default:g})",
            )
        whose = ("run", run) if run else ("algorithm", algorithm)
        known_here = configured[whose[0]]
        if (
            whose[1]
            and known_here is not None
            and whose[1] not in known_here
            and rule.file.name != OVERRIDE_EXAMPLE
        ):
            message = f"{threshold} is for the {whose[0]} {whose[1]}, which is not configured"
            named = list(filter(None, known_here))
            remedy = _meant(whose[1], named) if named else f"no run names its {whose[0]}"
            yield problem(rule, message, remedy, "warning")
        earlier = first.setdefault((threshold, *whose), rule)
        if threshold and whose[1] and earlier is not rule:
            yield problem(
                rule,
                f"a second override of {threshold} for the {whose[0]} {whose[1]} (the first: {earlier.file}): "
                "two make the threshold's rule fail",
                "keep one of them",
            )


def _number(expression: Any) -> float | None:
    """The constant that ``vector(…)`` makes; None: it is no plain constant."""
    match expression:
        case promql.NumberLiteral():
            return float(expression.val)
        case promql.ParenExpr():
            return _number(expression.expr)
        case promql.UnaryExpr():
            number = _number(expression.expr)
            return None if number is None else -number
        case promql.Call() if expression.func.name == "vector":
            return _number(expression.args[0])
        case _:
            return None


def _defaults(rules: Sequence[Rule]) -> dict[str, float]:
    """The numbers that thresholds have where nothing overrides them, as far as they are plain."""
    found = {}
    for rule in rules:
        expression = rule.expression
        while isinstance(expression, promql.BinaryExpr):
            expression = expression.rhs
        number = _number(expression)
        if rule.body.get("record") == THRESHOLD and number is not None:
            found[str(rule.labels.get("threshold") or "")] = number
    return found


def _overridable(rules: Sequence[Rule]) -> frozenset[str]:
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
