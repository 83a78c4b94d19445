"""The losses of PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) as pure functions.

Each returns ``(loss, metrics)``: 0-dimensional tensors on the device of the inputs. Nothing here waits for a GPU.
Shapes are ``[N]``: one sample per step of a rollout.
"""

from __future__ import annotations

import torch
from torch import Tensor

Metrics = dict[str, Tensor]


def policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Metrics]:
    """The clipped surrogate objective, negated.

    ``approx_kl`` is the low-variance estimate of KL(old ‖ new) in nats, ``mean(r - 1 - log r)`` with r the
    probability ratio (http://joschu.net/blog/kl-approx.html); ``clip_fraction`` the share of clipped samples.
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    with torch.no_grad():
        metrics = {
            "policy_loss": loss.detach(),
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": ((ratio - 1).abs() > clip).to(ratio.dtype).mean(),
        }
    return loss, metrics


def value_loss(values: Tensor, targets: Tensor) -> tuple[Tensor, Metrics]:
    """Mean squared error of the critic, in squared units of the return (not clipped, not halved)."""
    loss = (values - targets).square().mean()
    return loss, {"value_loss": loss.detach()}


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """Share of the targets' variance that the critic explains, at most 1; 0 where the targets do not vary."""
    variance = targets.var(unbiased=False)
    explained = 1 - (targets - values).var(unbiased=False) / variance
    return torch.where(variance == 0, torch.zeros_like(explained), explained)


def normalised(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
