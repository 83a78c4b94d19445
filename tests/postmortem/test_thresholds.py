"""Which plain bound is read out of a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fusewire_webhook.postmortem.thresholds import Bound, bounds, signals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rl_approx_kl > 0.5", [Bound(signal="approx_kl", op=">", value=0.5)]),
        (
            'min by (run) (last_over_time(rl_policy_entropy_run_max{steps="3"}[4s])) < -1.5',
            [Bound(signal="policy_entropy", op="<", value=-1.5)],
        ),
        ("(rl_a > 1) or rl_b < 2", [Bound(signal="a", op=">", value=1), Bound(signal="b", op="<", value=2)]),
        ("max(rl_a > 3)", [Bound(signal="a", op=">", value=3)]),
        (
            'rl_a > ignoring (threshold) fusewire:threshold{threshold="a"}',
            [Bound(signal="a", op=">", value=None, query='fusewire:threshold{threshold="a"}')],
        ),
        ("rl_a / rl_b > 2", []),
        ("rl_a > rl_b", []),
        ("up == 0", []),
        ("rl_a >", []),
    ],
)
def test_bounds(expression: str, expected: list[Bound]) -> None:
    """A bound is plain where one signal, in its own unit, is compared with a number or a named threshold."""
    assert bounds(expression) == expected


def test_every_shipped_rule_can_be_read() -> None:
    """No expression of the rules that come with fusewire stops a postmortem, and KLSpike has its bound."""
    found = {}
    for file in (ROOT / "rules").rglob("*.rules.yaml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                found[rule.get("alert", rule.get("record"))] = bounds(rule["expr"])
    assert found["KLSpike"][0].signal == "approx_kl"


def test_signals_of_an_expression() -> None:
    """The signals behind an expression, without what the exporter derives from them."""
    assert signals('rl_approx_kl_run_min{steps="1"} > 2 and rl_value_loss > 1') == ["approx_kl", "value_loss"]
