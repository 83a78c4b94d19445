"""Evidence, reconciliation, silences and the dead man's switch on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fusewire_webhook.breaker.events import AlertReported, Command
from fusewire_webhook.cli.check import alertmanager_problems, prometheus_problems
from fusewire_webhook.settings.config import Config
from fusewire_webhook.watch.deadman import DeadMansSwitch, WatchStatus
from fusewire_webhook.watch.evidence import PrometheusEvidence
from fusewire_webhook.watch.reconcile import Reconciler
from fusewire_webhook.watch.silences import SilenceWatch

from .conftest import INTERVAL, RUN, TRIP_RULE, WATCHDOG_RULE, Lab, Start, rule_file

pytestmark = pytest.mark.stack

PENDING_RULE = """
      - alert: ValueLossExplosion
        expr: rl_value_loss > 50
        for: 1m
        labels: {action: trip, class: divergence}
"""
STALL_RULE = """
      - alert: TrainerStalled
        expr: rl_seconds_since_step > 5
        labels: {action: trip, class: infrastructure}
"""


async def silence(lab: Lab, name: str, value: str, *, regex: bool = False) -> str:
    """Silence the alerts that a matcher matches; the silence's id."""
    now = datetime.now(UTC)
    body = {
        "matchers": [{"name": name, "value": value, "isRegex": regex, "isEqual": True}],
        "startsAt": (now - timedelta(minutes=1)).isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "ada",
        "comment": "moving racks",
    }
    async with lab.session.post(f"{lab.stack.alertmanager_url}/api/v2/silences", json=body) as answer:
        return str((await answer.json())["silenceID"])


async def test_what_was_not_delivered_is_found_and_a_silence_pauses(start_lab: Start) -> None:
    """Undelivered alerts are acted on while they fire and recorded when they are over; silences pause."""
    lab = await start_lab(rule_file(TRIP_RULE, PENDING_RULE, STALL_RULE, WATCHDOG_RULE))
    engine, prometheus = lab.engine, lab.prometheus
    evidence = PrometheusEvidence(prometheus, runs_dir=lab.runs_dir, scrape_interval=INTERVAL)
    found: list[str] = []
    reconciler = Reconciler(engine, prometheus=prometheus, confirm=0.2, on_found=found.append)

    # a healthy attempt: nothing to find, and its end is a matter of infrastructure
    lab.exporter.extra = "rl_seconds_since_step 9"
    await lab.train(1.0)
    await lab.until(lambda: lab.alert("TrainerStalled", "firing"))
    lab.exporter.extra = "rl_seconds_since_step 0"
    name = lab.snapshot()
    await lab.until(lambda: lab.silent("TrainerStalled"))
    await lab.until(lab.seen, rate=0.0)
    exit_evidence = await evidence.exit_evidence(RUN, 0, lab.run_dir)
    assert (exit_evidence.failure_class, exit_evidence.reasons) == ("infrastructure", ())
    assert exit_evidence.step == int(lab.exporter.step)
    assert await evidence.unclean_since(RUN, 0, name) == ()

    # a stall that is over: recorded, never acted on
    assert await reconciler.look() == 1
    (over,) = engine.of(AlertReported)
    assert (over.alertname, over.status, over.failure_class) == ("TrainerStalled", "resolved", "infrastructure")

    # a pending alert makes the exit a divergence
    lab.exporter.signals["value_loss"] = 99.0
    await lab.until(lambda: lab.alert("ValueLossExplosion", "pending"))
    exit_evidence = await evidence.exit_evidence(RUN, 0, lab.run_dir)
    told = (exit_evidence.failure_class, exit_evidence.reasons)
    assert told == ("divergence", ("ValueLossExplosion was pending",))
    assert await evidence.unclean_since(RUN, 0, name) == ("ValueLossExplosion was pending",)

    # a trainer that died meanwhile is judged by what was pending at its last scrape, also some time later
    lab.exporter.up = False
    await lab.train(2.0)
    exit_evidence = await evidence.exit_evidence(RUN, 0, lab.run_dir)
    assert exit_evidence.reasons == ("ValueLossExplosion was pending",)
    lab.exporter.up = True

    # a NaN makes it one too
    lab.exporter.signals["value_loss"] = float("nan")

    async def only_the_nan_is_left() -> bool:
        return (await evidence.exit_evidence(RUN, 0, lab.run_dir)).reasons == ("value_loss was not finite",)

    await lab.until(only_the_nan_is_left)

    # an alert that fires undelivered is reported once, with its annotations
    lab.exporter.signals["approx_kl"] = 0.75
    await lab.until(lambda: lab.alert("KLSpike", "firing"))
    assert await reconciler.look() == 1
    assert await reconciler.look() == 0
    trip = engine.of(AlertReported)[1]
    assert (trip.alertname, trip.status, trip.attempt, trip.source) == ("KLSpike", "firing", 0, "reconcile")
    assert (trip.summary, trip.labels["severity"]) == (f"{RUN}: KL 0.75", "critical")
    assert found == [RUN, RUN]

    # a delivered one is left alone
    attentive = Reconciler(engine, prometheus=prometheus, confirm=0.0)
    for event in engine.of(AlertReported):
        attentive.stored(RUN, event)
    assert await attentive.look() == 0

    # a silence pauses, its end resumes: on a label that only the alert has, and where Alertmanager alone can tell
    lab.exporter.signals["value_loss"] = 99.0
    await lab.until(lambda: lab.alert("ValueLossExplosion", "pending"))

    async def delivered() -> bool:
        alerts = await lab.alertmanager.alerts()
        return any(alert.labels["alertname"] == "KLSpike" for alert in alerts)

    await lab.until(delivered)
    watch = SilenceWatch(engine, alertmanager=lab.alertmanager, prometheus=prometheus)
    for name, value, regex in (("instance", f"127.0.0.1:{lab.port}", False), ("run", rf"\Q{RUN}\E", True)):
        identifier = await silence(lab, name, value, regex=regex)
        await watch.look()
        pause = {"source": "silence", "who": "ada", "why": "moving racks", "silence": identifier}
        engine.change(RUN, paused=True, pauses=(pause,))
        await lab.session.delete(f"{lab.stack.alertmanager_url}/api/v2/silence/{identifier}")
        await watch.look()
        engine.change(RUN, paused=False, pauses=())
        paused = Command(verb="pause", who="ada", why="moving racks", source="silence", silence=identifier)
        assert engine.of(Command)[-2:] == [paused, replace(paused, verb="resume", why="the silence has ended")]
    assert len(engine.of(Command)) == 4


async def test_a_dismissed_alert_and_another_occurrence_of_it(start_lab: Start) -> None:
    """What was dismissed is never reported, also where a restart lets it begin again; the next occurrence is."""
    # only a scrape that succeeds ends this alert, not one that a busy machine misses
    rule = TRIP_RULE.replace("keep_firing_for: 10m", "keep_firing_for: 0s").replace("[1750ms]", "[1m]")
    lab = await start_lab(rule_file(rule))
    engine, prometheus = lab.engine, lab.prometheus
    reconciler = Reconciler(engine, prometheus=prometheus, confirm=0.2)

    async def fires() -> bool:
        active = any(alert.labels.get("run") == RUN for alert in await prometheus.alerts())
        return active and bool(await prometheus.query(f'ALERTS{{run="{RUN}",alertstate="firing"}}'))

    async def is_quiet() -> bool:
        return not await prometheus.query("ALERTS")

    async def dismiss() -> None:
        event = engine.of(AlertReported)[-1]
        engine.change(RUN, dismissed=({"alert": "KLSpike", "until": time.time(), "began": event.began},))
        reconciler.stored(RUN, Command(verb="resume", who="ada", why="a new dataset", dismiss=True))

    lab.exporter.signals["approx_kl"] = 0.75
    await lab.until(fires)
    assert await reconciler.look() == 1
    await dismiss()
    await asyncio.sleep(0.5)
    assert await reconciler.look() == 0
    lab.exporter.signals["approx_kl"] = 0.01
    await lab.until(is_quiet)
    lab.exporter.signals["approx_kl"] = 0.85
    await lab.until(fires)
    assert [await reconciler.look(), await reconciler.look()] == [1, 0]
    await dismiss()
    server = lab.stack.children["prometheus"]
    await server.close()
    await server.start()
    await lab.until(fires)
    for _ in range(8):
        assert await reconciler.look() == 0
        await asyncio.sleep(0.25)


async def test_a_failed_reload_of_either_server_is_told_until_one_succeeds(start_lab: Start) -> None:
    """They go on with their old rules and routes: no answer of the gate changes. `fusewire check` tells it too."""
    lab = await start_lab(rule_file(TRIP_RULE, WATCHDOG_RULE))
    switch = DeadMansSwitch(prometheus=lab.prometheus, alertmanager=lab.alertmanager)
    routes = lab.folder / "stack" / "alertmanager.yml"
    files = {"prometheus": lab.rules, "alertmanager": routes}
    sound = {part: file.read_text() for part, file in files.items()}
    before = (await lab.prometheus.runtime()).last_config_time

    async def reload(part: str, text: str) -> None:
        files[part].write_text(text)
        pid = lab.stack.children[part].pid
        assert pid is not None
        os.kill(pid, signal.SIGHUP)

    def remarked(*parts: str) -> Callable[[], Awaitable[bool]]:
        async def told() -> bool:
            await switch.ask()
            return tuple(switch.status().remarks) == parts

        return told

    await lab.until(remarked())
    await reload("prometheus", rule_file(TRIP_RULE, WATCHDOG_RULE).replace("vector(time())", "vector(time("))
    await lab.until(remarked("prometheus"))
    await reload("alertmanager", "route: {receiver: nobody}")
    await lab.until(remarked("prometheus", "alertmanager"))
    assert (switch.reasons(), (await lab.prometheus.runtime()).last_config_time) == ((), before)
    checks = (
        await prometheus_problems(lab.stack.prometheus_url, lab.session, INTERVAL, Config()),
        await alertmanager_problems(lab.stack.alertmanager_url, lab.session, None),
    )
    assert all(found[0].startswith("the last reload of its configuration failed") for found in checks)
    for part, text in sound.items():
        await reload(part, text)
    await lab.until(remarked())


async def beat(lab: Lab, switch: DeadMansSwitch) -> bool:
    """Hand the delivered beats on; true where one counted."""
    alerts = [alert for post in lab.posted for alert in post["alerts"]]
    values = [alert["annotations"]["value"] for alert in alerts if alert["labels"]["alertname"] == "Watchdog"]
    return any(switch.beat(float(value)) for value in values)


async def test_switch_survives_restarts_and_sees_a_dead_prometheus(start_lab: Start) -> None:
    """Both servers restart between two questions: no alarm. Prometheus stays away: announced. Back: announced."""
    lab = await start_lab(rule_file(TRIP_RULE, WATCHDOG_RULE), scraped=False)
    children = (lab.stack.children["alertmanager"], lab.stack.children["prometheus"])
    begun = time.monotonic()
    for child in children:
        await child.close()
        await child.start()
    restarts = time.monotonic() - begun
    await lab.until(lambda: lab.evaluated("Watchdog"))
    told: list[WatchStatus] = []

    async def tell(status: WatchStatus) -> None:
        told.append(status)

    switch = DeadMansSwitch(
        prometheus=lab.prometheus,
        alertmanager=lab.alertmanager,
        ask_every=2 * restarts,  # of both servers, so that this machine restarts one of them in less for sure
        period=0.1,
        on_change=tell,
    )
    task = asyncio.create_task(switch.run())
    try:
        for child in children:
            await asyncio.sleep(0.5)
            await child.close()
            await child.start()
        await lab.until(lambda: beat(lab, switch))
        assert told == []
        prometheus = lab.stack.children["prometheus"]
        await prometheus.close()
        await lab.until(lambda: bool(told))
        assert [list(status.problems) for status in told] == [["prometheus"]]
        await prometheus.start()
        await lab.until(lambda: len(told) > 1)
        assert [status.degraded for status in told] == [True, False]
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
