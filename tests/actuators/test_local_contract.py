"""The contract of all actuators, on real process trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusewire_webhook.actuators import Actuator, Launch
from fusewire_webhook.actuators.local import LocalActuator

from .contract import ActuatorContract, Behaviour
from .programs import NoGpu, appears

SCRIPTS: dict[Behaviour, str] = {
    "runs": 'echo up >"$1"; exec sleep 600',
    "exits 3": "exit 3",
    "obeys with 0": "trap 'exit 0' TERM; echo up >\"$1\"; while :; do sleep 0.05; done",
    "ignores TERM": "trap '' TERM; echo up >\"$1\"; while :; do sleep 0.05; done",
    "is preempted": "kill -TERM $$; sleep 600",
}


class TestLocalActuator(ActuatorContract):
    """LocalActuator keeps the contract."""

    def argv(self, behaviour: Behaviour) -> tuple[str, ...]:
        if behaviour == "cannot start":
            return ("/nonexistent/trainer",)
        return ("sh", "-c", SCRIPTS[behaviour])

    def launch(self, tmp_path: Path, behaviour: Behaviour = "runs", run: str = "r") -> Launch:
        plain: dict[str, Any] = vars(super().launch(tmp_path, behaviour, run))
        argv = plain["argv"] if behaviour == "cannot start" else (*plain["argv"], "sh", str(tmp_path / "up"))
        return Launch(**{**plain, "argv": argv})

    async def ready(self, tmp_path: Path, launch: Launch) -> None:
        await appears(tmp_path / "up")

    def successor(self, actuator: Actuator) -> Actuator:
        return LocalActuator(gpu=NoGpu(), kill_seconds=5.0)
