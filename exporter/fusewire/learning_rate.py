"""Scaling the learning rate of an optimizer and its schedulers, whatever schedule they follow.

A torch scheduler computes its next rate from ``base_lrs`` and ``initial_lr`` (LambdaLR, warm-ups, OneCycleLR), or
from the group's present ``lr`` (StepLR, CosineAnnealingLR), or from both; scaling all of them scales every later
rate. Absolute floors that a user chose (``eta_min``, ``min_lrs``) stay as they are.
"""

from __future__ import annotations

import weakref
from typing import Any

_GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""``max_lr`` and ``min_lr`` are where OneCycleLR and CyclicLR keep their turning points."""

_SCHEDULER_LISTS = ("base_lrs", "max_lrs", "_last_lr")


class LearningRateScaler:
    """Scales each optimizer and each scheduler once."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self._done: weakref.WeakSet[Any] = weakref.WeakSet()

    def apply(self, optimizer: Any, scheduler: Any = None) -> None:
        """Multiply what ``optimizer`` and ``scheduler`` (with the ones it is made of) hold by the factor."""
        tensors: set[int] = set()
        if optimizer not in self._done:
            self._done.add(optimizer)
            for group in optimizer.param_groups:
                for key in _GROUP_KEYS:
                    if key in group:
                        group[key] = self._scaled(group[key], tensors)
        if scheduler is not None:
            self._apply_to_scheduler(scheduler, tensors)

    def _apply_to_scheduler(self, scheduler: Any, tensors: set[int]) -> None:
        if scheduler in self._done:
            return
        self._done.add(scheduler)
        for key in _SCHEDULER_LISTS:
            rates = getattr(scheduler, key, None)
            if isinstance(rates, (list, tuple)):
                setattr(scheduler, key, [self._scaled(rate, tensors) for rate in rates])
        for part in getattr(scheduler, "_schedulers", ()):
            self._apply_to_scheduler(part, tensors)

    def _scaled(self, rate: Any, tensors: set[int]) -> Any:
        if not hasattr(rate, "mul_"):
            return rate * self.factor
        # A tensor is scaled in place, once: compiled optimizers hold on to it, and lists may share it.
        if id(rate) not in tensors:
            tensors.add(id(rate))
            rate.mul_(self.factor)
        return rate
