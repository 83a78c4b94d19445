"""Where an attempt's exporter binds, and under which address Prometheus reaches it there."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire_webhook.actuators.docker_spec import EVERY_INTERFACE, HOST_NETWORK, network_alias
from fusewire_webhook.settings.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Place:
    """Of the exporters of one run. The default: both on the webhook's own machine."""

    run: str = ""
    bind: str | None = None
    """Address that exporters are told to bind; None: the one on which ports are allocated."""
    host: str | None = None
    """Address under which an exporter that binds every interface is reached; None: its container's name."""

    def reached(self, attempt: int, bound: str) -> str:
        """The address for Prometheus of an exporter that says that it is bound to ``bound``."""
        if self.bind != EVERY_INTERFACE or bound != EVERY_INTERFACE:
            return bound
        return network_alias(self.run, attempt) if self.host is None else self.host


def place_of(run: str, config: RunConfig) -> Place:
    """Inside a container the loopback address is the container's own, unless it is on the host's network."""
    docker = config.docker
    if docker is None or (docker.network == HOST_NETWORK and docker.exporter_host is None):
        return Place(run=run)
    return Place(run=run, bind=EVERY_INTERFACE, host=docker.exporter_host)
