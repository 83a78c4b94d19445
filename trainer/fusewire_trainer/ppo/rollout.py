"""Playing the policy in the environments: one rollout of T steps in B environments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

from fusewire_trainer.ppo.environments import seeds
from fusewire_trainer.ppo.networks import ActorCritic

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What was seen, done and got. All ``[T, B]``, or ``[T, B, …]`` for observations and actions."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    """Value of where the step led: 0 after a termination, of the final observation after a truncation."""
    ended: Tensor


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One step in all environments, ``[B]`` or ``[B, …]``."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Array
    terminated: Array
    ended: Array
    truncated: dict[int, Array]
    """Final observation of each environment whose episode was cut by a limit."""


class Player:
    """Steps the environments and keeps account of episodes."""

    def __init__(self, envs: SyncVectorEnv, *, return_window: int, device: torch.device) -> None:
        self._envs = envs
        self._device = device
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self._observations: Array = np.empty(0)
        self.recent: deque[tuple[float, int]] = deque(maxlen=return_window)
        """Return and length of the last finished episodes."""
        self.episodes = 0
        self.env_steps = 0

    @property
    def mean_return(self) -> float:
        """Mean return of the last K finished episodes; NaN before the first."""
        return float(np.mean([r for r, _ in self.recent])) if self.recent else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length of the last K finished episodes in steps; NaN before the first."""
        return float(np.mean([n for _, n in self.recent])) if self.recent else float("nan")

    def reset(self, seed: int, step: int) -> None:
        """Start a new episode everywhere; what follows depends on (seed, step) and the policy's draws alone."""
        self._observations, _ = self._envs.reset(seed=seeds(seed, step, self._envs.num_envs))
        self._returns[:] = 0
        self._lengths[:] = 0

    @torch.no_grad()
    def play(self, model: ActorCritic, steps: int) -> Rollout:
        """Take ``steps`` steps in each environment with actions drawn from the policy."""
        taken = [self._step(model) for _ in range(steps)]
        terminated = self._stack([step.terminated for step in taken])
        observations = torch.stack([step.observations for step in taken])
        values = model.value(torch.cat([observations, self._tensor(self._observations)[None]]))
        next_values = values[1:].masked_fill(terminated, 0.0)
        cut = [(t, b, final) for t, step in enumerate(taken) for b, final in step.truncated.items()]
        if cut:
            at_t, at_b, finals = zip(*cut, strict=True)
            next_values[list(at_t), list(at_b)] = model.value(self._tensor(np.stack(finals)))
        return Rollout(
            observations=observations,
            actions=torch.stack([step.actions for step in taken]),
            log_probs=torch.stack([step.log_probs for step in taken]),
            rewards=self._tensor(np.stack([step.rewards for step in taken])),
            values=values[:-1],
            next_values=next_values,
            ended=self._stack([step.ended for step in taken]),
        )

    def _step(self, model: ActorCritic) -> _Step:
        seen = self._tensor(self._observations)
        policy = model.policy(seen)
        actions = policy.sample()
        self._observations, rewards, terminated, truncated, infos = self._envs.step(
            legal_actions(self._envs, actions)
        )
        ended = terminated | truncated
        self._account(rewards, ended)
        return _Step(
            observations=seen,
            actions=actions,
            log_probs=policy.log_prob(actions),
            rewards=rewards,
            terminated=terminated,
            ended=ended,
            truncated={int(b): infos["final_obs"][b] for b in np.flatnonzero(truncated & ~terminated)},
        )

    def _account(self, rewards: Array, ended: Array) -> None:
        self.env_steps += len(rewards)
        self._returns += rewards
        self._lengths += 1
        for b in np.flatnonzero(ended):
            self.recent.append((float(self._returns[b]), int(self._lengths[b])))
            self.episodes += 1
        self._returns[ended] = 0
        self._lengths[ended] = 0

    def _stack(self, flags: list[Array]) -> Tensor:
        return torch.as_tensor(np.stack(flags), device=self._device)

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(np.asarray(array, dtype=np.float32), device=self._device)


def legal_actions(envs: SyncVectorEnv, actions: Tensor) -> Any:
    """What the environments take, ``[B, …]``: Box actions are clipped to their bounds, as the policy knows none."""
    space = envs.single_action_space
    array = actions.cpu().numpy()
    if isinstance(space, Box):
        return np.clip(array.reshape(-1, *space.shape), space.low, space.high)
    assert isinstance(space, Discrete)
    return array + space.start
