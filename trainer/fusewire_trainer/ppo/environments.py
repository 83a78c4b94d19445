"""Gymnasium environments as flat, vectorised ones that can be put into a state known by (seed, step)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from fusewire_trainer.errors import SettingError

EVALUATION = 1
"""Stream of seeds for evaluations; training has stream 0."""


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """One environment with observations of one dimension.

    Raises:
        SettingError: Gymnasium does not know the id, or what the environment needs is not installed.
    """
    try:
        env = gym.make(env_id)
    except gym.error.Error as error:
        first = str(error).strip().splitlines()[0]
        raise SettingError(f"--env {env_id}: {first}") from error
    flat = isinstance(env.observation_space, Box) and len(env.observation_space.shape) == 1
    return env if flat else FlattenObservation(env)


def make_envs(env_id: str, number: int) -> SyncVectorEnv:
    """``number`` environments stepped together.

    An ended episode is followed by the next one within the same step; its final observation is in
    ``infos["final_obs"]``, so that a truncated episode can be bootstrapped from where it really ended.
    """
    make_env(env_id).close()
    return SyncVectorEnv([lambda: make_env(env_id)] * number, autoreset_mode=AutoresetMode.SAME_STEP)


def seeds(seed: int, step: int, number: int, *, stream: int = 0) -> list[int | None]:
    """Seeds for ``number`` environments that depend on nothing but the arguments."""
    words = np.random.SeedSequence([seed, step, stream]).generate_state(number)
    return [int(word) for word in words]
