"""The gate on a real Prometheus: situations that would fool a simpler one."""

from __future__ import annotations

import math
import signal
import time

import pytest

from fusewire_webhook.breaker.events import SnapshotRejected, SnapshotSeen, StepsWatched
from fusewire_webhook.watch.evidence import last_scrape_query
from fusewire_webhook.watch.prometheus import Prometheus
from fusewire_webhook.watch.promoter import Promoter

from .conftest import INTERVAL, RUN, TRIP_RULE, Lab, Start, rule_file

pytestmark = pytest.mark.stack

LOST_LABEL_RULE = """
      - alert: ValueLossExplosion
        expr: max by (run) (rl_value_loss) > 50
        labels: {action: trip, class: divergence}
"""
PATIENT_RULE = """
      - alert: EntropyCollapse
        expr: rl_policy_entropy < 0.01
        for: 3s
        labels: {action: trip, class: divergence}
"""
TWO_SIDED_RULE = """
      - alert: RewardCollapse
        expr: rl_value_loss * on (run) group_left () rl_floor > 10
        labels: {action: trip, class: divergence}
"""


async def slow_rule(prometheus: Prometheus, *, seconds: float) -> str:
    """A trip rule that this very machine evaluates for longer than ``seconds``, also when it is idle."""
    times, fastest = 4, 0.0
    while fastest < seconds:
        times, fastest = 2 * times, math.inf
        expr = f"max_over_time(count_over_time(vector(1)[1m:1ms])[{times}s:1s])"
        for _ in range(3):
            begun = time.perf_counter()
            await prometheus.query(expr)
            fastest = min(fastest, time.perf_counter() - begun)
    return f"""
      - record: fusewire:slow
        expr: {expr}
      - alert: SlowTrip
        expr: fusewire:slow < 0
        labels: {{action: trip, class: divergence}}
"""


def reasons(promoter: Promoter) -> str:
    """The reasons of the only candidate, on one line."""
    (candidate,) = promoter.latest(RUN)
    return "; ".join(candidate["reasons"])


def kinds(promoter: Promoter) -> set[str]:
    """What the only candidate waits for."""
    (candidate,) = promoter.latest(RUN)
    return {reason.split(":")[0] for reason in candidate["reasons"]}


async def watched_snapshot(lab: Lab, promoter: Promoter) -> str:
    """A snapshot that has just been seen, in the middle of healthy training."""
    await lab.train(1.0, promoter=promoter)
    name = lab.snapshot()
    await lab.until(lambda: bool(promoter.latest(RUN)), promoter=promoter)
    return name


async def test_outage_of_prometheus_hides_nothing(start_lab: Start) -> None:
    """Prometheus is away for 8 s with a violation inside: ``up`` is fine on average, and nothing is promoted.

    It is stopped rather than restarted, between two rounds of the gate: nothing but the scrapes tells of it.
    """
    lab = await start_lab(rule_file(TRIP_RULE))
    promoter = lab.promoter()
    await watched_snapshot(lab, promoter)
    lab.signal_prometheus(signal.SIGSTOP)
    await lab.train(1.0)
    lab.exporter.signals["approx_kl"] = 9.0
    await lab.train(6.0)
    lab.exporter.signals["approx_kl"] = 0.01
    await lab.train(1.0)
    lab.signal_prometheus(signal.SIGCONT)

    async def only_the_number_of_scrapes_tells() -> bool:
        (average,) = await lab.prometheus.query(f'avg_over_time(up{{run="{RUN}"}}[1m])')
        return average.value > 0.9 and kinds(promoter) == {"scrapes"}

    await lab.until(only_the_number_of_scrapes_tells, promoter=promoter)
    assert lab.engine.promotions == []


async def test_trip_rules_that_fail_or_are_late_block(start_lab: Start) -> None:
    """A rule whose join finds duplicates never fires, whatever its healthy neighbours do; a slow one fires late."""
    lab = await start_lab(rule_file(TRIP_RULE, TWO_SIDED_RULE))
    promoter = lab.promoter()
    lab.exporter.extra = "rl_floor 1"
    await watched_snapshot(lab, promoter)
    lab.exporter.extra = 'rl_floor{side="a"} 1\nrl_floor{side="b"} 1'
    lab.exporter.signals["value_loss"] = 1000.0
    await lab.until(lambda: "rule RewardCollapse of group trips is err" in reasons(promoter), promoter=promoter)
    await lab.reload(rule_file(TRIP_RULE, await slow_rule(lab.prometheus, seconds=6 * INTERVAL)))
    await lab.until(lambda: "group trips takes" in reasons(promoter), promoter=promoter)
    assert lab.engine.promotions == []


async def test_signal_that_stops_being_reported_blocks(start_lab: Start) -> None:
    """A signal that vanishes, or whose last value merely goes on being exported, blocks as long as it is away."""
    lab = await start_lab(rule_file(TRIP_RULE))
    promoter = lab.promoter()
    await watched_snapshot(lab, promoter)
    lab.exporter.silent = {"value_loss"}
    gone = "signal: value_loss is no longer reported"
    await lab.until(lambda: reasons(promoter) == gone, promoter=promoter, rate=1000.0)  # most steps are without it
    lab.exporter.signals.pop("approx_kl")
    away = "signal: approx_kl is no longer reported"
    await lab.until(lambda: reasons(promoter).startswith(away), promoter=promoter)
    assert lab.engine.promotions == []


async def test_edited_rules_block_and_a_reload_starts_the_clock_again(start_lab: Start) -> None:
    """A trip rule that was edited after the snapshot judges nothing; put back, the clock begins anew."""
    lab = await start_lab(rule_file(TRIP_RULE))
    promoter = lab.promoter(watch_seconds=1.5)
    name = await watched_snapshot(lab, promoter)
    await lab.reload(rule_file(TRIP_RULE.replace("> 0.5", "> 1e9")))
    changed = "rules: the trip rules were changed after the snapshot"
    await lab.until(lambda: reasons(promoter) == changed, promoter=promoter)
    await lab.reload(rule_file(TRIP_RULE))
    await lab.until(lambda: kinds(promoter) == {"time"}, promoter=promoter)
    await lab.until(lambda: bool(lab.engine.promotions), promoter=promoter)
    assert [promotion[1] for promotion in lab.engine.promotions] == [name]


async def test_fast_steps_do_not_replace_time_and_a_lost_attempt_label_rejects(start_lab: Start) -> None:
    """M steps within 50 ms promote nothing; a trip alert that lost its attempt label rejects all the same."""
    lab = await start_lab(rule_file(TRIP_RULE, LOST_LABEL_RULE))
    promoter = lab.promoter(watch_steps=50, watch_seconds=4.0)
    name = await watched_snapshot(lab, promoter)
    lab.exporter.advance(50)
    await lab.until(lambda: kinds(promoter) == {"time"}, promoter=promoter, rate=0.0)
    lab.exporter.signals["value_loss"] = 51.0
    await lab.until(lambda: lab.alert("ValueLossExplosion", "firing"))
    lab.exporter.signals["value_loss"] = 1.0
    await lab.until(lambda: lab.silent("ValueLossExplosion"))
    await lab.until(lambda: bool(lab.engine.of(SnapshotRejected)), promoter=promoter)
    (rejected,) = lab.engine.of(SnapshotRejected)
    assert (rejected.name, rejected.reasons) == (name, ("tripped: ValueLossExplosion fired after the snapshot",))
    assert (promoter.latest(RUN), lab.engine.promotions) == ([], [])


async def test_cleared_pending_alert_starts_the_clock_again_and_clean_watching_promotes(
    start_lab: Start,
) -> None:
    """A pending alert does not reject: once it cleared, T clean seconds promote, with evidence and baselines."""
    lab = await start_lab(rule_file(TRIP_RULE, PATIENT_RULE))
    answers: list[str] = []
    promoter = lab.promoter(on_verdict=lambda _, answer: answers.append(answer))
    lab.exporter.signals["policy_entropy"] = 0.5
    name = await watched_snapshot(lab, promoter)
    await lab.train(1.0, promoter=promoter)
    lab.exporter.signals["policy_entropy"] = 0.001
    await lab.until(lambda: lab.alert("EntropyCollapse", "pending"), promoter=promoter)
    lab.exporter.signals["policy_entropy"] = 0.5
    await lab.until(lambda: lab.silent("EntropyCollapse"), promoter=promoter)
    await lab.until(lambda: reasons(promoter).startswith("pending: EntropyCollapse"), promoter=promoter)
    await lab.until(lambda: bool(lab.engine.promotions), promoter=promoter)
    assert lab.engine.of(SnapshotRejected) == []
    ((run, promoted, evidence, baselines),) = lab.engine.promotions
    assert (run, promoted, promoter.latest(RUN)) == (RUN, name, [])
    assert evidence["scrapes"] >= 0.9 * evidence["scrapes_expected"]
    assert evidence["signals"] == ["approx_kl", "policy_entropy", "value_loss"]
    assert baselines["policy_entropy"] == {"median": 0.5, "min": 0.001, "max": 0.5}
    assert answers == ["inconclusive", "pass"]
    await promoter.flush()
    assert sum(event.watched for event in lab.engine.of(StepsWatched)) > 0
    assert [event.name for event in lab.engine.of(SnapshotSeen)] == [name]


async def test_a_single_scrape_is_seen(start_lab: Start) -> None:
    """The last scrape of an attempt is found even where it is the only one that succeeded."""
    lab = await start_lab(rule_file(TRIP_RULE), scraped=False)
    lab.exporter.up = False

    async def came(up: int) -> bool:
        return bool(await lab.prometheus.query(f'up{{run="{RUN}"}} == {up}'))

    await lab.until(lambda: came(0))
    lab.exporter.up = True
    await lab.until(lambda: came(1))
    lab.exporter.up = False
    await lab.until(lambda: came(0))
    (found,) = await lab.prometheus.query(last_scrape_query(f'run="{RUN}"', 60.0, INTERVAL / 2))
    assert 0 < await lab.prometheus.now() - found.value < 10
