"""What ``fusewire check`` says of a Prometheus' scrape jobs."""

from __future__ import annotations

from typing import Any

import pytest

from fusewire_webhook.settings.promconfig import problems, unscraped
from fusewire_webhook.watch.prometheus import ScrapeTarget

BEARER = {"type": "Bearer", "credentials_file": "/t"}


def job(name: str = "fusewire", **discovery: Any) -> dict[str, Any]:
    settings = {"url": "https://webhook:9095/sd", "refresh_interval": "1s", **discovery}
    return {"scrape_configs": [{"job_name": "node"}, {"job_name": name, "http_sd_configs": [settings]}]}


@pytest.mark.parametrize(
    ("config", "token", "words"),
    [
        (job(), False, []),
        (job(authorization=BEARER), True, []),
        (job(basic_auth={"username": "p", "password_file": "/t"}), True, []),
        ({}, False, ["no scrape job asks"]),
        ({"scrape_configs": [{"job_name": "fusewire", "static_configs": []}]}, False, ["no scrape job asks"]),
        (job(url="http://other/targets"), False, ["no scrape job asks"]),
        (job(), True, ["sends no token"]),
        (job(authorization={"credentials_file": "/t"}), True, ["type: Bearer"]),
        (job(refresh_interval="1m"), False, ["every 1m"]),
        (job("trainers"), False, ["rename it"]),
        (job("trainers", refresh_interval="30s"), True, ["rename it", "every 30s", "sends no token"]),
    ],
)
def test_what_keeps_prometheus_from_asking(config: dict[str, Any], token: bool, words: list[str]) -> None:
    """One sentence for each thing that would leave runs unseen; nothing of a configuration that works."""
    found = problems(config, token=token)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_the_discovery_of_another_service_is_its_own_business() -> None:
    """A path that ends in /sd is not fusewire's alone: beside the job fusewire other jobs may ask as they like."""
    config = job(authorization=BEARER)
    config["scrape_configs"] += job("nodes", url="http://inventory/sd", refresh_interval="5m")["scrape_configs"]
    assert problems(config, token=True) == []
    (words,) = problems(job("nodes", url="http://inventory/sd"), token=False)
    assert "add the job fusewire" in words


def test_a_refresh_interval_that_is_not_written_is_a_minute() -> None:
    """Prometheus' own default leaves a new attempt unseen."""
    config = job()
    del config["scrape_configs"][1]["http_sd_configs"][0]["refresh_interval"]
    assert "every 1m" in problems(config, token=False)[0]


def test_targets_that_are_down() -> None:
    """Of the runs that are guarded, with Prometheus' own reason, and a warning: a trainer that is still starting is
    listed and does not answer yet. One that is not scraped yet is no fault."""
    targets = [
        ScrapeTarget(labels={"run": run, "attempt": "2"}, health=health, last_error="connection refused")
        for run, health in (("a", "down"), ("b", "up"), ("c", "unknown"), ("stranger", "down"))
    ]
    assert unscraped(targets, ["a", "b", "c"]) == ["warning: a: attempt 2 is not scraped: connection refused"]
