"""Generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(  # noqa: PLR0917 - the arrays of one rollout, in the paper's order
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    ended: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a rollout, all ``[T, B]``.

    The chain of deltas is cut where an episode ended, for whatever reason. What differs between the reasons is
    ``next_values``: 0 after a termination, the value of the final observation after a truncation. (Treating both
    alike would teach the critic that a time limit is a failure.)

    Args:
        rewards: reward of each step.
        values: value of the observation that the step was taken in.
        next_values: value of the observation that the step led to, as above.
        ended: whether the episode ended with the step.
        gamma: discount per step.
        lam: weight of longer returns against the bootstrapped value, 0 to 1.
    """
    deltas = rewards + gamma * next_values - values
    keep = gamma * lam * (~ended).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = deltas[t] + keep[t] * following
        advantages[t] = following
    return advantages, advantages + values
