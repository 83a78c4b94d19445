"""What the contract needs to know of containers, whichever engine runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.actuators import Actuator, Launch
from fusewire_webhook.actuators.docker import DockerActuator
from fusewire_webhook.settings.config import DockerConfig

from .contract import ActuatorContract, Behaviour
from .programs import appears
from .test_local_contract import SCRIPTS


class DockerContract(ActuatorContract):
    """Subclasses provide a fixture ``docker``: the section of the runs ``r`` and ``s``."""

    @pytest.fixture
    async def actuator(self, docker: DockerConfig) -> Any:
        self.docker = docker
        self.made: list[DockerActuator] = []
        yield self.successor(None)
        for one in self.made:
            await one.close()

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

    def successor(self, actuator: Actuator | None) -> DockerActuator:
        made = DockerActuator({"r": self.docker, "s": self.docker}, kill_seconds=5.0)
        self.made.append(made)
        return made
