"""apply_lr against real torch schedulers: every later rate is the configured one times the factor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as s

import fusewire
from fusewire.snapshots import snapshot_name

Attach = Callable[..., fusewire.Run]

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "none": lambda _: None,
    "lambda": lambda o: s.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: s.MultiplicativeLR(o, lambda _: 0.9),
    "step": lambda o: s.StepLR(o, 3, 0.5),
    "multistep": lambda o: s.MultiStepLR(o, [2, 5], 0.1),
    "constant": lambda o: s.ConstantLR(o, 0.3, 4),
    "linear warm-up": lambda o: s.LinearLR(o, 0.1, 1.0, 6),
    "exponential": lambda o: s.ExponentialLR(o, 0.9),
    "polynomial": lambda o: s.PolynomialLR(o, 10, 2.0),
    "cosine": lambda o: s.CosineAnnealingLR(o, 10),
    "warm restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 4),
    "one cycle": lambda o: s.OneCycleLR(o, [0.1, 0.05], total_steps=20, cycle_momentum=False),
    "cyclic": lambda o: s.CyclicLR(o, [0.01, 0.01], [0.1, 0.1], 3, cycle_momentum=False),
    "warm-up, then cosine": lambda o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 3), s.CosineAnnealingLR(o, 10)], [3]
    ),
    "chained": lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.3, 4), s.ExponentialLR(o, 0.9)], optimizer=o),
}


def make(name: str) -> tuple[Optimizer, Any]:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = SGD([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.05}], lr=0.1)
    return optimizer, SCHEDULERS[name](optimizer)


def rates(optimizer: Optimizer, scheduler: Any, steps: int) -> list[list[float]]:
    seen = []
    for _ in range(steps):
        seen.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return seen


@pytest.fixture
def half(attach: Attach) -> fusewire.Run:
    return attach(environ={"FUSEWIRE_LR_SCALE": "0.5"})


@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(half: fusewire.Run, name: str, before: int) -> None:
    """From any point of any schedule on, each rate is half of what it would have been."""
    plain = rates(*make(name), before + 8)
    optimizer, scheduler = make(name)
    rates(optimizer, scheduler, before)
    restored_optimizer, restored_scheduler = make(name)
    restored_optimizer.load_state_dict(optimizer.state_dict())
    if scheduler is not None:
        restored_scheduler.load_state_dict(scheduler.state_dict())
    assert half.apply_lr(restored_optimizer, restored_scheduler) == 0.5
    seen = rates(restored_optimizer, restored_scheduler, 8)
    torch.testing.assert_close(torch.tensor(seen), 0.5 * torch.tensor(plain[before:]))


def test_plateau(half: fusewire.Run) -> None:
    """ReduceLROnPlateau goes on from the scaled rate, and the user's floor stays where it is."""
    optimizer, _ = make("none")
    scheduler = s.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, min_lr=0.004)
    half.apply_lr(optimizer, scheduler)
    for _ in range(2):
        scheduler.step(1.0)
    assert scheduler.min_lrs == [0.004, 0.004]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.004])


def test_only_once(half: fusewire.Run) -> None:
    """A second call for the same optimizer and scheduler does nothing."""
    optimizer, scheduler = make("cosine")
    for _ in range(3):
        half.apply_lr(optimizer, scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.025]


def test_a_scheduler_that_comes_later(half: fusewire.Run) -> None:
    """A scheduler given in a second call is scaled then, the optimizer not again."""
    optimizer, scheduler = make("lambda")
    half.apply_lr(optimizer)
    half.apply_lr(optimizer, scheduler)
    assert rates(optimizer, scheduler, 2) == [[0.05, 0.025], [0.025, 0.0125]]


def test_tensor_rates(half: fusewire.Run) -> None:
    """A rate held in a tensor (capturable optimizers) is scaled in place: compiled code holds on to it."""
    rate = torch.tensor(0.1)
    optimizer = AdamW([torch.nn.Parameter(torch.zeros(2))], lr=rate)
    half.apply_lr(optimizer)
    assert optimizer.param_groups[0]["lr"] is rate
    torch.testing.assert_close(rate, torch.tensor(0.05))


def test_relative_to_the_snapshot(attach: Attach, tmp_path: Path) -> None:
    """A snapshot holds its own scaled rate: only the ratio of the scales is applied."""
    first = attach(run_dir=tmp_path, environ={"FUSEWIRE_LR_SCALE": "0.5"})
    assert first.save_snapshot(10, {"n": 1})
    first.complete()
    snapshot = tmp_path / "snapshots" / snapshot_name(10, 0)
    second = attach(environ={"FUSEWIRE_LR_SCALE": "0.25", "FUSEWIRE_RESUME_FROM": str(snapshot)})
    optimizer, _ = make("none")
    assert second.apply_lr(optimizer) == 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.025]


def test_something_else(half: fusewire.Run) -> None:
    """What is no optimizer is an error that is counted, not raised."""
    half.apply_lr(object())
    assert half.errors.counts["apply_lr"] == 1
