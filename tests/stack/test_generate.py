"""The generated configuration, judged by Prometheus' and Alertmanager's own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire_webhook.errors import StackError
from fusewire_webhook.stack import (
    WebhookAddress,
    alertmanager_config,
    duration,
    prometheus_config,
    server_targets,
)

WEBHOOK = WebhookAddress(host="127.0.0.1", port=9095)


def tool(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def prometheus(webhook: WebhookAddress = WEBHOOK, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "alertmanager_url": "http://127.0.0.1:9093", "rule_files": [],
        "scrape_interval": 1.0, "evaluation_interval": 0.25,
    }  # fmt: skip
    return prometheus_config(webhook=webhook, **{**settings, **changes})


@pytest.fixture
def guarded(tmp_path: Path) -> WebhookAddress:
    """A webhook with token and TLS."""
    files = {name: tmp_path / name for name in ("token", "ca.pem", "cert.pem", "key.pem")}
    for file in files.values():
        file.write_text("x")
    return WebhookAddress(
        host="guard.example", port=443, token_file=str(files["token"]), ca_file=str(files["ca.pem"]),
        cert_file=str(files["cert.pem"]), key_file=str(files["key.pem"]),
    )  # fmt: skip


def test_promtool_accepts_it(tmp_path: Path) -> None:
    """promtool accepts the configuration of Prometheus, sub-second intervals included."""
    (tmp_path / "rules.yaml").write_text("groups: []")
    config = prometheus(rule_files=[str(tmp_path / "rules.yaml")], alertmanager_url="https://am.example/prefix/")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    tool("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    assert config["global"] == {"scrape_interval": "1s", "evaluation_interval": "250ms"}
    (target,) = config["alerting"]["alertmanagers"]
    assert (target["scheme"], target["path_prefix"]) == ("https", "/prefix")


def test_discovery(guarded: WebhookAddress) -> None:
    """Targets come from /sd every second, with the alert token by file and the webhook's authority."""
    (fusewire, itself) = prometheus(guarded)["scrape_configs"]
    (discovery,) = fusewire["http_sd_configs"]
    assert (discovery["url"], discovery["refresh_interval"]) == ("https://guard.example:443/sd", "1s")
    assert discovery["authorization"]["credentials_file"] == guarded.token_file
    assert discovery["tls_config"]["ca_file"] == guarded.ca_file
    assert "authorization" not in fusewire  # the trainer is not told the token
    assert (fusewire["job_name"], itself["job_name"]) == ("fusewire", "fusewire-webhook")


def test_servers_scrape_themselves(tmp_path: Path) -> None:
    """Prometheus and Alertmanager are targets under their own job, not more often than every 5 s."""
    (tmp_path / "servers.yml").write_text(
        yaml.safe_dump(server_targets(prometheus="http://127.0.0.1:1", alertmanager="http://127.0.0.1:2/am"))
    )
    config = prometheus(scrape_interval=0.25, servers_file="servers.yml")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    tool("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
    assert config["scrape_configs"][-1]["scrape_interval"] == "5s"
    itself, alertmanager = yaml.safe_load((tmp_path / "servers.yml").read_text())
    assert (itself["targets"], itself["labels"]["job"]) == (["127.0.0.1:1"], "prometheus")
    assert alertmanager["labels"]["__metrics_path__"] == "/am/metrics"


def test_without_a_token_there_is_no_authorization() -> None:
    """Without token and TLS neither is configured."""
    text = yaml.safe_dump([prometheus(), alertmanager_config(webhook=WEBHOOK)])
    assert "authorization" not in text
    assert "tls" not in text


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    people = {"webhook_configs": [{"url": "http://127.0.0.1:1/people"}]}
    config = alertmanager_config(webhook=WEBHOOK, people=people)
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
    return tmp_path / "alertmanager.yml"


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["action=trip", "severity=critical"], "fusewire-trip,people"),
        (["alertname=Watchdog"], "fusewire-watchdog"),
        (["severity=warning"], "people"),
        (["severity=page"], "people"),
        (["action=hold", "severity=info"], "nobody"),
    ],
)
def test_routes(routes: Path, labels: list[str], receivers: str) -> None:
    """Trips go to the webhook and to people, beats to the webhook only, the rest to people or to nobody."""
    found = tool("amtool", "config", "routes", "test",
                 f"--config.file={routes}", *labels)  # fmt: skip
    assert found.strip() == receivers


def test_amtool_accepts_token_and_tls(guarded: WebhookAddress, tmp_path: Path) -> None:
    """amtool accepts the configuration of Alertmanager; the token is a file there, too."""
    config = alertmanager_config(webhook=guarded)
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
    tool("amtool", "check-config", str(tmp_path / "alertmanager.yml"))
    (post,) = config["receivers"][0]["webhook_configs"]
    assert post["http_config"]["authorization"]["credentials_file"] == guarded.token_file
    assert post["send_resolved"] is True


def test_timing_of_the_routes() -> None:
    """Trips are sent one by one and at once; beats arrive once in 10 s."""
    trip, watchdog, *_ = alertmanager_config(webhook=WEBHOOK)["route"]["routes"]
    assert trip["group_by"] == ["..."]
    keys = ("group_wait", "group_interval", "repeat_interval")
    assert [trip[key] for key in keys] == ["0s", "5s", "1m"]
    assert [watchdog[key] for key in keys] == ["0s", "10s", "9s"]


def test_inhibition_spares_trips() -> None:
    """Every inhibition rule names as its target alerts that are no trips."""
    rules = alertmanager_config(webhook=WEBHOOK)["inhibit_rules"]
    assert rules
    assert all('action!="trip"' in rule["target_matchers"] for rule in rules)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1s"), (0.25, "250ms"), (90.0, "90s"), (1.5, "1500ms"), (0.001, "1ms")]
)
def test_durations(seconds: float, text: str) -> None:
    """Seconds become whole seconds or milliseconds."""
    assert duration(seconds) == text


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.0001])
def test_impossible_durations(seconds: float) -> None:
    """An interval below a millisecond is refused."""
    with pytest.raises(StackError, match="too short"):
        duration(seconds)


@pytest.mark.parametrize("url", ["127.0.0.1:9093", "ftp://x", "http://", "http://user:secret@host"])
def test_bad_alertmanager_urls(url: str) -> None:
    """A URL that is none is refused."""
    with pytest.raises(StackError, match="Alertmanager URL"):
        prometheus(alertmanager_url=url)


@pytest.mark.parametrize(
    ("host", "netloc"),
    [("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("::1", "[::1]:1"), ("guard", "guard:1")],
)
def test_wildcard_addresses(host: str, netloc: str) -> None:
    """A webhook that listens everywhere is reached on the loopback address."""
    assert WebhookAddress(host=host, port=1).netloc == netloc
