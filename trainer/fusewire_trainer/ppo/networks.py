"""Actor and critic: two small multi-layer perceptrons with orthogonal weights."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from fusewire_trainer.errors import SettingError


class ActorCritic(nn.Module):
    """A policy over a Discrete or Box action space, and a value function, of flat observations ``[…, D]``.

    Discrete actions are drawn from a softmax; Box actions from a normal distribution with a mean that depends on
    the observation and a deviation that does not.

    Raises:
        SettingError: the action space is of another kind.
    """

    def __init__(self, observation_space: gym.Space[object], action_space: gym.Space[object], hidden: int) -> None:
        super().__init__()
        assert isinstance(observation_space, Box)
        inputs = int(np.prod(observation_space.shape))
        if isinstance(action_space, Discrete):
            outputs, self.log_std = int(action_space.n), None
        elif isinstance(action_space, Box):
            outputs = int(np.prod(action_space.shape))
            self.log_std = nn.Parameter(torch.zeros(outputs))
        else:
            raise SettingError(
                f"action space {action_space} is not supported: take an environment with Discrete or Box actions"
            )
        self.actor = _mlp(inputs, hidden, outputs, gain=0.01)
        self.critic = _mlp(inputs, hidden, 1, gain=1.0)

    def policy(self, observations: Tensor) -> Distribution:
        """Distribution over actions. Not validated: a broken policy shows in its numbers, not as an exception."""
        output = self.actor(observations)
        if self.log_std is None:
            return Categorical(logits=output, validate_args=False)
        spread = self.log_std.exp().expand_as(output)
        return Independent(Normal(output, spread, validate_args=False), 1, validate_args=False)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """What the policy depends on; the rest is the critic's."""
        return (parameter for name, parameter in self.named_parameters() if not name.startswith("critic."))

    def value(self, observations: Tensor) -> Tensor:
        """Expected discounted return, ``[…]``."""
        value: Tensor = self.critic(observations)
        return value.squeeze(-1)


def _mlp(inputs: int, hidden: int, outputs: int, *, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, layer_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, layer_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
