"""Does a Prometheus' configuration ask the webhook what to scrape, and soon enough? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from fusewire_webhook.settings.amconfig import duration
from fusewire_webhook.watch.prometheus import ScrapeTarget

REFRESH_SECONDS = 10.0
"""Longest ``refresh_interval``: an attempt that has just started is unseen for so long."""
JOB = "fusewire"
"""The rules select on it."""


def problems(config: Mapping[str, Any], *, token: bool) -> list[str]:
    """What is wrong with a configuration, one sentence with the remedy each; empty: nothing.

    Args:
        config: the parsed YAML.
        token: the webhook asks for one at ``/sd``.
    """
    asked = [
        (str(job.get("job_name")), discovery)
        for job in config.get("scrape_configs") or []
        for discovery in job.get("http_sd_configs") or []
        if urlsplit(str(discovery.get("url", ""))).path.endswith("/sd")
    ]
    if not asked:
        return [
            f"no scrape job asks the webhook what to scrape, so no rule sees a run: add the job {JOB} with "
            "http_sd_configs (docs/configuration.md)"
        ]
    ours = [(job, discovery) for job, discovery in asked if job == JOB] or asked  # others may serve /sd, too
    return [words for job, discovery in ours for words in _of_one(job, discovery, token=token)]


def _of_one(job: str, discovery: Mapping[str, Any], *, token: bool) -> Iterable[str]:
    if job != JOB:
        yield (
            f"the scrape job {job} asks /sd, but the rules select on job {JOB}: rename it, or add the job {JOB} "
            "where that is the /sd of another service"
        )
    refresh = str(discovery.get("refresh_interval", "1m"))
    seconds = duration(refresh)
    if seconds is None or seconds > REFRESH_SECONDS:
        yield f"the scrape job {job} asks /sd every {refresh}: a new attempt is unseen for as long; take 1s"
    authorization = discovery.get("authorization")
    if authorization and not authorization.get("type"):
        yield (
            f"the scrape job {job}: authorization has no type, so 2.42 sends no scheme and /sd answers 401; "
            "write authorization: {type: Bearer, credentials_file: …}"
        )
    if token and not (authorization or discovery.get("basic_auth")):
        yield (
            f"the scrape job {job} sends no token, and auth.alert_token_file asks for one: add authorization: "
            "{type: Bearer, credentials_file: …} to its http_sd_configs"
        )


def unscraped(targets: Iterable[ScrapeTarget], runs: Iterable[str]) -> list[str]:
    """Which of these runs' exporters Prometheus has as targets and does not reach: warnings.

    An attempt is listed before its trainer listens. The webhook says which one is unscraped for too long.
    """
    known = set(runs)
    return [
        f"warning: {target.labels['run']}: attempt {target.labels.get('attempt', '?')} is not scraped: "
        f"{target.last_error}"
        for target in targets
        if target.labels.get("run") in known and target.health == "down"
    ]
