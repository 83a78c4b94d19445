"""Leaving out rules that can say nothing must never leave out one that can."""

from __future__ import annotations

from typing import Any

import pytest

from fusewire_webhook.backtest.pruning import live_rules

RULES: list[dict[str, Any]] = [
    {"record": "kept", "expr": 'rl_a or kept{signal="x"}', "labels": {"signal": "x"}},
    {"record": "kept", "expr": 'rl_b or kept{signal="y"}', "labels": {"signal": "y"}},
    {"record": "number", "expr": "rl_a * 0 + 1", "labels": {"threshold": "one"}},
    {"record": "number", "expr": "rl_a * 0 + 2", "labels": {"threshold": "two"}},
    {"alert": "A", "expr": 'kept{signal="x"} > on () number{threshold="one"}', "labels": {"action": "trip"}},
    {"alert": "B", "expr": 'kept{signal="y"} > 1', "labels": {"action": "trip"}},
    {"alert": "C", "expr": 'number{threshold="two"} > 1', "labels": {"action": "notify"}},
]


def names(rules: list[dict[str, Any]]) -> list[str]:
    return [rule.get("alert") or f"{rule['record']}-{'-'.join(rule['labels'].values())}" for rule in rules]


def test_only_what_an_alert_of_interest_can_read_is_left() -> None:
    """Rules on missing series go, also those that read themselves, and numbers that nobody asks for."""
    assert names(live_rules(RULES, {"rl_a"}, actions=("trip",))) == ["kept-x", "number-one", "A"]
    assert names(live_rules(RULES, {"rl_a", "rl_b"}, actions=("notify",))) == ["number-two", "C"]
    assert live_rules(RULES, set(), actions=("trip", "notify")) == []


@pytest.mark.parametrize(
    ("expression", "live"),
    [
        ("rl_a", True),
        ("rl_b", False),
        ("rl_a or rl_b", True),
        ("rl_b or rl_a", True),
        ("rl_a and rl_b", False),
        ("rl_a unless rl_b", True),
        ("rl_b unless rl_a", False),
        ("rl_a + rl_b", False),
        ("rl_a > 1", True),
        ("absent(rl_b)", True),
        ("vector(1)", True),
        ("rl_a * scalar(rl_b)", True),
        ("max(last_over_time(rl_b[5m]))", False),
        ("max_over_time(rl_b[5m:1s])", False),
        ('{signal="x"}', True),
        ('{__name__=~"rl_.+", steps="3"}', True),
        ("holt_winters(rl_b[1m], 0.5, 0.5)", True),
        ("ALERTS", False),
        ('{__name__="rl_b"}', False),
        ('{__name__=~"rl_.*"}', True),
        ("-(rl_a)", True),
    ],
)
def test_emptiness_follows_promql(expression: str, live: bool) -> None:
    """An expression is dropped only if no result is possible with ``rl_a`` alone."""
    rule = {"alert": "A", "expr": expression, "labels": {"action": "trip"}}
    assert bool(live_rules([rule], {"rl_a"}, actions=("trip",))) is live


@pytest.mark.parametrize("name", ["ALERTS", "ALERTS_FOR_STATE"])
def test_an_alert_that_another_reads_is_kept(name: str) -> None:
    """Alerts are series too, with the labels that the rule gives them."""
    warn = {
        "alert": "Warn",
        "expr": "rl_a > 1",
        "labels": {"action": "notify", "level": 3, "of": "{{ $labels.run }}"},
    }
    mute = {"alert": "Mute", "expr": "rl_b > 1", "labels": {"action": "notify"}}
    other = {"alert": "Other", "expr": "rl_a > 2", "labels": {"action": "notify"}}

    def kept(reads: str) -> list[str]:
        trip = {"alert": "Trip", "expr": f"count({name}{{{reads}}})", "labels": {"action": "trip"}}
        return names(live_rules([warn, mute, other, trip], {"rl_a"}, actions=("trip",)))

    assert kept('alertname="Warn",alertstate="firing"') == ["Warn", "Trip"]
    assert kept('level="3",of="r"') == ["Warn", "Other", "Trip"], "Other may have them from its series"
    assert kept('level="4"') == ["Other", "Trip"]
    assert kept('alertname="Mute"') == []


def test_the_number_of_topk_is_read_too() -> None:
    """A rule that only the parameter of an aggregation reads is kept."""
    rules: list[dict[str, Any]] = [
        {"record": "few", "expr": "rl_a", "labels": {}},
        {"alert": "A", "expr": "topk(scalar(few), rl_a)", "labels": {"action": "trip"}},
    ]
    assert len(live_rules(rules, {"rl_a"}, actions=("trip",))) == 2
