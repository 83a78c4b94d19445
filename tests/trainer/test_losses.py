"""The losses of PPO at points where their value is known."""

from __future__ import annotations

import math

import pytest
import torch

from fusewire_trainer.ppo.losses import explained_variance, normalised, policy_loss, value_loss


def test_an_unchanged_policy_has_no_kl_and_no_clipping() -> None:
    """With equal probabilities the objective is the mean advantage, the KL 0 and nothing is clipped."""
    log_probs = torch.tensor([-0.5, -1.0, -2.0])
    loss, metrics = policy_loss(log_probs, log_probs, torch.tensor([1.0, 2.0, 3.0]), 0.2)
    assert float(loss) == pytest.approx(-2.0)
    assert float(metrics["approx_kl"]) == 0
    assert float(metrics["clip_fraction"]) == 0


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective"), [(1.0, 2.0, 1.2), (-1.0, 2.0, -2.0), (-1.0, 0.1, -0.8)]
)
def test_the_objective_is_the_pessimistic_one(advantage: float, ratio: float, objective: float) -> None:
    """A gain beyond the clip range is not paid for; a loss beyond it is counted in full."""
    loss, metrics = policy_loss(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), 0.2)
    assert float(loss) == pytest.approx(-objective)
    assert float(metrics["clip_fraction"]) == 1


def test_a_gain_beyond_the_clip_range_has_no_gradient() -> None:
    """Nothing pulls a probability further than the clip range."""
    log_probs = torch.tensor([math.log(1.5)], requires_grad=True)
    loss, _ = policy_loss(log_probs, torch.zeros(1), torch.ones(1), 0.2)
    loss.backward()
    assert log_probs.grad is not None
    assert float(log_probs.grad) == 0


def test_kl_estimate_agrees_with_the_exact_divergence() -> None:
    """Over many draws ``approx_kl`` is the KL divergence of the old policy from the new one."""
    old, new = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.4, 0.4, 0.2]).log()
    drawn = torch.multinomial(old.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(0))
    _, metrics = policy_loss(new[drawn], old[drawn], torch.zeros(len(drawn)), 0.2)
    exact = float((old.exp() * (old - new)).sum())
    assert float(metrics["approx_kl"]) == pytest.approx(exact, rel=0.03)


def test_critic_loss_is_the_mean_square() -> None:
    """The critic's loss is in squared units of the return."""
    loss, metrics = value_loss(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 2.0]))
    assert float(loss) == float(metrics["value_loss"]) == 4.5


def test_explained_variance_of_a_perfect_a_constant_and_a_useless_critic() -> None:
    """1 for a perfect critic, 0 for a constant one, 0 where there is nothing to explain."""
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert float(explained_variance(targets, targets)) == 1
    assert float(explained_variance(torch.ones(3), targets)) == 0
    assert float(explained_variance(targets, torch.ones(3))) == 0


def test_equal_advantages_are_normalised_to_zero() -> None:
    """A batch without differences moves nothing instead of dividing by 0."""
    assert torch.equal(normalised(torch.full((4,), 7.0)), torch.zeros(4))
