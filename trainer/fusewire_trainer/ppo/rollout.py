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


class Player:
    """Steps the environments and keeps account of episodes."""

    def __init__(self, envs: SyncVectorEnv, *, return_window: int, device: torch.device) -> None:
        self._envs = envs
        self._device = device
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self._observations: np.ndarray[Any, Any] = np.empty(0)
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
        observations, actions, log_probs, rewards, ended, terminated = [], [], [], [], [], []
        finals: list[tuple[int, int, Any]] = []
        for t in range(steps):
            seen = self._tensor(self._observations)
            policy = model.policy(seen)
            action = policy.sample()
            observations.append(seen)
            actions.append(action)
            log_probs.append(policy.log_prob(action))
            self._observations, reward, term, trunc, infos = self._envs.step(legal_actions(self._envs, action))
            end = term | trunc
            rewards.append(reward)
            terminated.append(term)
            ended.append(end)
            finals += [(t, int(b), infos["final_obs"][b]) for b in np.flatnonzero(trunc & ~term)]
            self._account(reward, end)
        return self._rollout(model, observations, actions, log_probs, rewards, ended, terminated, finals)

    def _rollout(  # noqa: PLR0917
        self,
        model: ActorCritic,
        observations: list[Tensor],
        actions: list[Tensor],
        log_probs: list[Tensor],
        rewards: list[Any],
        ended: list[Any],
        terminated: list[Any],
        finals: list[tuple[int, int, Any]],
    ) -> Rollout:
        values = model.value(torch.stack([*observations, self._tensor(self._observations)]))
        next_values = values[1:].clone()
        next_values[torch.as_tensor(np.stack(terminated), device=self._device)] = 0
        if finals:
            at_t, at_b, final = zip(*finals, strict=True)
            next_values[list(at_t), list(at_b)] = model.value(self._tensor(np.stack(final)))
        return Rollout(
            observations=torch.stack(observations),
            actions=torch.stack(actions),
            log_probs=torch.stack(log_probs),
            rewards=self._tensor(np.stack(rewards)),
            values=values[:-1],
            next_values=next_values,
            ended=torch.as_tensor(np.stack(ended), device=self._device),
        )

    def _account(self, reward: Any, end: Any) -> None:
        self.env_steps += len(reward)
        self._returns += reward
        self._lengths += 1
        for b in np.flatnonzero(end):
            self.recent.append((float(self._returns[b]), int(self._lengths[b])))
            self.episodes += 1
        self._returns[end] = 0
        self._lengths[end] = 0

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
