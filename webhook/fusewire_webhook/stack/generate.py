"""The configuration of the Prometheus and Alertmanager that ``fusewire run`` starts: pure functions.

The numbers are those of docs/architecture.md: discovery every second, alerts re-sent every 5 s, trip alerts
delivered one by one and at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fusewire_webhook.errors import StackError

TRIP_RECEIVER = "fusewire-trip"
WATCHDOG_RECEIVER = "fusewire-watchdog"
PEOPLE_RECEIVER = "people"
NOBODY = "nobody"
SERVERS_SECONDS = 5.0
"""How often Prometheus and Alertmanager are scraped at most: their own metrics are many and change slowly."""


@dataclass(frozen=True, kw_only=True)
class WebhookAddress:
    """Where Prometheus and Alertmanager reach the webhook."""

    host: str
    port: int
    token_file: str | None = None
    """Absolute path of the file with the alert token."""
    ca_file: str | None = None
    """Absolute path of the authority that signed the webhook's certificate; set: https."""
    cert_file: str | None = None
    """Client certificate, where the webhook asks for one."""
    key_file: str | None = None

    @property
    def netloc(self) -> str:
        """``host:port`` as it stands in a URL; a wildcard address becomes the loopback one."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.ca_file else "http"

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.netloc}{path}"

    def tls(self) -> dict[str, str]:
        """``tls_config`` of both programs; empty without TLS."""
        given = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return {key: path for key, path in given.items() if path} if self.ca_file else {}

    def authorization(self) -> dict[str, str]:
        """``authorization`` of both programs; empty without a token."""
        return {"type": "Bearer", "credentials_file": self.token_file} if self.token_file else {}


def duration(seconds: float) -> str:
    """Write seconds as both programs read them; below one millisecond there is nothing.

    Raises:
        StackError: the duration is shorter than a millisecond.
    """
    milliseconds = round(seconds * 1000)
    if milliseconds < 1:
        raise StackError(f"an interval of {seconds} s is too short: take at least 0.001")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def prometheus_config(
    *,
    webhook: WebhookAddress,
    alertmanager_url: str,
    rule_files: Sequence[str],
    scrape_interval: float,
    evaluation_interval: float,
    discovery_interval: float = 1.0,
    servers_file: str | None = None,
) -> dict[str, Any]:
    """Configuration of Prometheus; intervals in seconds, ``rule_files`` absolute paths.

    ``servers_file`` is where :func:`server_targets` will be written, seen from the configuration's folder: set,
    Prometheus and Alertmanager are scraped, too.

    Raises:
        StackError: an interval is shorter than a millisecond, or the URL is none.
    """
    http = _without_empty(authorization=webhook.authorization(), tls_config=webhook.tls())
    return {
        "global": {
            "scrape_interval": duration(scrape_interval),
            "evaluation_interval": duration(evaluation_interval),
        },
        "rule_files": list(rule_files),
        "alerting": {"alertmanagers": [_alertmanager_target(alertmanager_url)]},
        "scrape_configs": [
            {
                "job_name": "fusewire",
                "http_sd_configs": [
                    {"url": webhook.url("/sd"), "refresh_interval": duration(discovery_interval), **http}
                ],
            },
            {
                "job_name": "fusewire-webhook",
                "scheme": webhook.scheme,
                **_without_empty(tls_config=webhook.tls()),
                "static_configs": [{"targets": [webhook.netloc]}],
            },
            *([_servers_job(servers_file, scrape_interval)] if servers_file else []),
        ],
    }


def server_targets(**urls: str) -> list[dict[str, Any]]:
    """Targets of the servers themselves, for file discovery: job → URL."""
    return [
        {
            "targets": [urlsplit(url).netloc],
            "labels": {"job": job, "__metrics_path__": urlsplit(url).path + "/metrics"},
        }
        for job, url in urls.items()
    ]


def _servers_job(file: str, scrape_interval: float) -> dict[str, Any]:
    return {
        "job_name": "servers",
        "scrape_interval": duration(max(scrape_interval, SERVERS_SECONDS)),
        "file_sd_configs": [{"files": [file]}],
    }


def alertmanager_config(*, webhook: WebhookAddress, people: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Configuration of Alertmanager.

    ``people`` are the receiver integrations of people (such as ``{"email_configs": [...]}``); without them
    alerts for people are seen on Alertmanager's own page only. They hear of what docs/paging.md says.
    """
    http_config = _without_empty(authorization=webhook.authorization(), tls_config=webhook.tls())
    post = {
        "url": webhook.url("/alerts"),
        "send_resolved": True,
        **_without_empty(http_config=http_config),
    }
    return {
        "route": {
            "receiver": PEOPLE_RECEIVER,
            "group_by": ["alertname", "run"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {
                    "receiver": TRIP_RECEIVER,
                    "matchers": ['action="trip"'],
                    "group_by": ["..."],
                    "group_wait": "0s",
                    "group_interval": "5s",
                    "repeat_interval": "1m",
                    "continue": True,
                },
                {
                    "receiver": WATCHDOG_RECEIVER,
                    "matchers": ['alertname="Watchdog"'],
                    "group_by": ["..."],
                    "group_wait": "0s",
                    "group_interval": "10s",
                    "repeat_interval": "9s",
                },
                {
                    "receiver": PEOPLE_RECEIVER,
                    "matchers": ['action="trip"'],
                    "group_by": ["run", "action", "class"],
                    "group_wait": "10s",
                    "group_interval": "1m",
                    "repeat_interval": "24h",
                },
                {
                    "receiver": PEOPLE_RECEIVER,
                    "matchers": ['severity="page"'],
                    "group_by": ["alertname", "run"],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "1h",
                },
                {"receiver": NOBODY, "matchers": ['severity=~"info|none"']},
            ],
        },
        "receivers": [
            {"name": TRIP_RECEIVER, "webhook_configs": [post]},
            {"name": WATCHDOG_RECEIVER, "webhook_configs": [post]},
            {"name": PEOPLE_RECEIVER, **(people or {})},
            {"name": NOBODY},
        ],
        # A tripped attempt silences the warnings about its own symptoms, not those of the attempt after it; what is
        # critical, and every trip alert, always gets through.
        "inhibit_rules": [
            {
                "source_matchers": ['action="trip"', 'run!=""'],
                "target_matchers": ['action!="trip"', 'severity=~"info|warning"', 'run!=""'],
                "equal": ["run", "attempt"],
            }
        ],
    }


def _alertmanager_target(url: str) -> dict[str, Any]:
    match = re.fullmatch(r"(https?)://([^/@?#]+)(/[^?#]*)?", url)
    if match is None:
        raise StackError(f"Alertmanager URL {url!r} is not usable: take http://HOST:PORT")
    scheme, target, path = match.groups()
    return {
        "scheme": scheme,
        "static_configs": [{"targets": [target]}],
        **_without_empty(path_prefix=(path or "").rstrip("/")),
    }


def _without_empty(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}
