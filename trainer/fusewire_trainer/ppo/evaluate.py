"""How good the policy is when it always takes its most likely action."""

from __future__ import annotations

import numpy as np
import torch

from fusewire_trainer.ppo.environments import EVALUATION, make_envs, seeds
from fusewire_trainer.ppo.networks import ActorCritic
from fusewire_trainer.ppo.rollout import legal_actions

MAX_STEPS = 10_000
"""Longest episode that is evaluated, for environments without a time limit."""


@torch.no_grad()
def evaluate(model: ActorCritic, env_id: str, *, episodes: int, seed: int, step: int) -> float:
    """Mean return of ``episodes`` episodes that depend on (seed, step) and the model alone.

    No random number is drawn: an evaluation leaves the training as it was.
    """
    device = next(model.parameters()).device
    envs = make_envs(env_id, episodes)
    try:
        observations, _ = envs.reset(seed=seeds(seed, step, episodes, stream=EVALUATION))
        returns, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
        for _ in range(MAX_STEPS):
            policy = model.policy(torch.as_tensor(observations, dtype=torch.float32, device=device))
            observations, rewards, terminated, truncated, _ = envs.step(legal_actions(envs, policy.mode))
            returns += rewards * running
            running &= ~(terminated | truncated)
            if not running.any():
                break
        return float(returns.mean())
    finally:
        envs.close()
