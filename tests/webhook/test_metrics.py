"""The webhook's metrics: their names are an interface."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from prometheus_client import generate_latest

from fusewire_webhook.breaker.events import AttemptStarted, Command, SnapshotPromoted, StopConfirmed
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.web.metrics import Metrics

from .app_doubles import Engine

GOLDEN = Path(__file__).with_name("metrics.golden.txt")


def exposition(metrics: Metrics) -> str:
    """The text that Prometheus gets, without time stamps of creation and with a fixed version."""
    text = generate_latest(metrics.registry).decode().replace(importlib.metadata.version("fusewire"), "VERSION")
    return "".join(line + "\n" for line in text.splitlines() if "_created" not in line)


def test_the_whole_exposition() -> None:
    """Every name, help, label and start value is as recorded: a change of one breaks rules and dashboards."""
    engine = Engine("cartpole")
    clock = iter((10.0, 13.0))
    metrics = Metrics(views=engine.views, clock=lambda: next(clock))
    metrics.guard("cartpole")
    trips = {"divergence": 1, "infrastructure": 0}
    engine.change("cartpole", state="half_open", attempt=1, lr_scale=0.5, divergences=1, trips=trips)
    engine.change("cartpole", promoted=({"name": "s", "step": 40, "attempt": 1},))
    running, opened = RunState(phase="half_open"), RunState(phase="open")
    metrics.stored("cartpole", 1, StopConfirmed(attempt=0, seconds=0.3), opened)
    metrics.stored("cartpole", 2, AttemptStarted(attempt=1, handle={}), running)
    metrics.stored("cartpole", 3, SnapshotPromoted(at=1000.0, name="s", step=40, attempt=1), running)
    metrics.baselines("cartpole", 1, {"grad_norm": {"max": 2.5, "min": 0.1}})
    metrics.alert("trip")
    metrics.intake_error("not_json")
    metrics.verdict("cartpole", "pass")
    metrics.monitoring({"rules"}, 7.5)
    assert exposition(metrics) == GOLDEN.read_text()


def test_a_watchdog_that_never_came_has_no_age() -> None:
    """Before the first beat the age is NaN, not 0: nothing that compares with it takes it for fresh."""
    metrics = Metrics()
    metrics.monitoring((), None)
    assert "fusewire_watchdog_age_seconds NaN\n" in exposition(metrics)


def test_baselines_are_those_of_the_present_attempt_only() -> None:
    """A new attempt's baselines replace the old ones: two would make a join of rules ambiguous."""
    engine = Engine("cartpole")
    metrics = Metrics(views=engine.views)
    metrics.baselines("cartpole", 1, {"grad_norm": {"max": 2.5}})
    metrics.baselines("cartpole", 2, {"value_loss": {"max": 9.0}})
    lines = [line for line in exposition(metrics).splitlines() if line.startswith("fusewire_baseline{")]
    assert lines == ['fusewire_baseline{attempt="2",run="cartpole",signal="value_loss",stat="max"} 9.0']


def test_a_lockout_is_no_slow_restart() -> None:
    """The hours until a person resets a locked run are not counted as a restart; the reset's own restart is."""
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    opened, locked = RunState(phase="open"), RunState(phase="locked")
    stop, reset = StopConfirmed(attempt=0, seconds=0.3), Command(verb="reset", who="ada", why="x")
    started = AttemptStarted(attempt=1, handle={})
    for at, event, state in ((0, stop, opened), (1, stop, locked), (9000, reset, opened), (9002, started, opened)):
        now[0] = float(at)
        metrics.stored("cartpole", 1, event, state)
    assert metrics.registry.get_sample_value("fusewire_restart_seconds_sum") == 2.0
    assert metrics.registry.get_sample_value("fusewire_restart_seconds_count") == 1.0
