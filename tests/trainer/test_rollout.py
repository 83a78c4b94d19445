"""Rollouts: what an ended episode is worth, and where an episode starts."""

from __future__ import annotations

import torch

from fusewire_trainer.ppo.environments import make_envs, seeds
from fusewire_trainer.ppo.networks import ActorCritic
from fusewire_trainer.ppo.rollout import Player, Rollout
from fusewire_trainer.ppo.state import seed_everything

from .environments import register

CPU = torch.device("cpu")


def _play(env_id: str, steps: int) -> tuple[Player, ActorCritic, Rollout]:
    register()
    seed_everything(0)
    envs = make_envs(env_id, 2)
    model = ActorCritic(envs.single_observation_space, envs.single_action_space, 8)
    with torch.no_grad():
        for parameter in model.critic.parameters():
            parameter.uniform_(-1, 1)
    player = Player(envs, return_window=4, device=CPU)
    player.reset(0, 0)
    rollout = player.play(model, steps)
    envs.close()
    return player, model, rollout


def test_termination_is_worth_nothing() -> None:
    """After a terminated episode there is no value left, and the next observation is that of a new one."""
    _, _, rollout = _play("Terminating-v0", 4)
    assert rollout.ended[:, 0].tolist() == [False, False, True, False]
    assert rollout.observations[:, 0, 0].tolist() == [0, 1, 2, 0]
    assert rollout.next_values[2].tolist() == [0, 0]
    torch.testing.assert_close(rollout.next_values[0], rollout.values[1])


def test_truncation_is_worth_its_final_observation() -> None:
    """A time limit is bootstrapped from the observation that the episode really ended with."""
    _, model, rollout = _play("Truncating-v0", 4)
    final = model.value(torch.tensor([[3.0]])).detach()
    assert rollout.ended[2].tolist() == [True, True]
    torch.testing.assert_close(rollout.next_values[2], final.expand(2))
    assert not torch.isclose(rollout.next_values[2], rollout.values[3]).any()


def test_the_last_step_is_bootstrapped_from_what_follows_it() -> None:
    """A rollout that ends in the middle of an episode takes the value of the next observation."""
    _, model, rollout = _play("Terminating-v0", 2)
    torch.testing.assert_close(rollout.next_values[-1], model.value(torch.tensor([[2.0]])).detach().expand(2))


def test_account_of_episodes() -> None:
    """Finished episodes count with their full return and length; the last K of them make the mean."""
    player, _, _ = _play("Terminating-v0", 7)
    assert (player.episodes, player.env_steps) == (4, 14)
    assert list(player.recent) == [(3.0, 3)] * 4
    assert (player.mean_return, player.mean_length) == (3.0, 3.0)


def test_no_return_before_the_first_episode_ends() -> None:
    """The mean return is NaN, not 0, until there is one."""
    player, _, _ = _play("Terminating-v0", 2)
    assert player.mean_return != player.mean_return


def test_box_actions_are_clipped_and_shaped_and_any_observation_is_flattened() -> None:
    """The environment sees actions of its own shape and within its bounds; the policy keeps what it drew."""
    _, _, rollout = _play("Reach-v0", 50)
    assert rollout.observations.shape == (50, 2, 6)
    assert rollout.actions.shape == (50, 2, 2)
    assert rollout.actions.abs().max() > 1


def test_seeds_differ_between_runs_steps_environments_and_streams() -> None:
    """Environments start from (seed, step) and from nothing else, and no two of them alike."""
    assert seeds(1, 2, 4) == seeds(1, 2, 4)
    every = seeds(1, 2, 4) + seeds(1, 3, 4) + seeds(2, 2, 4) + seeds(1, 2, 4, stream=1)
    assert len(set(every)) == 16
