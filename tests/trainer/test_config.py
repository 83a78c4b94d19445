"""Settings that cannot be are refused in one line."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch

from fusewire_trainer.errors import SettingError
from fusewire_trainer.ppo import PPOConfig
from fusewire_trainer.ppo.__main__ import main
from fusewire_trainer.ppo.environments import make_env, make_envs
from fusewire_trainer.ppo.networks import ActorCritic

from .environments import register


@pytest.mark.parametrize(
    "setting",
    [
        {"updates": 0},
        {"envs": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"gamma": 1.5},
        {"clip": 0.0},
        {"pace_seconds": -1.0},
        {"schedule": "cosine"},
        {"device": "nonsense"},
        {"device": "cuda:99"},
        {"envs": 1, "steps": 2, "minibatches": 3},
    ],
)
def test_out_of_range(setting: dict[str, Any]) -> None:
    """The message is one line and names the flag."""
    with pytest.raises(SettingError) as caught:
        PPOConfig(**setting)
    assert f"--{list(setting)[-1].replace('_', '-')} " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--seed=-1", "--threads=0", "--snapshot-every=-1", "--device=nonsense"])
def test_flags_that_cannot_be(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They end in one line that names the flag and the remedy, and in exit code 2."""
    assert main([flag], {}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fusewire ppo: {flag.replace('=', ' ')}: must be ")


@pytest.mark.parametrize("env_id", ["NoSuchEnvironment-v0", "no such name", "CartPole-v99"])
def test_unknown_environment(env_id: str) -> None:
    """The message is one line with the id."""
    with pytest.raises(SettingError, match=f"--env {env_id}: .+") as caught:
        make_env(env_id)
    assert "\n" not in str(caught.value)


def test_unsupported_action_space() -> None:
    """An action space that PPO here does not know is named, with what would do."""
    register()
    envs = make_envs("Unusable-v0", 1)
    with pytest.raises(SettingError, match=r"MultiBinary\(3\) is not supported: take .*Discrete or Box"):
        ActorCritic(envs.single_observation_space, envs.single_action_space, 8)
    envs.close()


def test_a_normal_policy_has_the_textbook_entropy() -> None:
    """Two independent unit normals have an entropy of log(2 pi e) nats: the action's dimensions are summed."""
    register()
    env: gym.Env[Any, Any] = make_env("Reach-v0")
    model = ActorCritic(env.observation_space, env.action_space, 8)
    entropy = model.policy(torch.zeros(1, 6)).entropy()
    assert entropy.item() == pytest.approx(2.8379, abs=1e-4)
