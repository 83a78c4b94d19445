"""Each item of the audit on data that should pass, that should not, and on none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fusewire_webhook.postmortem.audit import Finding, ReplayFindings, RunData, Start
from fusewire_webhook.postmortem.checks import (
    CHECKS,
    advantage_normalisation,
    audit,
    gradient_clipping,
    replay_contamination,
    reward_hacking,
    reward_scale,
)
from fusewire_webhook.postmortem.schedule import learning_rate
from fusewire_webhook.postmortem.traces import Trace

from .recorded import series


def data(algorithm: str = "ppo", **signals: Callable[[float], float] | float) -> RunData:
    """An attempt of 40 samples whose signals are constants or functions of the second."""
    traces: dict[str, Trace] = {
        name: series(value if callable(value) else (lambda _t, fixed=value: fixed))
        for name, value in signals.items()
    }
    return RunData(algorithm=algorithm, signals=traces)


def test_nothing_known_means_unknown() -> None:
    """Without data no item passes and none accuses."""
    assert [finding.verdict for finding in audit(RunData())] == ["unknown"] * len(CHECKS)


def test_one_sample_is_no_trend() -> None:
    """No item fails on series of a single sample, or of none but NaN."""
    for value in (1.0, 0.0, math.nan, math.inf):
        trace = series(lambda _, fixed=value: fixed, end=series(lambda _: 0.0).times[0] + 1)  # type: ignore[misc]
        names = ["grad_norm", "grad_clip", "advantage_std", "reward_std", "episode_return", "learning_rate"]
        assert len(audit(RunData(signals=dict.fromkeys(names, trace)))) == len(CHECKS)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (ReplayFindings(rows=1000, invalid_rewards=0, across_crashes=0), "pass"),
        (ReplayFindings(rows=1000, invalid_rewards=3, across_crashes=0), "suspicious"),
        (ReplayFindings(rows=1000, invalid_rewards=0, across_crashes=1), "suspicious"),
    ],
)
def test_replay_rows(found: ReplayFindings, verdict: str) -> None:
    """One invalid reward or one transition across a crash is suspicious."""
    assert replay_contamination(RunData(replay=found)).verdict == verdict


def test_replay_buffer_that_cannot_say() -> None:
    """An error of the replay buffer is unknown, with its words."""
    finding = replay_contamination(RunData(replay_problem="OSError: connection refused"))
    assert (finding.verdict, "connection refused" in finding.evidence) == ("unknown", True)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (data(grad_norm=3.0), "unknown"),
        (data(grad_norm=3.0, grad_clip=0.5), "suspicious"),
        (data(grad_norm=lambda t: 3.0 if t % 2 else 0.1, grad_clip=0.5), "pass"),
        (data(grad_norm=lambda t: 500.0 if t > 18 else 0.1, grad_clip=0.5), "suspicious"),
        (data(grad_norm=lambda t: 500.0 if t > 36 else 0.1, grad_clip=0.5), "pass"),
        (data(grad_norm=lambda t: math.nan if t == 20 else 0.1, grad_clip=0.5), "suspicious"),
        (data(grad_norm=lambda t: math.inf if t == 20 else 0.1, grad_clip=0.5), "pass"),
        (data(grad_norm=lambda t: math.inf if t > 37 else 0.1, grad_clip=0.5), "suspicious"),
        (data(grad_norm=math.nan), "suspicious"),
        (data(grad_norm=30.0, grad_clip=0.5), "suspicious"),
        (data(grad_norm=0.1, grad_clip=0.5), "pass"),
        (data(grad_norm=0.1, grad_clip=10.0), "suspicious"),
        (data("SAC", grad_norm=0.1, grad_clip=1.0), "suspicious"),
        (data("grpo", grad_norm=0.1, grad_clip=1.0), "pass"),
    ],
)
def test_gradient_clipping(given: RunData, verdict: str) -> None:
    """Too wide for PPO and SAC, nearly always at work, or often all that is left; a lone Inf is loss scaling."""
    assert gradient_clipping(given).verdict == verdict


def test_share_of_clipped_updates_is_said() -> None:
    """The evidence counts the samples above the clip."""
    finding = gradient_clipping(data(grad_norm=lambda t: 2.0 if t < 10 else 0.1, grad_clip=0.5))
    assert "25% of 40 samples were clipped" in finding.evidence


@pytest.mark.parametrize(
    ("spread", "verdict"),
    [
        (1.0, "pass"),
        (lambda t: 1.0 if t < 35 else 1e-4, "suspicious"),
        (1e-9, "suspicious"),
        (lambda t: math.nan if t == 20 else 1.0, "suspicious"),
    ],
)
def test_advantage_normalisation(spread: Any, verdict: str) -> None:
    """A standard deviation near zero, absolutely or against its own median, is suspicious."""
    assert advantage_normalisation(data(advantage_std=spread)).verdict == verdict


@pytest.mark.parametrize(
    ("spread", "verdict"),
    [
        (1.0, "pass"),
        (0.0, "pass"),
        (lambda t: 1.0 if t < 20 else 20.0, "suspicious"),
        (lambda t: 20.0 if t < 20 else 1.0, "suspicious"),
        (lambda t: 0.0 if t < 20 else 1.0, "suspicious"),
    ],
)
def test_reward_scale(spread: Any, verdict: str) -> None:
    """A tenfold change of the reward's spread, in either direction, is drift."""
    assert reward_scale(data(reward_std=spread)).verdict == verdict


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (data(episode_return=lambda t: t), "unknown"),
        (data(episode_return=lambda t: t, evaluation_return=lambda t: t), "pass"),
        (data(episode_return=lambda t: t, evaluation_return=lambda t: -t), "suspicious"),
        (data(episode_return=lambda t: -t, evaluation_return=lambda t: -t), "pass"),
        (data(episode_return=lambda t: 1 + t, episode_length=lambda t: 1 + t), "pass"),
        (data(episode_return=lambda t: 1 + t, episode_length=50.0), "suspicious"),
        (data(episode_return=lambda t: t - 500, episode_length=50.0), "unknown"),
    ],
)
def test_reward_hacking(given: RunData, verdict: str) -> None:
    """A return that rises while the evaluation falls, or that pays ever more for each step, is suspicious."""
    assert reward_hacking(given).verdict == verdict


@pytest.mark.parametrize(
    ("signals", "item"),
    [
        (("grad_norm", "grad_clip"), gradient_clipping),
        (("advantage_std",), advantage_normalisation),
        (("reward_std",), reward_scale),
        (("episode_return", "evaluation_return", "episode_length"), reward_hacking),
        (("evaluation_return", "episode_return"), reward_hacking),
        (("learning_rate",), learning_rate),
    ],
)
@pytest.mark.parametrize("first", [0, 20, 38], ids=["all", "half", "end"])
def test_nan_never_passes(signals: tuple[str, ...], item: Callable[[RunData], Finding], first: int) -> None:
    """An item whose own signal is not finite, wholly or in part, is suspicious and says of how many samples."""
    broken, *sound = signals
    given = data(**{broken: lambda t: math.nan if t >= first else 0.1}, **dict.fromkeys(sound, 0.5))
    finding = item(given)
    assert finding.verdict == "suspicious"
    assert "not finite" in finding.evidence
    assert str(40 - first) in finding.evidence


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [
        (3e-4, "pass"),
        (lambda t: 3e-4 * (1 - t / 80), "pass"),
        (lambda t: 3e-4 * min(1.0, t / 10), "pass"),
        (lambda t: 3e-4 * min(1.0, t / 30), "pass"),
        (lambda t: 3e-4 * (0.05 + 0.95 * math.cos(t / 40 * math.pi / 2) ** 2), "pass"),
        (lambda t: 3e-4 * math.exp(-t / 20), "pass"),
        (lambda t: 3e-4 / math.sqrt(1 + t), "pass"),
        (lambda t: 3e-4 / math.sqrt(1 + 20 * t), "unknown"),
        (lambda t: 3e-4 * math.exp(-t / 10), "unknown"),
        (lambda t: 3e-4 * max(0.02, 1 - t / 20), "suspicious"),
        (lambda t: 3e-4 if t < 30 else 1e-7, "suspicious"),
        (lambda t: 3e-4 if t < 38 else 0.3, "suspicious"),
        (lambda t: 3e-4 if t < 15 else 3e-3, "suspicious"),
        (lambda t: 3e-4 * math.exp(-t / 20) * (1 if t < 39 else 100), "suspicious"),
        (lambda t: math.inf if t > 38 else 3e-4, "suspicious"),
    ],
)
def test_learning_rate_schedule(rate: Any, verdict: str) -> None:
    """A schedule that ran out and a jump are suspicious; a warm-up and any steady decay are not."""
    assert learning_rate(data(learning_rate=rate)).verdict == verdict


@pytest.mark.parametrize(
    ("planned", "lowest", "verdict"), [(400, 0.02, "suspicious"), (42, 0.02, "pass"), (41, 0.001, "pass")]
)
def test_decay_is_judged_by_progress(planned: int, lowest: float, verdict: str) -> None:
    """The same decay is too early at a tenth of the planned updates, and as it should be at their end."""
    given = data(learning_rate=lambda t: 3e-4 * max(lowest, 1 - t / 39), progress=lambda t: (t + 1) / planned)
    finding = learning_rate(given)
    assert finding.verdict == verdict
    assert ("of the planned updates" in finding.evidence) == (verdict == "suspicious")


def test_a_decay_did_not_rise() -> None:
    """What only ever fell is not said to have jumped."""
    assert "jumped" not in learning_rate(data(learning_rate=lambda t: 3e-4 * math.exp(-t))).evidence


def _restart(**more: float) -> Finding:
    start: dict[str, float] = {"asked": 0.5, "parent_asked": 1.0, "rate": 5e-4, "parent_rate": 1e-3, **more}
    return learning_rate(RunData(starts=(Start(attempt=1, **start),)))  # type: ignore[arg-type]


def test_restored_learning_rate() -> None:
    """The first rate after a restart is the snapshot's, times the change of scale; anything else is suspicious."""
    assert _restart().verdict == "pass"
    assert _restart(rate=1e-3).verdict == "suspicious"
    assert _restart(parent_asked=0.5, rate=1e-3).verdict == "pass"
    assert _restart(reported_scale=1.0).verdict == "suspicious"


def test_rate_that_is_not_reported_accuses_nobody() -> None:
    """A restart whose rate nobody has seen yet leaves the schedule's verdict to the rest."""
    unseen = Start(attempt=1, asked=0.5, parent_asked=1.0)
    assert learning_rate(RunData(starts=(unseen,))).verdict == "unknown"
    steady = data(learning_rate=3e-4).signals
    assert learning_rate(RunData(signals=steady, starts=(unseen,))).verdict == "pass"
