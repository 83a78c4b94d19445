"""Faults that really happen to a training, for demonstrations and tests. No reported number is ever faked.

``--fault NAME[:STRENGTH[:UPDATES]]@WHEN`` where WHEN is an update number, or ``promoted``: the first update after
a snapshot of the run was promoted (its link ``stable_checkpoint_latest`` exists), or ``promoted:60``: one of update
60 or later. A fault strikes in one attempt only (the file ``fault-NAME.json`` in the run directory remembers which)
unless it is asked for in every attempt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fusewire.files import write_json
from fusewire.snapshots.layout import STABLE_LINK, parse_name
from fusewire_trainer.errors import SettingError

_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """When a fault strikes first."""

    step: int
    """Update; with ``promoted`` that of the snapshot."""
    promoted: bool = False
    """It waits for the promotion of a snapshot, not for the update itself."""

    def reached(self, step: int, run_dir: Path | None) -> bool:
        """Whether it strikes at the update ``step``, or has before."""
        if not self.promoted:
            return step >= self.step
        try:
            stable = parse_name((run_dir / STABLE_LINK).readlink().name) if run_dir else None
        except OSError:
            return False
        return stable is not None and stable[0] >= self.step

    @classmethod
    def parse(cls, text: str) -> Trigger:
        """Read ``UPDATE``, ``promoted`` or ``promoted:UPDATE``; ValueError: it is none of them."""
        what, colon, step = text.partition(":")
        if what == "promoted":
            return cls(step=int(step) if colon else 0, promoted=True)
        return cls(step=int(text))


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
        LrSpike, NanGradient, EntropyCollapse, CriticExplosion, RewardCollapse, Hang, Crash, MemoryLeak,
        IgnoreSigterm, Grandchildren,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FaultSpec:
    """One ``--fault`` of the command line."""

    name: str
    trigger: Trigger
    strength: float | None = None
    updates: int | None = None

    @classmethod
    def parse(cls, text: str) -> FaultSpec:
        """Read ``NAME[:STRENGTH[:UPDATES]]@WHEN``.

        Raises:
            SettingError: it is not of that form, or the name is unknown.
        """
        what, at, when = text.partition("@")
        name, *numbers = what.split(":")
        if name not in FAULTS:
            raise SettingError(f"--fault {text}: {name!r} is unknown, take one of {', '.join(FAULTS)}")
        try:
            if not at or len(numbers) > 2:
                raise ValueError
            return cls(
                name=name,
                trigger=Trigger.parse(when),
                strength=float(numbers[0]) if numbers else None,
                updates=int(numbers[1]) if len(numbers) > 1 else None,
            )
        except ValueError:
            raise SettingError(
                f"--fault {text}: write NAME[:STRENGTH[:UPDATES]]@WHEN, such as lr-spike:1000:10@50"
            ) from None


@dataclass
class _Planned:
    spec: FaultSpec
    fault: Fault
    lasts: int | None
    began: int | None = None


class Faults:
    """The faults of one attempt. The training loop calls every hook at every update."""

    def __init__(
        self,
        specs: Sequence[FaultSpec] = (),
        *,
        run_dir: Path | None = None,
        attempt: int = 0,
        every_attempt: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._every_attempt = every_attempt
        self._say = say
        self._planned = [
            _Planned(
                spec=spec,
                fault=FAULTS[spec.name](spec.strength),
                lasts=spec.updates if spec.updates is not None else FAULTS[spec.name].updates,
            )
            for spec in specs
        ]
        self._active: list[Fault] = []

    def begin(self, step: int) -> None:
        """Before the update that follows ``step`` finished ones."""
        self._active = []
        for planned in self._planned:
            if planned.began is None and self._strikes(planned.spec, step):
                planned.began = step
                self._say(f"fault {planned.spec.name} strikes at update {step}: {type(planned.fault).__doc__}")
            if planned.began is not None and (planned.lasts is None or step - planned.began < planned.lasts):
                self._active.append(planned.fault)
        for fault in self._active:
            fault.begin()

    def rewards(self, rewards: Tensor) -> Tensor:
        """The rewards that the policy learns from."""
        for fault in self._active:
            rewards = fault.rewards(rewards)
        return rewards

    def entropy_coefficient(self, coefficient: float) -> float:
        """Weight of the entropy bonus."""
        for fault in self._active:
            coefficient = fault.entropy_coefficient(coefficient)
        return coefficient

    def gradients(self, model: nn.Module) -> None:
        """After the backward pass, before clipping."""
        for fault in self._active:
            fault.gradients(model)

    @contextmanager
    def learning_rate(self, optimizer: Optimizer) -> Iterator[None]:
        """The optimizer's learning rates while it steps; they are as before afterwards."""
        with ExitStack() as undo:
            for group in optimizer.param_groups:
                undo.callback(group.__setitem__, "lr", group["lr"])
                for fault in self._active:
                    group["lr"] = fault.learning_rate(group["lr"])
            yield

    def _strikes(self, spec: FaultSpec, step: int) -> bool:
        if not spec.trigger.reached(step, self._run_dir):
            return False
        if self._every_attempt or self._run_dir is None:
            return True
        memory = self._run_dir / f"fault-{spec.name}.json"
        if memory.exists():
            return False
        write_json(memory, {"attempt": self._attempt, "step": step, "at": time.time()})
        return True
