"""When a fault strikes, for how long, and in which attempts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from fusewire.files import write_json
from fusewire.snapshots.layout import STABLE_LINK, parse_name
from fusewire_trainer.errors import SettingError
from fusewire_trainer.faults.kinds import FAULTS, Fault


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
            return cls(step=_least(0, step) if colon else 0, promoted=True)
        return cls(step=_least(0, text))


def _least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise ValueError
    return number


def _strength(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError
    return number


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
                strength=_strength(numbers[0]) if numbers else None,
                updates=_least(1, numbers[1]) if len(numbers) > 1 else None,
            )
        except ValueError:
            raise SettingError(
                f"--fault {text}: write NAME[:STRENGTH[:UPDATES]]@WHEN with positive numbers, such as "
                "lr-spike:1000:10@50"
            ) from None


@dataclass
class _Planned:
    spec: FaultSpec
    fault: Fault
    lasts: int | None
    memory: Path | None
    """Remembers across attempts that it has struck."""
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
        self._planned: list[_Planned] = []
        for spec in specs:
            same = sum(planned.spec.name == spec.name for planned in self._planned)
            file = f"fault-{spec.name}-{same + 1}.json" if same else f"fault-{spec.name}.json"
            self._planned.append(
                _Planned(
                    spec=spec,
                    fault=FAULTS[spec.name](spec.strength),
                    lasts=spec.updates if spec.updates is not None else FAULTS[spec.name].updates,
                    memory=run_dir / file if run_dir else None,
                )
            )
        self._active: list[Fault] = []

    def begin(self, step: int) -> None:
        """Before the update that follows ``step`` finished ones."""
        self._active = []
        for planned in self._planned:
            if planned.began is None and self._strikes(planned, step):
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

    def _strikes(self, planned: _Planned, step: int) -> bool:
        if not planned.spec.trigger.reached(step, self._run_dir):
            return False
        if planned.memory is None:
            return True
        if planned.memory.exists() and not self._every_attempt:
            return False
        write_json(planned.memory, {"attempt": self._attempt, "step": step, "at": time.time()})
        return True
