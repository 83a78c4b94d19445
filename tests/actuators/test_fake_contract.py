"""The contract of all actuators, on the fake that the engine's tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire_webhook.actuators import Actuator, Launch
from fusewire_webhook.actuators.fake import FakeActuator, FakeProcess

from .contract import ActuatorContract, Behaviour


class TestFakeActuator(ActuatorContract):
    """FakeActuator keeps the contract."""

    cannot_express = frozenset({"obeys with 0", "ignores TERM"})

    @pytest.fixture
    def actuator(self) -> FakeActuator:
        self.fake = FakeActuator(on_start=self.behave)
        return self.fake

    def behave(self, process: FakeProcess) -> None:
        key = process.launch.run, process.launch.attempt
        if process.launch.argv == ("exits 3",):
            self.fake.exit(*key, 3)
        elif process.launch.argv == ("is preempted",):
            self.fake.exit(*key, 143, reason="preempted")

    def argv(self, behaviour: Behaviour) -> tuple[str, ...]:
        return (behaviour,)

    def launch(self, tmp_path: Path, behaviour: Behaviour = "runs", run: str = "r") -> Launch:
        if behaviour == "cannot start":
            self.fake.broken["r"] = "/nonexistent/trainer: not found"
        return super().launch(tmp_path, behaviour, run)

    def successor(self, actuator: Actuator) -> Actuator:
        return actuator

    async def ready(self, tmp_path: Path, launch: Launch) -> None:
        """A fake process behaves from its start on."""
