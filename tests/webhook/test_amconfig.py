"""Is a trip alert delivered by this Alertmanager configuration? Held against amtool's own answer."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire_webhook.settings.amconfig import duration, parse_matcher, problems, reached
from fusewire_webhook.stack.generate import WebhookAddress, alertmanager_config

URL = "http://127.0.0.1:9095/alerts"


@pytest.fixture
def config() -> dict[str, Any]:
    return copy.deepcopy(alertmanager_config(webhook=WebhookAddress(host="127.0.0.1", port=9095)))


def test_what_fusewire_generates_is_right(config: dict[str, Any]) -> None:
    """The checker and the generator agree."""
    assert problems(config, webhook_url=URL) == []


def _drop_route(config: dict[str, Any]) -> None:
    del config["route"]["routes"][0]


def _group(config: dict[str, Any]) -> None:
    config["route"]["routes"][0]["group_by"] = ["run"]


def _inherit(config: dict[str, Any]) -> None:
    del config["route"]["routes"][0]["group_wait"]


def _never_repeat(config: dict[str, Any]) -> None:
    config["route"]["routes"][0]["repeat_interval"] = "4h"


def _truncate(config: dict[str, Any]) -> None:
    config["receivers"][0]["webhook_configs"][0]["max_alerts"] = 10


def _mute(config: dict[str, Any]) -> None:
    config["route"]["routes"][0]["mute_time_intervals"] = ["weekends"]


def _shadow(config: dict[str, Any]) -> None:
    """A team's route for everything critical stands before ours and does not continue."""
    config["route"]["routes"].insert(0, {"receiver": "people", "matchers": ['severity="critical"']})


def _only_divergence(config: dict[str, Any]) -> None:
    config["route"]["routes"][0]["matchers"].append('class="divergence"')


def _inhibit(config: dict[str, Any]) -> None:
    config["inhibit_rules"].append({"source_matchers": ['severity="critical"'], "target_matchers": ['run!=""']})


def _no_watchdog(config: dict[str, Any]) -> None:
    del config["route"]["routes"][1]


def _slow_watchdog(config: dict[str, Any]) -> None:
    config["route"]["routes"][1]["repeat_interval"] = "1m"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop_route, "do not reach"),
        (_group, "group_by"),
        (_inherit, "group_wait: 30s"),
        (_never_repeat, "repeat_interval: 4h"),
        (_truncate, "max_alerts"),
        (_mute, "mute_time_intervals"),
        (_shadow, "do not reach"),
        (_only_divergence, 'class="infrastructure" do not reach'),
        (_inhibit, "inhibit_rules[1] can silence a trip alert"),
        (_no_watchdog, "dead man's switch gets no beat"),
        (_slow_watchdog, "beats every 60 s"),
    ],
)
def test_each_fault_is_named(config: dict[str, Any], change: Callable[[dict[str, Any]], None], words: str) -> None:
    """Whatever would lose, delay or silence a trip alert is found, with the remedy."""
    change(config)
    assert any(words in problem for problem in problems(config, webhook_url=URL))


def test_a_hidden_address_is_taken_for_ours(config: dict[str, Any]) -> None:
    """Newer Alertmanagers show no addresses; what cannot be seen is not called wrong."""
    for receiver in config["receivers"][:2]:
        receiver["webhook_configs"][0]["url"] = "<secret>"
    assert problems(config, webhook_url=URL) == []


def test_another_webhook_is_not_ours(config: dict[str, Any]) -> None:
    """A receiver that posts elsewhere does not deliver to fusewire."""
    assert any("do not reach" in problem for problem in problems(config, webhook_url="http://10.0.0.1/alerts"))


TREE = {
    "route": {
        "receiver": "root",
        "routes": [
            {"receiver": "a", "match": {"action": "trip"}, "continue": True},
            {
                "receiver": "b",
                "matchers": ['run=~"car.*"', "severity!=info"],
                "routes": [{"match_re": {"x": "y|z"}}],
            },
            {"matchers": ['{team="ml",action="trip"}'], "receiver": "c"},
            {"receiver": "d", "match": {"severity": ""}},
        ],
    },
    "receivers": [{"name": name} for name in ("root", "a", "b", "c", "d")],
}


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not on PATH")
@pytest.mark.parametrize(
    "labels",
    [
        {"action": "trip", "severity": "critical", "run": "cartpole"},
        {"action": "trip", "severity": "info", "run": "cartpole"},
        {"action": "trip", "team": "ml", "severity": "info"},
        {"severity": "critical", "run": "mycar"},
        {"run": "car", "severity": "info", "x": "y"},
        {"run": "car", "severity": "high", "x": "yz"},
        {"run": "x"},
    ],
)
def test_routes_are_those_of_amtool(tmp_path: Path, labels: dict[str, str]) -> None:
    """For any alert the same receivers are reached as in Alertmanager's own implementation."""
    file = tmp_path / "alertmanager.yml"
    file.write_text(yaml.safe_dump(TREE))
    given = [f"{name}={value}" for name, value in labels.items()]
    command = ["amtool", "config", "routes", "test", f"--config.file={file}", *given]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert ",".join(route.receiver for route in reached(TREE, labels)) == told


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("1m30s", 90), ("250ms", 0.25), ("1w", 604800), ("0", 0), ("soon", None), ("", None)],
)
def test_durations_are_alertmanagers(text: str, seconds: float | None) -> None:
    """Compound durations are understood, anything else is not taken for one."""
    assert duration(text) == seconds


def test_a_matcher_that_is_none_is_refused() -> None:
    """An unreadable matcher is an error, never "matches everything"."""
    with pytest.raises(ValueError, match="no matcher"):
        parse_matcher("action trip")
