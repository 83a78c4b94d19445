"""Who hears of what: the committed configuration of Alertmanager, judged by amtool and by fusewire's own check."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire_webhook.settings.amconfig import problems
from fusewire_webhook.stack import WebhookAddress, alertmanager_config
from paging import site

CONFIG = site.FOLDER / "alertmanager.yml"
RULES = Path(__file__).parents[2] / "rules"


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def receivers(**labels: str) -> list[str]:
    """The receivers that an alert with these labels reaches."""
    given = [f"{name}={value}" for name, value in labels.items()]
    return amtool("config", "routes", "test", f"--config.file={CONFIG}", *given).strip().split(",")


def test_amtool_accepts_it(tmp_path: Path) -> None:
    """amtool accepts the committed file, and the templates parse."""
    amtool("check-config", str(CONFIG))
    amtool("check-config", str(site.local(tmp_path, webhook="http://127.0.0.1:1/alerts", smtp="127.0.0.1:1")))


def test_fusewire_check_accepts_it() -> None:
    """`fusewire check` finds nothing to say about it."""
    assert problems(site.committed(), webhook_url="http://webhook:9095/alerts") == []


@pytest.mark.parametrize(
    ("labels", "reached"),
    [
        ({"action": "trip", "class": "divergence", "severity": "critical"}, ["fusewire-trip", "people-trip"]),
        ({"action": "trip", "class": "infrastructure", "severity": "critical"}, ["fusewire-trip", "people-trip"]),
        ({"action": "trip", "severity": "warning"}, ["fusewire-trip", "people-trip"]),
        ({"action": "trip", "severity": "info"}, ["fusewire-trip", "people-trip"]),
        ({"action": "notify", "severity": "page"}, ["people-page"]),
        ({"alertname": "WatchDegraded", "action": "notify", "severity": "page"}, ["people-page"]),
        ({"action": "notify", "severity": "warning"}, ["people"]),
        ({"action": "hold", "severity": "info"}, ["nobody"]),
        ({"alertname": "Watchdog", "action": "watchdog", "severity": "none"}, ["fusewire-watchdog"]),
        ({"alertname": "SomethingElse"}, ["people"]),
    ],
)  # fmt: skip
def test_routes(labels: dict[str, str], reached: list[str]) -> None:
    """Trips go to the webhook and to people, beats to the webhook only, the rest to the people of its severity."""
    assert receivers(**labels, run="demo") == reached


def default_pack() -> list[dict[str, Any]]:
    """Every alert rule of the default pack."""
    return [
        rule
        for path in sorted(RULES.glob("*.rules.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


def test_every_alert_of_the_default_pack_is_heard() -> None:
    """Each trip reaches the webhook; each other alert reaches somebody, save those that only the gate uses."""
    alerts = default_pack()
    assert alerts
    for rule in alerts:
        reached = receivers(alertname=rule["alert"], **rule["labels"])
        match rule["labels"]["action"]:
            case "trip":
                assert reached == ["fusewire-trip", "people-trip"]
            case "watchdog":
                assert reached == ["fusewire-watchdog"]
            case "hold":
                assert reached == ["nobody"]
            case _:
                assert reached[0].startswith("people")


def test_both_configurations_agree_on_what_the_webhook_gets() -> None:
    """The one that `fusewire run` generates has the same trip route, watchdog route and inhibition."""
    generated = alertmanager_config(
        webhook=WebhookAddress(host="webhook", port=9095, token_file="/run/secrets/alert_token")
    )
    example = site.committed()
    ours = {"fusewire-trip", "fusewire-watchdog"}

    def fusewires(config: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        routes = [route for route in config["route"]["routes"] if route["receiver"] in ours]
        return routes, [receiver for receiver in config["receivers"] if receiver["name"] in ours]

    assert fusewires(generated) == fusewires(example)
    timing = [{**route, "receiver": route["receiver"].partition("-")[0]} for route in example["route"]["routes"]]
    assert [
        {**route, "receiver": route["receiver"].partition("-")[0]} for route in generated["route"]["routes"]
    ] == timing
    assert generated["inhibit_rules"] == example["inhibit_rules"]
    assert example["route"]["routes"][0]["receiver"] == generated["route"]["routes"][0]["receiver"]


def test_secrets_are_files() -> None:
    """No secret stands in the file: passwords and tokens are read from files under /run/secrets."""
    text = CONFIG.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(?:smtp_auth_password|auth_password|credentials|password):", text, re.MULTILINE)
    files = re.findall(r"(?:password_file|credentials_file): ([^\s}]+)", text)
    assert len(files) == 3
    assert all(file.startswith("/run/secrets/") for file in files)
