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
    optimizer = learner.optimizer.state_dict()
    return {
        "model": learner.model.state_dict(),
        "optimizer": {
            "state": {str(index): state for index, state in optimizer["state"].items()},
            "param_groups": optimizer["param_groups"],
        },
        "scheduler": learner.scheduler.state_dict(),
        "generators": _generators(),
        "player": {
            "recent": [list(episode) for episode in player.recent],
            "episodes": player.episodes,
            "env_steps": player.env_steps,
        },
    }


def restore(state: dict[str, Any], learner: Learner, player: Player, *, generators: bool) -> None:
    """Put everything back; without ``generators`` the random number generators stay as they are."""
    learner.model.load_state_dict(state["model"])
    optimizer = state["optimizer"]
    learner.optimizer.load_state_dict(
        {
            "state": {int(index): value for index, value in optimizer["state"].items()},
            "param_groups": optimizer["param_groups"],
        }
    )
    learner.scheduler.load_state_dict(state["scheduler"])
    player.recent.clear()
    player.recent.extend((float(total), int(length)) for total, length in state["player"]["recent"])
    player.episodes = int(state["player"]["episodes"])
    player.env_steps = int(state["player"]["env_steps"])
    if generators:
        _restore_generators(state["generators"])


def _generators() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
    }


def _restore_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])
    numpy = state["numpy"]
    keys = numpy["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
