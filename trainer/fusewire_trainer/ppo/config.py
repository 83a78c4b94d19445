"""Settings of PPO, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fusewire_trainer.errors import SettingError

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Everything that decides how a policy is trained. The defaults solve CartPole-v1 in about 20 updates.

    Raises:
        SettingError: a value is out of range.
    """

    env: str = "CartPole-v1"
    """Id of a Gymnasium environment with a Discrete or Box action space."""
    updates: int = 400
    """Policy updates after which training is complete, counted over all attempts."""
    envs: int = 8
    """Environments stepped together (B)."""
    steps: int = 256
    """Environment steps per environment and update (T)."""
    epochs: int = 6
    """Passes over a rollout per update."""
    minibatches: int = 8
    """Minibatches per pass."""
    learning_rate: float = 1e-3
    schedule: Schedule = "constant"
    """``linear``: the learning rate falls to 0 over ``updates``."""
    gamma: float = 0.98
    """Discount per environment step."""
    gae_lambda: float = 0.9
    clip: float = 0.2
    """Largest relative change of an action's probability that the objective rewards."""
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_grad_norm: float = 0.5
    hidden: int = 64
    """Width of the two hidden layers of actor and critic."""
    device: str = "auto"
    """A torch device; ``auto``: the GPU where there is one."""
    return_window: int = 20
    """K: finished episodes that ``episode_return`` and ``episode_length`` are means of."""
    target_return: float | None = None
    """Training is complete once the mean return of the last K episodes reaches it."""
    evaluate_every: int = 0
    """Updates between evaluations with the most likely action; 0: none."""
    evaluation_episodes: int = 5
    pace_seconds: float = 0.0
    """Least time that an update takes; the rest is slept, so that a fast environment can be watched."""

    def __post_init__(self) -> None:
        for name in ("updates", "envs", "steps", "epochs", "minibatches", "hidden", "return_window"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "above 0")
        for name in ("gamma", "gae_lambda"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        for name in ("pace_seconds", "evaluate_every"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.evaluation_episodes >= 1, "evaluation_episodes", self.evaluation_episodes, "at least 1")
        _require(_has(self.device), "device", self.device, "auto, cpu, or a torch device that this machine has")
        _require(0 < self.clip < 1, "clip", self.clip, "between 0 and 1")
        _require(self.schedule in get_args(Schedule), "schedule", self.schedule, "constant or linear")
        _require(
            self.minibatches <= self.envs * self.steps,
            "minibatches",
            self.minibatches,
            f"at most the rollout's {self.envs * self.steps} samples (envs × steps)",
        )


def _has(device: str) -> bool:
    if device == "auto":
        return True
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # no such device; a torch without CUDA asserts
        return False
    return True


def _require(condition: bool, name: str, value: object, must_be: str) -> None:
    if not condition:
        raise SettingError(f"--{name.replace('_', '-')} {value}: must be {must_be}")
