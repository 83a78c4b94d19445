"""Which actuator a configuration asks for."""

from __future__ import annotations

from fusewire_webhook.actuators import Actuator
from fusewire_webhook.actuators.dispatch import DispatchingActuator
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.settings.config import Config


def actuator_of(config: Config) -> Actuator:
    """One actuator for all runs: its bounds are the most patient ones that a run asks for."""
    stops = [run.stop for run in config.runs.values()]
    kill_seconds = max((stop.kill_seconds for stop in stops), default=10.0)
    local = LocalActuator(
        kill_seconds=kill_seconds,
        gpu_release_seconds=max((stop.gpu_release_seconds for stop in stops), default=30.0),
    )
    contained = {name: run.docker for name, run in config.runs.items() if run.docker is not None}
    if not contained:
        return local
    from fusewire_webhook.actuators.docker import DockerActuator  # noqa: PLC0415 - only where it is used

    return DispatchingActuator(
        {"local": local, "docker": DockerActuator(contained, kill_seconds=kill_seconds)},
        kind_of={name: "docker" if name in contained else "local" for name in config.runs},
    )
