"""Tiny environments whose right answers are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

Reset = tuple[Any, dict[str, Any]]


class Countdown(gym.Env[Any, Any]):
    """The observation counts steps; an episode ends after ``length`` of them, by ``how``; each pays 1."""

    def __init__(self, length: int = 3, how: str = "terminated") -> None:
        self.observation_space = Box(0, np.inf, (1,), dtype=np.float32)
        self.action_space = Discrete(2, start=5)
        self.actions: list[int] = []
        self._length, self._how, self._t = length, how, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._t += 1
        end = self._t == self._length
        return self._observation(), 1.0, end and self._how == "terminated", end and self._how == "truncated", {}

    def _observation(self) -> Any:
        return np.array([self._t], dtype=np.float32)


class Reach(gym.Env[Any, Any]):
    """One step: the reward is high where the two actions are near (0.5, -0.5), and the observation says nothing."""

    def __init__(self) -> None:
        self.observation_space = Dict({"a": Box(0, 1, (2, 2)), "b": Discrete(2)})
        self.action_space = Box(-1, 1, (2, 1), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return {"a": np.zeros((2, 2), dtype=np.float32), "b": 0}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = -float(np.square(action.ravel() - (0.5, -0.5)).sum())
        return {"a": np.zeros((2, 2), dtype=np.float32), "b": 0}, reward, True, False, {}


class Unusable(Reach):
    """An action space that PPO here does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = MultiBinary(3)  # type: ignore[assignment]


def register() -> None:
    """Make them known to Gymnasium, once."""
    for name, entry, kwargs in (
        ("Terminating-v0", Countdown, {"how": "terminated"}),
        ("Truncating-v0", Countdown, {"how": "truncated"}),
        ("Reach-v0", Reach, {}),
        ("Unusable-v0", Unusable, {}),
    ):
        if name not in gym.registry:
            gym.register(name, entry_point=entry, kwargs=kwargs, disable_env_checker=True)
