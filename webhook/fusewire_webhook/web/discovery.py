"""Prometheus HTTP service discovery: ``GET /sd``.

The identity of a target (``run``, ``attempt``) is given here, never claimed by the process. Format:
https://prometheus.io/docs/prometheus/latest/http_sd/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fusewire_webhook.breaker.view import Target
from fusewire_webhook.watch.prometheus import duration


def document(targets: Iterable[Target], *, scrape_interval_seconds: float) -> list[dict[str, Any]]:
    """What ``/sd`` answers. An exporter that is not the asked attempt's refuses the scrape (409)."""
    return [
        {
            "targets": [f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"],
            "labels": {
                "run": target.run,
                "attempt": str(target.attempt),
                "algorithm": target.algorithm,
                "__scrape_interval__": duration(scrape_interval_seconds),
                "__scrape_timeout__": duration(scrape_interval_seconds),
                "__param_window": f"{target.window_seconds:g}",
                "__param_attempt": str(target.attempt),
            },
        }
        for target in targets
    ]
