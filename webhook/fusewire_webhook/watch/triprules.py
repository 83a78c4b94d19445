"""What the loaded rules say about the watch: are the trip rules there, healthy, recent, and still the same?

Pure: it reads an answer of ``/api/v1/rules`` and Prometheus' own clock. A trip rule is only as good as the
recording rules that it reads (one that fails leaves the trip rule "healthy" on an empty result): they count too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusewire_webhook.watch.prometheus import Rule, RuleGroup

LATE_INTERVALS = 3.0
LATE_SLACK_SECONDS = 0.5
"""A group is late when its last evaluation lies more than 3 intervals and half a second back."""
SLOW_INTERVALS = 2.0
"""A group is slow when an evaluation takes longer than 2 intervals: the gate's patience allows for so much."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """The trip rules, with the recording rules that they read. Times in seconds."""

    fingerprint: str
    """Changes with any name, expression, ``for``, ``keep_firing_for``, label or interval among them."""
    trips: int
    """Number of trip rules."""
    longest_for: float
    interval: float
    """Longest evaluation interval of their groups."""
    problems: tuple[str, ...]
    """Why they cannot be trusted now; empty when all is well."""


def is_trip(rule: Rule) -> bool:
    """Does an alert of this rule stop a run?"""
    return rule.kind == "alerting" and rule.labels.get("action") == "trip"


def is_watched(rule: Rule) -> bool:
    """Does an alert of this rule stop a run or hold its promotions back?"""
    return rule.kind == "alerting" and rule.labels.get("action") in {"trip", "hold"}


def inspect(groups: Sequence[RuleGroup], *, now: float) -> RuleSet:
    """Judge the loaded rules; ``now`` is Unix seconds of Prometheus' own clock, read just before ``groups``."""
    rules = list(_relevant(groups))
    trips = [rule for _, rule in rules if is_trip(rule)]
    used = list({id(group): group for group, _ in rules}.values())
    problems = [] if trips else ["no rule with action=trip is loaded: add the rules/ folder to rule_files"]
    problems += [problem for group, rule in rules for problem in _rule_problems(group, rule)]
    problems += [problem for group in used for problem in _group_problems(group, now)]
    return RuleSet(
        fingerprint=_fingerprint(rules),
        trips=len(trips),
        longest_for=max((rule.for_seconds for rule in trips), default=0.0),
        interval=max((group.interval for group in used), default=0.0),
        problems=tuple(problems),
    )


def _relevant(groups: Sequence[RuleGroup]) -> Iterable[tuple[RuleGroup, Rule]]:
    """The trip and hold rules and, transitively, every recording rule whose name they mention."""
    pairs = [(group, rule) for group in groups for rule in group.rules]
    chosen = [is_watched(rule) for _, rule in pairs]
    mentioned: set[str] = set()
    grown = True
    while grown:
        before = len(mentioned)
        for (_, rule), taken in zip(pairs, chosen, strict=True):
            if taken:
                mentioned.update(_NAME.findall(rule.query))
        chosen = [
            taken or (rule.kind == "recording" and rule.name in mentioned)
            for (_, rule), taken in zip(pairs, chosen, strict=True)
        ]
        grown = len(mentioned) > before
    return [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]


def _rule_problems(group: RuleGroup, rule: Rule) -> Iterable[str]:
    if rule.health != "ok":
        yield f"rule {rule.name} of group {group.name} is {rule.health}: {rule.last_error or 'not evaluated yet'}"


def _group_problems(group: RuleGroup, now: float) -> Iterable[str]:
    age = now - group.last_evaluation
    if group.last_evaluation < 0:
        yield f"group {group.name} was never evaluated"
    elif age > LATE_INTERVALS * group.interval + LATE_SLACK_SECONDS:
        yield f"group {group.name} was last evaluated {age:.1f} s ago, its interval is {group.interval:g} s"
    if group.evaluation_time > SLOW_INTERVALS * group.interval:
        yield (
            f"group {group.name} takes {group.evaluation_time:.2f} s to evaluate, "
            f"its interval is {group.interval:g} s"
        )


def _fingerprint(rules: Iterable[tuple[RuleGroup, Rule]]) -> str:
    lines = sorted(
        json.dumps(
            [
                group.name,
                group.interval,
                rule.kind,
                rule.name,
                rule.query,
                rule.for_seconds,
                rule.keep_firing_for_seconds,
                sorted(rule.labels.items()),
            ]
        )
        for group, rule in rules
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
