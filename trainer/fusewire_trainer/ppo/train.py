"""The training loop of PPO: the whole of it on one screen."""

from __future__ import annotations

import time

import torch

from fusewire import Run, Signal
from fusewire_trainer.errors import SettingError
from fusewire_trainer.faults import Faults
from fusewire_trainer.ppo.config import PPOConfig
from fusewire_trainer.ppo.environments import make_envs
from fusewire_trainer.ppo.evaluate import evaluate
from fusewire_trainer.ppo.learner import Learner
from fusewire_trainer.ppo.rollout import Player
from fusewire_trainer.ppo.state import capture, restore, seed_everything

SIGNALS = (Signal(name="max_grad_norm", help="Norm to which the gradients of actor and of critic are clipped."),)
"""What PPO reports beyond the catalogue: a postmortem judges the gradient norms by it."""


def train(config: PPOConfig, run: Run, faults: Faults) -> tuple[Learner, Player]:
    """Train until the updates are done, the target is reached (both: ``run.complete()``), or the run must stop.

    Environments start new episodes at each snapshot, from (run seed, step), whether anything was interrupted or
    not: that makes a resumed run equal to an undisturbed one.
    """
    device = torch.device(config.device if config.device != "auto" else _default_device())
    seed_everything(run.seed)
    envs = make_envs(config.env, config.envs)
    learner = Learner(config, envs, device)
    player = Player(envs, return_window=config.return_window, device=device)
    step = _resume(run, learner, player)
    run.apply_lr(learner.optimizer, learner.scheduler)
    player.reset(run.seed, step)

    done = _done(step, config, player)
    while not done and not run.should_stop:
        started = time.monotonic()
        faults.begin(step)
        rollout = player.play(learner.model, config.steps)
        signals = learner.update(rollout, faults)
        step += 1
        if config.evaluate_every and step % config.evaluate_every == 0:
            with run.phase("evaluate"):
                signals["evaluation_return"] = torch.tensor(
                    evaluate(
                        learner.model, config.env, episodes=config.evaluation_episodes, seed=run.seed, step=step
                    )
                )
        run.step(
            step,
            **signals,
            episode_return=player.mean_return,
            episode_length=player.mean_length,
            max_grad_norm=config.max_grad_norm,
            env_steps=player.env_steps,
            episodes=player.episodes,
        )
        done = _done(step, config, player)
        if run.snapshot_due(step, last=done):
            run.save_snapshot(step, capture(learner, player), wait=done)
            player.reset(run.seed, step)
        _pace(run, started + config.pace_seconds)
    if done:
        run.complete()
    envs.close()
    return learner, player


def _resume(run: Run, learner: Learner, player: Player) -> int:
    """The step that the snapshot to resume from was taken at; 0 without one."""
    loaded = run.load_snapshot()
    if loaded is None:
        return 0
    try:
        restore(loaded.state, learner, player, generators=run.rng == "restore")
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise SettingError(
            f"{loaded.folder}: does not fit; go on with the --env and --hidden that it was taken with"
        ) from error
    return loaded.step


def _done(step: int, config: PPOConfig, player: Player) -> bool:
    full = len(player.recent) == config.return_window
    reached = config.target_return is not None and full and player.mean_return >= config.target_return
    return step >= config.updates or reached


def _pace(run: Run, until: float) -> None:
    """Sleep until the monotonic clock says ``until``, or the run must stop."""
    while not run.should_stop and (rest := until - time.monotonic()) > 0:
        time.sleep(min(rest, 0.05))


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
