"""The faults themselves: what each really does to a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

import torch
from torch import Tensor, nn

_MEBIBYTE = 2**20


class Fault:
    """One fault: hooks that do nothing, for subclasses to override. Called only while the fault is active."""

    name: ClassVar[str]
    strength: ClassVar[float] = 0.0
    """Default of STRENGTH."""
    updates: ClassVar[int | None] = 1
    """Default of UPDATES that it lasts; None: to the end of the attempt."""

    def __init__(self, strength: float | None = None) -> None:
        self._strength = self.strength if strength is None else strength

    def begin(self) -> None:
        """Before an update."""

    def rewards(self, rewards: Tensor) -> Tensor:
        """The rewards that the policy learns from."""
        return rewards

    def entropy_coefficient(self, coefficient: float) -> float:
        """Weight of the entropy bonus."""
        return coefficient

    def gradients(self, model: nn.Module) -> None:
        """After the backward pass, before clipping."""

    def learning_rate(self, rate: float) -> float:
        """The rate that the optimizer steps with."""
        return rate


class LrSpike(Fault):
    """The optimizer steps with STRENGTH (1000) times its learning rate, for UPDATES (10) updates."""

    name = "lr-spike"
    strength = 1000.0
    updates = 10

    def learning_rate(self, rate: float) -> float:
        return rate * self._strength


class NanGradient(Fault):
    """One gradient becomes NaN in each minibatch of UPDATES (1) updates; the optimizer spreads it from there."""

    name = "nan-gradient"

    def gradients(self, model: nn.Module) -> None:
        parameter = next(model.parameters())
        if parameter.grad is not None:
            parameter.grad.view(-1)[0] = float("nan")


class GradientOverflow(Fault):
    """One element of a gradient becomes STRENGTH (1e30) in each minibatch: the norm overflows, clipping by it
    leaves a gradient of 0, and the policy stands still while every loss looks well."""

    name = "gradient-overflow"
    strength = 1e30
    updates = None

    def gradients(self, model: nn.Module) -> None:
        parameter = next(model.parameters())
        if parameter.grad is not None:
            parameter.grad.view(-1)[0] = self._strength


class EntropyCollapse(Fault):
    """The weight of the entropy bonus falls by STRENGTH (1) and below 0: the policy is paid for being certain."""

    name = "entropy-collapse"
    strength = 1.0
    updates = None

    def entropy_coefficient(self, coefficient: float) -> float:
        return coefficient - self._strength


class CriticExplosion(Fault):
    """The rewards that are learnt from grow by STRENGTH (1000): the critic's targets leave it far behind."""

    name = "critic-explosion"
    strength = 1000.0
    updates = None

    def rewards(self, rewards: Tensor) -> Tensor:
        return rewards * self._strength


class RewardCollapse(Fault):
    """The rewards that are learnt from change their sign: the policy unlearns what it was good at."""

    name = "reward-collapse"
    updates = None

    def rewards(self, rewards: Tensor) -> Tensor:
        return -rewards


class Hang(Fault):
    """The training thread sleeps for ever, as in a collective that never returns: SIGTERM does not wake it."""

    name = "hang"

    def begin(self) -> None:
        while True:
            time.sleep(3600)


class Crash(Fault):
    """The process is killed outright (SIGKILL), as by the kernel: nothing is flushed, nobody is told."""

    name = "crash"

    def begin(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class MemoryLeak(Fault):
    """Each update keeps STRENGTH (4) MiB of touched memory, for UPDATES (64) updates: 256 MiB at most."""

    name = "memory-leak"
    strength = 4.0
    updates = 64

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[Tensor] = []

    def begin(self) -> None:
        self._kept.append(torch.ones(int(self._strength * _MEBIBYTE), dtype=torch.uint8))


class IgnoreSigterm(Fault):
    """SIGTERM is ignored from here on: only SIGKILL ends the process."""

    name = "ignore-sigterm"

    def begin(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Grandchildren(Fault):
    """STRENGTH (3) processes are started that live in a session of their own, ignore SIGTERM, and outlive the
    trainer by up to ten minutes."""

    name = "grandchildren"
    strength = 3.0

    def begin(self) -> None:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        outer = (
            f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)"
        )
        for _ in range(int(self._strength)):
            subprocess.run([sys.executable, "-c", outer], check=True)


FAULTS: dict[str, type[Fault]] = {
    cls.name: cls
    for cls in (
        LrSpike, NanGradient, GradientOverflow, EntropyCollapse, CriticExplosion, RewardCollapse, Hang, Crash,
        MemoryLeak, IgnoreSigterm, Grandchildren,
    )
}  # fmt: skip
