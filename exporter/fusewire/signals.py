"""The catalogue of training signals: every name, unit and help text once.

A signal ``x`` becomes ``rl_x`` (the last value), ``rl_x_run_min{steps}``, ``rl_x_run_max{steps}`` and a series
of ``rl_nonfinite_total{signal="x"}``. Renaming one is a breaking change for everybody's alert rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

STEPS: tuple[int, ...] = (1, 3, 10)
"""Numbers of consecutive steps for which run_min and run_max are kept."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One scalar that a trainer reports per policy update."""

    name: str
    """Keyword of :meth:`fusewire.Run.step`; the metric is ``rl_<name>``."""
    help: str
    """One sentence, with the unit."""
    absent_until_finite: bool = False
    """Export nothing before the first finite value (healthy trainers report NaN until an episode ends)."""

    def __post_init__(self) -> None:
        if re.fullmatch(r"[a-z][a-z0-9_]*", self.name) is None:
            raise ValueError(f"signal name {self.name!r}: take lower-case letters, digits and '_'")


CATALOGUE: tuple[Signal, ...] = (
    Signal(name="approx_kl", help="Approximate KL divergence of the update from the old policy, in nats."),
    Signal(name="reference_kl", help="KL divergence from the reference model, in nats."),
    Signal(name="policy_entropy", help="Mean entropy of the policy, in nats; may be negative for densities."),
    Signal(name="value_loss", help="Loss of the critic, in squared units of the return."),
    Signal(name="policy_loss", help="Loss of the policy."),
    Signal(name="episode_return", help="Mean return of the last finished episodes.", absent_until_finite=True),
    Signal(
        name="episode_length",
        help="Mean length of the last finished episodes, in environment steps.",
        absent_until_finite=True,
    ),
    Signal(name="evaluation_return", help="Mean return of the last evaluation.", absent_until_finite=True),
    Signal(name="grad_norm", help="L2 norm of the gradient before clipping."),
    Signal(name="learning_rate", help="Learning rate of the optimizer's first group."),
    Signal(name="clip_fraction", help="Share of samples whose probability ratio was clipped, 0 to 1."),
    Signal(name="explained_variance", help="Explained variance of the value function, at most 1."),
    Signal(name="advantage_std", help="Standard deviation of the advantages before normalisation."),
    Signal(name="q_value_max", help="Largest Q value of the batch."),
    Signal(name="temperature", help="Entropy temperature (alpha)."),
    Signal(name="reward_std", help="Standard deviation of the rewards of the batch."),
    Signal(name="response_length", help="Mean length of the responses, in tokens."),
    Signal(
        name="rollout_train_logprob_gap",
        help="Mean absolute difference of log probabilities between rollout and training, in nats.",
    ),
)


def by_name(signals: Sequence[Signal] = CATALOGUE) -> dict[str, Signal]:
    """The signals by their names."""
    return {signal.name: signal for signal in signals}
