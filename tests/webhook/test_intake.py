"""Alertmanager's payload: what is read from it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.errors import PayloadError
from fusewire_webhook.web.intake import parse


def alert(**changes: Any) -> dict[str, Any]:
    labels = {"alertname": "KlSpike", "run": "cartpole", "attempt": "2", "action": "trip", "class": "divergence"}
    return {
        "status": "firing",
        "labels": labels | changes.pop("labels", {}),
        "annotations": {"summary": "KL is high"},
        "startsAt": "2026-01-01T00:00:00Z",
        **changes,
    }


def body(*alerts: Any, **fields: Any) -> bytes:
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts), **fields}).encode()


def test_an_alert_becomes_an_event() -> None:
    """The labels that decide stand in fields of their own; nothing of the alert is lost."""
    (read,) = parse(body(alert(labels={"severity": "critical"}))).alerts
    event = read.event(at=5.0, incomplete=False)
    assert (event.alertname, event.status, event.attempt) == ("KlSpike", "firing", 2)
    assert (event.action, event.failure_class, event.severity) == ("trip", "divergence", "critical")
    assert (event.summary, event.starts_at, event.at) == ("KL is high", "2026-01-01T00:00:00Z", 5.0)
    assert event.labels["run"] == read.run == "cartpole"


def test_alerts_are_judged_one_by_one() -> None:
    """A resolved alert in a group whose status is "firing" stays resolved, beside one that fires."""
    delivery = parse(body(alert(status="resolved"), alert(labels={"alertname": "NonFinite"})))
    assert [(a.name, a.status, a.is_trip) for a in delivery.alerts] == [
        ("KlSpike", "resolved", False),
        ("NonFinite", "firing", True),
    ]


def test_unknown_fields_and_versions_are_tolerated() -> None:
    """A newer Alertmanager is understood as long as what is needed has its shape."""
    delivery = parse(body(alert(fingerprint="f", new={"a": 1}), version="5", notification_reason="repeat"))
    assert len(delivery.alerts) == 1
    assert not delivery.incomplete


def test_a_truncated_group_is_incomplete() -> None:
    """``max_alerts`` cuts by label order, not firing first: the events say that some are missing."""
    delivery = parse(body(alert(), truncatedAlerts=3))
    assert delivery.incomplete
    assert delivery.alerts[0].event(at=0.0, incomplete=delivery.incomplete).incomplete


@pytest.mark.parametrize(
    ("label", "attempt"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("²", None), ("9" * 40, None), ("1" * 5000, None)],
)
def test_an_attempt_is_a_number_or_unknown(label: str, attempt: int | None) -> None:
    """A label that is no attempt's number makes the attempt unknown, never a wrong one."""
    assert parse(body(alert(labels={"attempt": label}))).alerts[0].attempt == attempt


def test_half_a_surrogate_pair_becomes_text() -> None:
    """JSON may hold what UTF-8 cannot: the event can be stored all the same, and nothing else is changed."""
    data = body(alert(labels={"a": "ü"})).replace(b"KL is high", b"KL \\ud800 high")
    (read,) = parse(data).alerts
    assert read.annotations["summary"] == "KL ? high"
    assert read.labels["a"] == "ü"


def test_a_watchdog_carries_its_value() -> None:
    """Only a firing watchdog with a number beats."""
    watchdog = {"labels": {"alertname": "Watchdog"}, "status": "firing", "annotations": {"value": "1.7e+09"}}
    beats = [
        parse(body(watchdog)).alerts[0].beat,
        parse(body(watchdog | {"status": "resolved"})).alerts[0].beat,
        parse(body(watchdog | {"annotations": {"value": "soon"}})).alerts[0].beat,
    ]
    assert beats == [1.7e9, None, None]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "not_object"),
        (b"{}", "no_alerts"),
        (b'{"alerts": {}}', "no_alerts"),
        (body(3), "bad_alert"),
        (body({"status": "firing"}), "bad_alert"),
        (body(alert(status="suppressed")), "bad_alert"),
        (body(alert(labels={"run": 3})), "bad_alert"),
        (body(alert(annotations={"summary": None})), "bad_alert"),
    ],
)
def test_garbage_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    """A body of another shape has a reason out of a closed set."""
    with pytest.raises(PayloadError) as caught:
        parse(data)
    assert caught.value.reason == reason


def test_a_bad_alert_does_not_take_its_neighbours_along() -> None:
    """What is readable is taken, the rest is named, and the delivery counts as incomplete."""
    delivery = parse(body({"status": "firing"}, alert()))
    assert [a.name for a in delivery.alerts] == ["KlSpike"]
    assert delivery.bad == ("alerts[0]: labels is no object of texts",)
    assert delivery.incomplete


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.binary() | _json.map(lambda value: json.dumps(value).encode()))
def test_no_body_does_more_than_be_refused(data: bytes) -> None:
    """Whatever the bytes are: alerts, or a PayloadError with a known reason."""
    reason = None
    try:
        parse(data)
    except PayloadError as error:
        reason = error.reason
    assert reason in (None, "not_json", "not_object", "no_alerts", "bad_alert")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("status", "labels", "annotations", "startsAt"), _json)))
def test_no_alert_does_more_than_be_refused(entry: dict[str, Any]) -> None:
    """Whatever an alert holds, its readable neighbour arrives."""
    assert parse(body(entry, alert())).alerts[-1].name == "KlSpike"
