"""Everything that the next update depends on, as tensors and JSON values, and back.

With it and environments reset from (seed, step), an interrupted run goes on exactly as an undisturbed one.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from fusewire_trainer.ppo.learner import Learner
from fusewire_trainer.ppo.rollout import Player


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(learner: Learner, player: Player) -> dict[str, Any]:
    """Model, optimizer, schedule, generators, counters and recent episodes."""
    return {
        "model": learner.model.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "scheduler": learner.scheduler.state_dict(),
        "generators": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all(),
            "numpy": np.random.get_state(legacy=True),
            "python": random.getstate(),
        },
        "player": {
            "recent": list(player.recent),
            "episodes": player.episodes,
            "env_steps": player.env_steps,
        },
    }


def restore(state: dict[str, Any], learner: Learner, player: Player, *, generators: bool) -> None:
    """Put everything back; without ``generators`` the random number generators stay as they are."""
    learner.model.load_state_dict(state["model"])
    learner.optimizer.load_state_dict(state["optimizer"])
    learner.scheduler.load_state_dict(state["scheduler"])
    player.recent.clear()
    player.recent.extend(state["player"]["recent"])
    player.episodes = state["player"]["episodes"]
    player.env_steps = state["player"]["env_steps"]
    if generators:
        stored = state["generators"]
        torch.set_rng_state(stored["torch"])
        np.random.set_state(stored["numpy"])
        random.setstate(stored["python"])
        if len(stored["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(stored["cuda"])
