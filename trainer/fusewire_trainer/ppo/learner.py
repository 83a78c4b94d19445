"""One policy update: the minibatches of one rollout."""

from __future__ import annotations

import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from fusewire_trainer.faults import Faults
from fusewire_trainer.ppo.advantages import gae
from fusewire_trainer.ppo.config import PPOConfig
from fusewire_trainer.ppo.losses import Metrics, explained_variance, normalised, policy_loss, value_loss
from fusewire_trainer.ppo.networks import ActorCritic
from fusewire_trainer.ppo.rollout import Rollout


class Learner:
    """Model, optimizer and schedule, and the update that moves them."""

    def __init__(self, config: PPOConfig, envs: SyncVectorEnv, device: torch.device) -> None:
        self._config = config
        spaces = envs.single_observation_space, envs.single_action_space
        self.model = ActorCritic(*spaces, config.hidden).to(device)
        self.optimizer = Adam(self.model.parameters(), lr=config.learning_rate, eps=1e-5)
        linear = config.schedule == "linear"
        self.scheduler = LambdaLR(
            self.optimizer, lambda step: max(0.0, 1 - step / config.updates) if linear else 1.0
        )

    def update(self, rollout: Rollout, faults: Faults) -> Metrics:
        """Improve policy and critic by the rollout; returns the signals of the update, on the model's device.

        ``approx_kl``, ``clip_fraction`` and ``policy_entropy`` are those of the finished update, taken over the
        whole rollout; losses are means over the minibatches; ``grad_norm`` is the largest one, before clipping.
        """
        config = self._config
        rewards = faults.rewards(rollout.rewards)
        advantages, targets = gae(
            rewards, rollout.values, rollout.next_values, rollout.ended, config.gamma, config.gae_lambda
        )
        seen = rollout.observations.flatten(0, 1)
        done = rollout.actions.flatten(0, 1)
        old = rollout.log_probs.flatten()
        gain, target = advantages.flatten(), targets.flatten()

        with faults.learning_rate(self.optimizer):
            rate = self.optimizer.param_groups[0]["lr"]
            history: list[Metrics] = []
            for _ in range(config.epochs):
                for index in torch.randperm(len(seen)).chunk(config.minibatches):
                    policy = self.model.policy(seen[index])
                    surrogate, actor = policy_loss(
                        policy.log_prob(done[index]), old[index], normalised(gain[index]), config.clip
                    )
                    error, critic = value_loss(self.model.value(seen[index]), target[index])
                    bonus = faults.entropy_coefficient(config.entropy_coefficient) * policy.entropy().mean()
                    history.append(
                        actor | critic | self._descend(surrogate + config.value_coefficient * error - bonus, faults)
                    )
        self.scheduler.step()

        with torch.no_grad():
            policy = self.model.policy(seen)
            _, after = policy_loss(policy.log_prob(done), old, normalised(gain), config.clip)
            return {
                "approx_kl": after["approx_kl"],
                "clip_fraction": after["clip_fraction"],
                "policy_entropy": policy.entropy().mean(),
                "policy_loss": _stack(history, "policy_loss").mean(),
                "value_loss": _stack(history, "value_loss").mean(),
                "grad_norm": _stack(history, "grad_norm").max(),
                "explained_variance": explained_variance(rollout.values.flatten(), target),
                "advantage_std": gain.std(unbiased=False),
                "reward_std": rewards.std(unbiased=False),
                "learning_rate": torch.tensor(rate, dtype=torch.float64),
            }

    def _descend(self, loss: Tensor, faults: Faults) -> Metrics:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        faults.gradients(self.model)
        # Each by its own norm: the critic's gradients are hundreds of times larger and would silence the actor.
        norms = [
            clip_grad_norm_(parameters, self._config.max_grad_norm)
            for parameters in (self.model.actor_parameters(), self.model.critic.parameters())
        ]
        self.optimizer.step()
        return {"grad_norm": torch.stack(norms).norm()}


def _stack(history: list[Metrics], name: str) -> Tensor:
    return torch.stack([metrics[name] for metrics in history])
