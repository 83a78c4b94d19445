"""The gate's verdict, condition by condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.watch.gate import (
    TRIPS,
    GateFacts,
    GatePolicy,
    WindowFacts,
    judge,
    missing_signals,
    silent_signals,
    step_query,
)
from fusewire_webhook.watch.triprules import RuleSet

from .conftest import ROOT

RULES = RuleSet(fingerprint="a", trips=5, longest_for=60.0, interval=1.0, problems=())
WINDOW = WindowFacts(scrapes=200.0, recent_scrapes=74.0, missing=(), firing=(), pending=(), signals=("approx_kl",))
POLICY = GatePolicy(watch_steps=100)
CLEAN = GateFacts(
    run="r",
    snapshot="step-000000000500-a002",
    step=500,
    attempt=2,
    clean_seconds=200.0,
    window_seconds=200.0,
    alive_seconds=200.0,
    last_step=600.0,
    rules=RULES,
    fingerprint="a",
    window=WINDOW,
    damage=(),
)
END = replace(WINDOW, scrapes=3.0, recent_scrapes=0.0, last_step=500.0, silence=196.0)
DONE = replace(CLEAN, completed=True, last_step=None, final_step=500, window=END)
"""The last snapshot of a completed run: written 4 s before the last scrape, 200 s ago."""


def window(**changes: Any) -> GateFacts:
    return replace(CLEAN, window=replace(WINDOW, **changes))


def test_patience_covers_the_longest_for_the_window_and_two_rounds_of_intervals() -> None:
    """T is longest ``for:`` + window + 2 × (scrape + evaluation interval), unless the configuration names it."""
    assert POLICY.patience(RULES) == 60 + 10 + 2 * (1 + 1)
    assert GatePolicy(watch_seconds=3.0).patience(RULES) == 3.0


def test_clean_facts_pass_with_evidence() -> None:
    """All six conditions hold: pass, and the evidence says by what."""
    verdict = judge(CLEAN, POLICY)
    assert (verdict.answer, verdict.reasons) == ("pass", ())
    assert verdict.evidence["watch_seconds"] == 74.0
    assert verdict.evidence["scrapes"] == 200.0
    assert verdict.evidence["rules"] == "a"


@pytest.mark.parametrize(
    ("facts", "answer", "reason"),
    [
        (replace(CLEAN, last_step=599.0), "inconclusive", "steps: Prometheus saw 99 of 100 steps after it"),
        (replace(CLEAN, last_step=None), "inconclusive", "steps: Prometheus saw 0 of 100 steps after it"),
        (replace(CLEAN, clean_seconds=73.9), "inconclusive", "time: 73.9 of 74.0 s passed"),
        (window(scrapes=179.0), "inconclusive", "scrapes: 179 of 200 succeeded since the snapshot"),
        (window(recent_scrapes=66.0), "inconclusive", "scrapes: 66 of 74 succeeded in the last 74.0 s"),
        (replace(CLEAN, rules=replace(RULES, problems=("x is err",))), "inconclusive", "rules: x is err"),
        (replace(CLEAN, fingerprint="b"), "inconclusive", "rules: the trip rules were changed after the snapshot"),
        (window(missing=("approx_kl",)), "inconclusive", "signal: approx_kl is no longer reported"),
        (window(firing=("KLSpike",)), "fail", "tripped: KLSpike fired after the snapshot"),
        (replace(CLEAN, firing=("KLSpike",)), "fail", "tripped: KLSpike fired after the snapshot"),
        (window(pending=("KLSpike",)), "inconclusive", "pending: KLSpike was pending within the last 74.0 s"),
        (
            replace(CLEAN, pending=("KLSpike",)),
            "inconclusive",
            "pending: KLSpike was pending within the last 74.0 s",
        ),
        (window(unattributed=("X",)), "inconclusive", "unattributed: X names no run; add the label to its rule"),
        (replace(CLEAN, damage=("state.pt: hash",)), "fail", "damaged: state.pt: hash"),
        (replace(CLEAN, degraded=("watchdog: silent",)), "inconclusive", "degraded: watchdog: silent"),
        (replace(CLEAN, paused=True), "inconclusive", "paused: the run is paused"),
        (replace(CLEAN, errors=("no answer",)), "error", "no answer"),
        (replace(CLEAN, window=None), "inconclusive", "not checked yet: what Prometheus saw since"),
        (replace(CLEAN, damage=None), "inconclusive", "not checked yet: its files"),
        (replace(CLEAN, rules=None, fingerprint=""), "inconclusive", "not checked yet: the rules"),
    ],
)
def test_each_condition_alone_holds_back(facts: GateFacts, answer: str, reason: str) -> None:
    """One condition that does not hold decides alone, with a reason for a person."""
    verdict = judge(facts, POLICY)
    assert verdict.answer == answer
    assert reason in verdict.reasons


def test_a_firing_alert_wins_over_an_unanswered_question() -> None:
    """What fired has fired, even where another question was not answered."""
    assert judge(replace(CLEAN, firing=("KLSpike",), errors=("no answer",)), POLICY).answer == "fail"


def test_completed_run_is_judged_by_time() -> None:
    """No steps come after the end, nor scrapes: what was seen of the last ones, T, alerts and files decide."""
    assert judge(DONE, POLICY).answer == "pass"
    early = judge(replace(DONE, clean_seconds=1.0), POLICY)
    assert (early.answer, early.final) == ("inconclusive", False)
    assert judge(replace(DONE, window=replace(END, firing=("X",))), POLICY).answer == "fail"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (
            replace(DONE, window=replace(END, last_step=400.0)),
            "steps: Prometheus saw step 400 last, the training ended at step 500",
        ),
        (
            replace(DONE, final_step=None, window=replace(END, last_step=None)),
            "steps: Prometheus saw no step, the training ended at step 500",
        ),
        (replace(DONE, final_step=520), "steps: Prometheus saw step 500 last, the training ended at step 520"),
        (replace(DONE, nonfinite=("value_loss was not finite",)), "values: value_loss was not finite"),
        (replace(DONE, window=replace(END, silence=None)), "scrapes: none succeeded since the snapshot"),
        (
            replace(DONE, window=replace(END, silence=100.0)),
            "scrapes: 3 of 100 succeeded between the snapshot and the end",
        ),
        (
            replace(DONE, window=replace(END, missing=("approx_kl",))),
            "signal: approx_kl was no longer reported at the end",
        ),
        (
            replace(DONE, window=replace(END, pending=("KLSpike",))),
            "pending: KLSpike was pending when the training ended",
        ),
    ],
)
def test_what_a_completed_run_left_unseen_holds_back_for_good(facts: GateFacts, reason: str) -> None:
    """Its last steps unseen, bad or in doubt: no pass, and as nothing comes any more, the verdict is final."""
    verdict = judge(facts, POLICY)
    assert (verdict.answer, verdict.final, verdict.reasons) == ("inconclusive", True, (reason,))


def test_only_what_was_dense_is_missed_at_the_end() -> None:
    """A rare signal need not have come between the last snapshot and the end, nor a dense one in so few updates."""
    before = {"step": 50.0, "approx_kl": 50.0, "evaluation_return": 3.0}
    end = {"step": 5.0, "value_loss": 5.0}
    assert missing_signals(["rare"], before, end, end, dense_only=True) == ("approx_kl",)
    assert silent_signals({"": 10.0, "kl": 8.0}, {"": 12.0, "kl": 8.0}, least_updates=5) == ()
    assert silent_signals({"": 10.0, "kl": 8.0}, {"": 15.0, "kl": 8.0}, least_updates=5) == ("kl",)


@given(
    st.fixed_dictionaries(
        {
            "last_step": st.none() | st.floats(0, 1e6),
            "clean_seconds": st.floats(0, 500),
            "errors": st.sampled_from([(), ("no answer",)]),
            "firing": st.sampled_from([(), ("X",)]),
            "damage": st.sampled_from([None, (), ("bad",)]),
        }
    ),
    st.none() | st.floats(0, 200),
)
def test_only_complete_and_clean_facts_pass(changes: dict[str, Any], scrapes: float | None) -> None:
    """Whatever is missing or speaks against it, the answer is not pass; and each other answer has a reason."""
    asked = None if scrapes is None else replace(WINDOW, scrapes=scrapes)
    verdict = judge(replace(CLEAN, window=asked, **changes), POLICY)
    good = (
        changes["last_step"] is not None
        and changes["last_step"] >= 600
        and changes["clean_seconds"] >= 74
        and scrapes is not None
        and scrapes >= 180
        and not changes["errors"]
        and not changes["firing"]
        and changes["damage"] == ()
    )
    assert (verdict.answer == "pass") == good
    assert bool(verdict.reasons) == (not good)


@pytest.mark.parametrize(
    ("before", "within", "lately", "missing"),
    [
        ({"step": 10, "kl": 10}, {"step": 20, "kl": 20}, {"step": 5, "kl": 5}, ()),
        ({"step": 10, "kl": 10}, {"step": 20, "kl": 3}, {"step": 5}, ("kl",)),
        ({"step": 10, "kl": 10}, {"step": 20}, {"step": 5}, ("kl",)),
        ({}, {"step": 20, "kl": 12}, {"step": 5}, ("kl",)),
        ({"step": 10, "eval": 1}, {"step": 20, "eval": 1}, {"step": 5}, ()),
        ({"step": 10, "eval": 1}, {"step": 20}, {"step": 5}, ("eval",)),
    ],
)
def test_missing_signals(
    before: dict[str, float], within: dict[str, float], lately: dict[str, float], missing: tuple[str, ...]
) -> None:
    """A regular signal must be there lately, a rare one at least once since the snapshot."""
    assert missing_signals((), before, within, lately) == missing


def test_signal_known_from_before_the_webhook_started_is_missed() -> None:
    """What was reported earlier in the run is missed although no window shows it."""
    assert missing_signals({"kl"}, {}, {"step": 9.0}, {"step": 3.0}) == ("kl",)


@pytest.mark.parametrize(
    ("now", "silent"),
    [
        ({"": 200.0, "kl": 200.0, "eval": 2.0}, ()),
        ({"": 200.0, "kl": 101.0, "eval": 1.0}, ("kl",)),
        ({"": 200.0, "eval": 1.0}, ("kl",)),
        ({"": 100.0, "kl": 100.0, "eval": 1.0}, ()),
    ],
)
def test_silent_signals(now: dict[str, float], silent: tuple[str, ...]) -> None:
    """A signal of most updates that comes no more is silent, its last value exported or not; a rare one is not."""
    assert silent_signals({"": 100.0, "kl": 100.0, "eval": 1.0}, now) == silent


def test_gate_rules_record_what_the_gate_asks() -> None:
    """rules/gate.rules.yaml shows the gate's own fleet-wide expressions, character for character."""
    (group,) = yaml.safe_load((ROOT / "rules" / "gate.rules.yaml").read_text())["groups"]
    recorded = {rule["record"]: rule["expr"] for rule in group["rules"]}
    assert recorded["fusewire:gate_step:max"] == step_query(1.0)
    assert recorded["fusewire:gate_trips:count"] == TRIPS
