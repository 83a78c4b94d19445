"""Proximal policy optimisation on Gymnasium environments: ``python -m fusewire_trainer.ppo``."""

from fusewire_trainer.ppo.config import PPOConfig
from fusewire_trainer.ppo.train import train

__all__ = ["PPOConfig", "train"]
