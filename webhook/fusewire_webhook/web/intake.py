"""Alertmanager's webhook payload (version "4") → alerts. Pure: no journal, no clock, no HTTP.

The body is judged per alert: one group may hold a resolved alert and a firing one. Fields and versions that this
code does not know are ignored; what it needs must have the right shape. A group that Alertmanager truncated
(``truncatedAlerts``) is marked incomplete.

Format: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from fusewire_webhook.breaker.events import AlertReported, AlertStatus
from fusewire_webhook.errors import PayloadError
from fusewire_webhook.watch.deadman import WATCHDOG

PayloadReason = Literal["not_json", "not_object", "no_alerts", "bad_alert"]
"""What can be wrong with a body; the label values of ``fusewire_intake_errors_total`` for payloads."""

_LONGEST_ATTEMPT = 9
"""Digits. Python refuses to read thousands of them."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert of a delivery."""

    name: str
    status: AlertStatus
    labels: dict[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at: str = ""

    @property
    def run(self) -> str:
        """The run that the alert speaks of; empty where its labels do not say."""
        return self.labels.get("run", "")

    @property
    def attempt(self) -> int | None:
        """The attempt that the alert speaks of; None where the label is missing or no number."""
        text = self.labels.get("attempt", "")
        return int(text) if len(text) <= _LONGEST_ATTEMPT and text.isascii() and text.isdecimal() else None

    @property
    def is_watchdog(self) -> bool:
        """Whether this is a beat of the dead man's switch."""
        return self.name == WATCHDOG

    @property
    def is_trip(self) -> bool:
        """Whether the alert asks for the run to be stopped."""
        return self.status == "firing" and self.labels.get("action") == "trip"

    @property
    def beat(self) -> float | None:
        """Value that a firing watchdog carries (annotation ``value``); None where there is none."""
        if self.status != "firing":
            return None
        try:
            return float(self.annotations.get("value", ""))
        except ValueError:
            return None

    def event(self, *, at: float, incomplete: bool) -> AlertReported:
        """What the journal keeps of it.

        Args:
            at: wall clock of the webhook, Unix seconds.
            incomplete: the alert's group came truncated.
        """
        return AlertReported(
            at=at,
            alertname=self.name,
            status=self.status,
            attempt=self.attempt,
            action=self.labels.get("action", ""),
            failure_class=self.labels.get("class", ""),
            severity=self.labels.get("severity", ""),
            summary=self.annotations.get("summary", ""),
            labels=self.labels,
            annotations=self.annotations,
            starts_at=self.starts_at,
            incomplete=incomplete,
        )


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What one body held."""

    alerts: tuple[Alert, ...]
    incomplete: bool = False
    """Alertmanager sent fewer alerts than the group has."""
    bad: tuple[str, ...] = ()
    """Why entries of ``alerts`` could not be read, one sentence each. The readable ones are in ``alerts``."""


def parse(body: bytes) -> Delivery:
    """Read a body.

    An entry that cannot be read does not take its neighbours with it: it stands in ``Delivery.bad``.

    Raises:
        PayloadError: with a reason of :data:`PayloadReason`; nothing of the body is usable.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _refused("not_json", f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _refused("not_object", "the body is no JSON object; Alertmanager sends one with 'alerts'")
    entries = document.get("alerts")
    if not isinstance(entries, list):
        raise _refused("no_alerts", "the body has no list 'alerts'; is this Alertmanager's webhook format?")
    alerts, bad = [], []
    for index, entry in enumerate(entries):
        try:
            alerts.append(_alert(entry))
        except _BadAlertError as error:
            bad.append(f"alerts[{index}]: {error}")
    if bad and not alerts:
        raise _refused("bad_alert", bad[0])
    truncated = document.get("truncatedAlerts")
    incomplete = isinstance(truncated, int) and truncated > 0
    return Delivery(alerts=tuple(alerts), incomplete=incomplete or bool(bad), bad=tuple(bad))


class _BadAlertError(ValueError):
    """One entry of ``alerts`` has another shape."""


def _alert(entry: Any) -> Alert:
    if not isinstance(entry, dict):
        raise _BadAlertError("is no object")
    status = entry.get("status")
    if status not in ("firing", "resolved"):
        raise _BadAlertError("status is neither firing nor resolved")
    labels = _texts(entry.get("labels"), "labels")
    annotations = _texts(entry.get("annotations") or {}, "annotations")
    starts_at = entry.get("startsAt")
    return Alert(
        name=labels.get("alertname", ""),
        status=cast(AlertStatus, status),
        labels=labels,
        annotations=annotations,
        starts_at=_storable(starts_at) if isinstance(starts_at, str) else "",
    )


def _texts(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _BadAlertError(f"{name} is no object of texts")
    try:
        everything = "".join([*value, *value.values()])
    except TypeError:
        raise _BadAlertError(f"{name} is no object of texts") from None
    if everything.isascii():
        return value
    return {_storable(key): _storable(text) for key, text in value.items()}


def _storable(text: str) -> str:
    """JSON can write half a surrogate pair, which is no text that a file could hold."""
    return text.encode(errors="replace").decode()


def _refused(reason: PayloadReason, message: str) -> PayloadError:
    return PayloadError(message, reason=reason)
