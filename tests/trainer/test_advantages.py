"""Generalised advantage estimation against a naive second implementation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fusewire_trainer.ppo.advantages import gae


def naive(  # noqa: PLR0917
    rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """The definition: a sum over all later deltas of the same episode, for every step anew."""
    steps, envs = rewards.shape
    advantages = torch.zeros_like(rewards)
    for b in range(envs):
        for t in range(steps):
            weight, total = 1.0, 0.0
            for k in range(t, steps):
                delta = rewards[k, b] + gamma * next_values[k, b] - values[k, b]
                total += weight * float(delta)
                if ended[k, b]:
                    break
                weight *= gamma * lam
            advantages[t, b] = total
    return advantages


@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 12),
    envs=st.integers(1, 3),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_equals_the_definition(seed: int, steps: int, envs: int, gamma: float, lam: float) -> None:
    """Advantages are the discounted sums of deltas within each episode, and targets are advantages plus values."""
    draw = torch.Generator().manual_seed(seed)
    rewards, values, following = (torch.randn(steps, envs, generator=draw, dtype=torch.float64) for _ in range(3))
    ended = torch.rand(steps, envs, generator=draw) < 0.3
    advantages, targets = gae(rewards, values, following, ended, gamma, lam)
    torch.testing.assert_close(advantages, naive(rewards, values, following, ended, gamma, lam))
    torch.testing.assert_close(targets, advantages + values)


def test_nothing_leaks_over_the_end_of_an_episode() -> None:
    """A reward of the next episode changes no advantage of the one before."""
    ended = torch.tensor([[False], [True], [False]])
    rewards, zeros = torch.ones(3, 1), torch.zeros(3, 1)
    before, _ = gae(rewards, zeros, zeros, ended, 0.9, 0.9)
    rewards[2] = 100
    after, _ = gae(rewards, zeros, zeros, ended, 0.9, 0.9)
    assert torch.equal(before[:2], after[:2])
    assert float(after[2]) == pytest.approx(100)
