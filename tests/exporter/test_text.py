"""The exposition text against prometheus_client's own."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary, generate_latest

from fusewire.text import TextEncoder


def lines(text: bytes) -> list[str]:
    return sorted(text.decode().splitlines())


@settings(max_examples=100, deadline=None)
@given(label=st.text(), help_text=st.text(), value=st.floats())
def test_equals_prometheus_client(label: str, help_text: str, value: float) -> None:
    """Any label value, help text and number is written as prometheus_client writes it, twice in a row."""
    registry = CollectorRegistry()
    gauge = Gauge("some_gauge", help_text, ["a", "b"], registry=registry)
    gauge.labels(a=label, b="plain").set(value)
    Gauge("other_gauge", "Other.", registry=registry).set(value)
    encoder = TextEncoder()
    assert encoder.encode(registry) == generate_latest(registry)
    assert encoder.encode(registry) == generate_latest(registry)


def test_every_kind_of_metric() -> None:
    """Counters and histograms with their creation times, and all the kinds that are left to prometheus_client."""
    registry = CollectorRegistry()
    Counter("c", "Counter.", ["l"], registry=registry).labels("x").inc()
    Histogram("h", "Histogram.", registry=registry).observe(0.2)
    Summary("s", "Summary.", registry=registry).observe(0.2)
    Info("i", "Info.", registry=registry).info({"k": "v"})
    Enum("e", "Enum.", states=["a", "b"], registry=registry)
    Gauge("g", "Gauge.", registry=registry).set(math.nan)
    assert lines(TextEncoder().encode(registry)) == lines(generate_latest(registry))
