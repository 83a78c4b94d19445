"""The items of the audit: pure functions from an attempt's data to a finding, and the bounds that they judge by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusewire_webhook.postmortem.audit import FEWEST, Finding, RunData, absent, finding, not_finite
from fusewire_webhook.postmortem.schedule import learning_rate
from fusewire_webhook.postmortem.traces import Floats, Trace

CLIP_SIGNALS = ("grad_clip", "max_grad_norm")
"""Signals that a trainer may declare to report its gradient clip."""
LARGEST_CLIP = 0.5
"""Of PPO and SAC: common implementations clip the gradient's norm at 0.5."""
CLIPPED_SHARE = 0.9
"""Nine updates in ten clipped: the clip sets the step, the learning rate only scales it."""
CUT_SHARE, CUT_TIMES = 0.25, 10.0
"""One update in four clipped to a tenth of its length or less: only the direction is left."""
ROUTINE_INFINITE = 0.01
"""Share of infinite norms that is nobody's fault: loss scaling under fp16 tries, and skips the update."""
SMALLEST_STD, STD_SHARE = 1e-6, 1e-3
"""Advantages are divided by std + epsilon (1e-8 in common implementations): near zero, noise is blown up."""
DRIFT = 10.0
"""Change of the reward's scale from the first to the last quarter of the attempt."""
DENSITY_DRIFT = 3.0
"""Growth of the return for each environment step."""
TREND_SHARE = 0.2
"""A change counts as rise or fall from this share of the series' whole range."""


def audit(data: RunData) -> tuple[Finding, ...]:
    """Every item, in the order in which they are shown."""
    return tuple(check(data) for check in CHECKS)


def replay_contamination(data: RunData) -> Finding:
    """Invalid rewards, or transitions across an environment's crash, among the attempt's rows."""
    item, found = "Replay buffer contamination", data.replay
    if data.replay_problem:
        return Finding(
            item=item, verdict="unknown", evidence=f"The replay buffer could not say: {data.replay_problem}"
        )
    if found is None:
        return Finding(item=item, verdict="unknown", evidence="No replay buffer is connected.")
    bad = found.invalid_rewards + found.across_crashes
    text = (
        f"{found.rows:,} rows: {found.invalid_rewards:,} invalid rewards, {found.across_crashes:,} transitions "
        f"across environment crashes.{' ' + found.note if found.note else ''}"
    )
    return Finding(item=item, verdict="suspicious" if bad else "pass", evidence=text)


def gradient_clipping(data: RunData) -> Finding:
    """The gradient's norm against the clip that the trainer reports."""
    item = "Gradient clipping"
    norms, clips = data.get("grad_norm"), next(filter(None, map(data.get, CLIP_SIGNALS)), None)
    clip = float(clips.finite[-1]) if clips is not None and len(clips.finite) else None
    told, reasons = "", []
    if norms is not None:
        told = _norms(norms)
        if _broken_norms(norms):
            reasons.append(not_finite("grad_norm", norms))
    if clip is None or clip <= 0:
        known = told or "The norm is not reported (signal grad_norm)."
        told = f"{known} The clip is not reported: declare a signal {CLIP_SIGNALS[0]} to have it judged."
        return finding(item, reasons, [told], otherwise="unknown")
    if clip > LARGEST_CLIP and data.algorithm.lower() in {"ppo", "sac"}:
        reasons.append(
            f"The clip {clip:g} is above {LARGEST_CLIP:g}, which {data.algorithm.upper()} usually takes."
        )
    if norms is None or not len(norms.finite):
        known = told or "The norm is not reported (signal grad_norm)."
        return finding(item, reasons, [f"{known} The clip is {clip:g}."], otherwise="unknown")
    share, cut = float((norms.finite > clip).mean()), float((norms.finite >= CUT_TIMES * clip).mean())
    told += f" The clip is {clip:g}: {share:.0%} of {len(norms.finite)} samples were clipped, {cut:.0%} to a tenth."
    if share >= CLIPPED_SHARE:
        reasons.append("Nearly every update was clipped: the clip set the size of the steps.")
    if cut >= CUT_SHARE:
        reasons.append("Many updates were cut to a small part of themselves: only their direction was used.")
    return finding(item, reasons, [told])


def advantage_normalisation(data: RunData) -> Finding:
    """Whether the advantages were divided by next to nothing."""
    item, spread = "Advantage normalisation", data.get("advantage_std")
    if spread is None:
        return absent(data, item, "advantage_std")
    if spread.bad:
        return finding(item, [not_finite("advantage_std", spread)], [])
    median, late = float(np.median(spread.values)), _quarter(spread.values, last=True)
    lowest = float(late.min())
    text = f"Standard deviation: median {median:.4g}, lowest towards the trip {lowest:.4g}."
    if lowest < SMALLEST_STD or lowest < STD_SHARE * median:
        return Finding(
            item=item,
            verdict="suspicious",
            evidence=f"{text} Divided by so little, noise becomes a gradient: mind the epsilon.",
        )
    return Finding(item=item, verdict="pass", evidence=text)


def reward_scale(data: RunData) -> Finding:
    """Whether the rewards changed their scale under the critic."""
    item, spread = "Reward scale drift", data.get("reward_std")
    if spread is None:
        return absent(data, item, "reward_std")
    if spread.bad:
        return finding(item, [not_finite("reward_std", spread)], [])
    if len(spread) < FEWEST:
        return absent(data, item, "reward_std")
    early, late = (float(np.median(_quarter(spread.finite, last=last))) for last in (False, True))
    text = f"Standard deviation of the rewards: {early:.4g} in the first quarter, {late:.4g} in the last."
    low, high = sorted((early, late))
    drifted = high > 0 and (low <= 0 or high / low >= DRIFT)
    return Finding(item=item, verdict="suspicious" if drifted else "pass", evidence=text)


def reward_hacking(data: RunData) -> Finding:
    """Whether the return rose while what it stands for did not."""
    item, returns, evaluation = "Reward hacking", data.get("episode_return"), data.get("evaluation_return")
    named = {"episode_return": returns, "evaluation_return": evaluation}
    reasons = [not_finite(name, trace) for name, trace in named.items() if trace is not None and trace.bad]
    if returns is None or len(returns.finite) < FEWEST:
        return finding(item, reasons, []) if reasons else absent(data, item, "episode_return")
    lengths = data.get("episode_length")
    told, judged = [_course("return", returns)], False
    if evaluation is not None and len(evaluation.finite) >= FEWEST:
        judged = True
        told.append(_course("evaluation return", evaluation))
        if _trend(returns) > TREND_SHARE and _trend(evaluation) < -TREND_SHARE:
            reasons.append("The training return rose while the evaluation return fell.")
    if lengths is not None and len(lengths.finite) >= FEWEST:
        told.append(_course("episode length", lengths))
        density = _density(returns, lengths)
        if density is not None:
            judged = True
            told.append(f"Return for each step: {density[0]:.4g} to {density[1]:.4g}.")
            if density[1] >= DENSITY_DRIFT * density[0] and _trend(returns) > TREND_SHARE:
                reasons.append("Each environment step pays several times as much as before.")
    if not judged:
        told.append("Neither evaluation_return nor a comparable episode_length is reported.")
    return finding(item, reasons, told, otherwise="pass" if judged else "unknown")


def _broken_norms(norms: Trace) -> bool:
    routine = max(1.0, ROUTINE_INFINITE * len(norms))
    return bool(np.isnan(norms.values).any()) or norms.bad > routine


def _norms(norms: Trace) -> str:
    values = norms.finite
    if not len(values):
        return f"All {norms.bad} norms are not finite."
    bad = f"; {norms.bad} not finite" if norms.bad else ""
    return f"Norm: median {np.median(values):.4g}, highest {values.max():.4g}, last {values[-1]:.4g}{bad}."


def _quarter(values: Floats, *, last: bool) -> Floats:
    size = max(1, len(values) // 4)
    return values[-size:] if last else values[:size]


def _trend(trace: Trace) -> float:
    """Change from the first to the last quarter, as a share of the whole range."""
    values = trace.finite
    span = float(values.max() - values.min())
    if span <= 0:
        return 0.0
    early, late = (float(np.median(_quarter(values, last=last))) for last in (False, True))
    return (late - early) / span


def _course(name: str, trace: Trace) -> str:
    early, late = (float(np.median(_quarter(trace.finite, last=last))) for last in (False, True))
    return f"{name[0].upper()}{name[1:]}: {early:.4g} in the first quarter, {late:.4g} in the last."


def _density(returns: Trace, lengths: Trace) -> tuple[float, float] | None:
    """Return for each environment step, first and last quarter; None where returns are not positive."""
    pairs = [
        (value, length)
        for value, time in zip(returns.values.tolist(), returns.times.tolist(), strict=True)
        if (length := lengths.at(time)) is not None and length > 0
    ]
    if len(pairs) < FEWEST:
        return None
    density = np.array([value / length for value, length in pairs])
    if not np.isfinite(density).all() or density.min() <= 0:
        return None
    early, late = (float(np.median(_quarter(density, last=last))) for last in (False, True))
    return early, late


CHECKS: tuple[Callable[[RunData], Finding], ...] = (
    replay_contamination,
    gradient_clipping,
    advantage_normalisation,
    reward_scale,
    reward_hacking,
    learning_rate,
)
