"""What the loaded rules say about the watch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fusewire_webhook.watch.prometheus import Rule, RuleGroup
from fusewire_webhook.watch.triprules import inspect

NOW = 1_000_000.0


def rule(name: str = "KLSpike", **changes: Any) -> Rule:
    trip = Rule(
        kind="alerting",
        name=name,
        query="rl_approx_kl > on (run) fusewire:threshold",
        labels={"action": "trip"},
        health="ok",
        for_seconds=30.0,
        last_evaluation=NOW,
    )
    return replace(trip, **changes)


def group(*rules: Rule, **changes: Any) -> RuleGroup:
    plain = RuleGroup(
        name="g", file="f", interval=1.0, evaluation_time=0.01, last_evaluation=NOW - 0.5, rules=rules
    )
    return replace(plain, **changes)


THRESHOLD = rule("fusewire:threshold", kind="recording", query="vector(1)", labels={}, for_seconds=0.0)
WARNING = rule("Warn", labels={"action": "notify"}, query="up == 0", health="err", last_error="x")


def test_healthy_rules_have_no_problems_and_know_their_longest_for() -> None:
    """Healthy, recent trip rules; a failing rule that trips nothing does not matter."""
    found = inspect([group(rule(), WARNING, THRESHOLD)], now=NOW)
    assert (found.problems, found.longest_for, found.interval, found.trips) == ((), 30.0, 1.0, 1)


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ([], "no rule with action=trip is loaded: add the rules/ folder to rule_files"),
        ([group(rule(health="err", last_error="duplicate"))], "rule KLSpike of group g is err: duplicate"),
        ([group(rule(health="unknown"))], "rule KLSpike of group g is unknown: not evaluated yet"),
        (
            [group(rule()), group(replace(THRESHOLD, health="err", last_error="y"), name="t")],
            "rule fusewire:threshold of group t is err: y",
        ),
        ([group(rule(), last_evaluation=NOW - 10)], "group g was last evaluated 10.0 s ago, its interval is 1 s"),
        ([group(rule(), last_evaluation=-1.0)], "group g was never evaluated"),
        (
            [group(rule(), evaluation_time=2.5), group(rule("B"), name="ok", evaluation_time=1.9)],
            "group g takes 2.50 s to evaluate, its interval is 1 s",
        ),
    ],
)
def test_each_problem_is_named(groups: list[RuleGroup], problem: str) -> None:
    """Missing, failing, late and slow trip rules are problems, and so are the recording rules that they read."""
    assert problem in inspect(groups, now=NOW).problems


@pytest.mark.parametrize(
    "changed",
    [
        [group(rule(query="rl_approx_kl > 9"), THRESHOLD)],
        [group(rule(for_seconds=60.0), THRESHOLD)],
        [group(rule(keep_firing_for_seconds=1.0), THRESHOLD)],
        [group(rule(labels={"action": "trip", "class": "infrastructure"}), THRESHOLD)],
        [group(rule(), replace(THRESHOLD, query="vector(2)"))],
        [group(rule(), THRESHOLD, interval=2.0)],
        [group(rule(), rule("Another"), THRESHOLD)],
        [group(THRESHOLD)],
    ],
)
def test_fingerprint_changes_with_anything_that_decides(changed: list[RuleGroup]) -> None:
    """An edit of a trip rule, or of what it reads, changes the fingerprint."""
    before = inspect([group(rule(), THRESHOLD)], now=NOW).fingerprint
    assert inspect(changed, now=NOW).fingerprint != before


def test_fingerprint_ignores_what_does_not_decide() -> None:
    """Order, file, health, evaluation times and rules that trip nothing leave the fingerprint as it is."""
    before = inspect([group(rule(), THRESHOLD)], now=NOW).fingerprint
    same = [
        group(THRESHOLD, WARNING, rule(health="err", last_evaluation=1.0), file="elsewhere", evaluation_time=9.0)
    ]
    assert inspect(same, now=NOW).fingerprint == before
