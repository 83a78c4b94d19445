"""The committed files of the stack agree with each other and with the code."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.docker_spec import container
from fusewire_webhook.demo.scenarios import SCENARIOS, Pace
from fusewire_webhook.demo.scenarios import config as demo_config
from fusewire_webhook.settings.amconfig import problems
from fusewire_webhook.settings.checks import check
from fusewire_webhook.settings.config import AuthConfig, Config, ListenConfig
from fusewire_webhook.settings.loader import build, read_yaml
from fusewire_webhook.socket_proxy.creation import Allowed, Creation
from fusewire_webhook.socket_proxy.shapes import Refused
from fusewire_webhook.stack.generate import WebhookAddress, prometheus_config, server_targets

COMPOSE = Path(__file__).parents[2] / "compose"
SETUPS = sorted(path.name for path in (COMPOSE / "setup").iterdir())
STACK: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
ONE_SHOT = {"init", "trainer-image", "demo"}


@pytest.mark.parametrize("setup", SETUPS)
def test_every_configuration_can_be_served(setup: str) -> None:
    """Each fusewire.yml is a configuration that fusewire takes, but for the tokens that exist in the stack only."""
    path = COMPOSE / "setup" / setup / "fusewire.yml"
    config = build(Config, read_yaml(path), source=str(path))
    assert config.listen.host == "0.0.0.0"
    check(dataclasses.replace(config, listen=ListenConfig(), auth=AuthConfig()), source=str(path))
    for run in config.runs.values():
        assert run.docker is not None
        assert run.docker.image == SERVICES["trainer-image"]["image"]
        assert run.docker.network == STACK["networks"]["trainers"]["name"]
        assert run.docker.volumes == (f"{STACK['volumes']['runs']['name']}:{config.runs_dir}",)


@pytest.mark.parametrize(
    ("setup", "interval", "rules"), [("run", 1.0, "*.rules.yaml"), ("demo", 0.25, "presets/demo.rules.yaml")]
)
def test_prometheus_is_configured_as_by_fusewire_run(setup: str, interval: float, rules: str) -> None:
    """prometheus.yml is what ``fusewire run`` would have written for these addresses."""
    written = prometheus_config(
        webhook=WebhookAddress(host="webhook", port=9095, token_file="/run/secrets/alert_token"),
        alertmanager_url="http://alertmanager:9093",
        rule_files=[f"/etc/fusewire/rules/{rules}"],
        scrape_interval=interval,
        evaluation_interval=interval,
        servers_file="servers.json",
    )
    servers = written["scrape_configs"][-1]
    del servers["file_sd_configs"]
    servers["static_configs"] = server_targets(
        prometheus="http://localhost:9090", alertmanager="http://alertmanager:9093"
    )
    assert yaml.safe_load((COMPOSE / "setup" / setup / "prometheus.yml").read_text()) == written


def test_the_demonstration_is_that_of_the_command() -> None:
    """The run in containers has the settings of ``fusewire demo``, except that it is a container."""
    path = COMPOSE / "setup" / "demo" / "fusewire.yml"
    contained = build(Config, read_yaml(path), source=str(path))
    plain = build(Config, demo_config(SCENARIOS["lr-spike"], Pace()), source="demo")
    (name,) = plain.runs
    run = dataclasses.replace(contained.runs[name], docker=None)
    command = tuple("python" if word == sys.executable else word for word in plain.runs[name].command)
    assert run == dataclasses.replace(plain.runs[name], command=command)
    assert dataclasses.replace(contained.prometheus, url=None) == plain.prometheus


def test_alertmanager_delivers_to_the_webhook() -> None:
    """The stack's Alertmanager posts trips and beats to the webhook's name."""
    config = yaml.safe_load((COMPOSE / "alertmanager" / "alertmanager.yml").read_text())
    assert problems(config, webhook_url="http://webhook:9095/alerts") == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    """Pinned image, read-only, no capabilities, a memory limit; what lives on has a probe and restarts."""
    service = SERVICES[name]
    assert service["image"].partition(":")[2] not in {"", "latest"}
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service
    assert "privileged" not in service
    assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")
    assert ("healthcheck" in service) == (name not in ONE_SHOT)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_only_the_proxy_has_the_socket() -> None:
    """Nobody but the socket proxy sees Docker's socket, and nobody but the webhook sees the proxy."""
    holders = {name for name, one in SERVICES.items() if any("docker.sock" in v for v in one.get("volumes", ()))}
    assert holders == {"socket-proxy"}
    neighbours = {name for name, one in SERVICES.items() if "control" in one.get("networks", ())}
    assert neighbours == {"socket-proxy", "webhook"}
    assert STACK["networks"]["control"]["internal"] is True


@pytest.mark.parametrize("setup", SETUPS)
def test_the_proxy_allows_what_is_configured(setup: str) -> None:
    """Each committed run may be created with the settings that the stack gives the proxy, on no other network."""
    path = COMPOSE / "setup" / setup / "fusewire.yml"
    allowed = Creation(Allowed.of(SERVICES["socket-proxy"]["environment"]))
    for name, run in build(Config, read_yaml(path), source=str(path)).runs.items():
        assert run.docker is not None
        launch = Launch(run=name, attempt=0, argv=run.command, environment=run.env, run_dir=f"/runs/{name}")
        allowed.body(json.dumps(container(launch, run.docker, start="mark")).encode())
        elsewhere = dataclasses.replace(run.docker, network="fusewire_stack_watch")
        with pytest.raises(Refused, match="ALLOWED_NETWORK"):
            allowed.body(json.dumps(container(launch, elsewhere, start="mark")).encode())


def test_the_command_token_is_the_webhooks_alone() -> None:
    """No other service can read the token that commands runs."""
    holders = {
        name for name, one in SERVICES.items() if any("secrets-command" in v for v in one.get("volumes", ()))
    }
    assert holders == {"init", "webhook"}
