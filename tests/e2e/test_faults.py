"""One whole guarded run per fault, on real Prometheus, Alertmanager and processes, through ``fusewire run``.

The machinery is the demonstration's; the environment, the network and the intervals are smaller. Each run must end
as its scenario says, and afterwards journal, links, metrics and processes must agree with each other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from fusewire.snapshots.layout import ACTIVE_LINK, QUARANTINE, SNAPSHOTS, STABLE_LINK
from fusewire_webhook.breaker import events as ev
from fusewire_webhook.demo.driver import Watcher
from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.incidents import Failure
from fusewire_webhook.demo.scenarios import SCENARIOS, Pace, Scenario, config
from fusewire_webhook.settings.runs_folder import RunsFolder
from fusewire_webhook.watch.prometheus import matchers

pytestmark = [pytest.mark.e2e, pytest.mark.stack, pytest.mark.timeout(360)]

FAST = Pace(
    scrape_seconds=0.25,
    window_seconds=1.0,
    trainer=("--steps", "128", "--pace-seconds", "0.1", "--updates", "100000"),
    strikes="promoted",
    snapshot_every=10,
    watch_steps=10,
    settle_seconds=2.0,
)
"""A trainer without dips of its own (0 to 15 % in 120 updates): the return of a smaller one trips now and then."""

LEARNT = dataclasses.replace(FAST, strikes="promoted:30", watch_steps=30)
"""For faults that show in the return only: the policy must have something to lose, and a snapshot is watched for
longer than the fault takes to show (14 to 20 updates)."""


async def watch(guarded: GuardedRun, scenario: Scenario, *, seconds: float = 300.0) -> list[Failure]:
    """Return once all that the scenario promises has happened."""
    watcher = Watcher(guarded, scenario, target=None)
    deadline = time.monotonic() + seconds
    answer = None
    while answer is None and time.monotonic() < deadline:
        answer = await watcher.look()
        await asyncio.sleep(0.1)
    assert answer, f"{watcher.words()}; {guarded.last_words()}"
    return await watcher.observer.failures()


def metrics(guarded: GuardedRun) -> dict[str, float]:
    """What the webhook's metrics must say of the run, by series: the journal knows."""
    guarded.refresh()
    run, state = guarded.run, guarded.state
    promoted = [entry.event for entry in guarded.entries if isinstance(entry.event, ev.SnapshotPromoted)]

    def trips(failure_class: str) -> str:
        return f"fusewire_trips_total{matchers(failure_class=failure_class, run=run)}"

    return {
        f"fusewire_run_state{matchers(run=run, state=state.phase)}": 1.0,
        f"fusewire_attempt{matchers(run=run)}": float(state.attempt),
        f"fusewire_lr_scale_asked{matchers(run=run)}": state.lr_scale,
        f"fusewire_snapshot_promoted_step{matchers(run=run)}": float(promoted[-1].step),
        trips("divergence"): float(state.trips_divergence),
        trips("infrastructure"): float(state.trips_infrastructure),
    }


async def metrics_agree(guarded: GuardedRun) -> None:
    """What Prometheus scraped from the webhook is what the journal says, as soon as it has been scraped again."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        expected = {name: [value] for name, value in metrics(guarded).items()}
        seen = {name: [sample.value for sample in await guarded.query(name)] for name in expected}
        if seen == expected:
            return
        await asyncio.sleep(0.1)
    assert seen == expected


async def exposition_of_a_later_webhook(guarded: GuardedRun, settings: dict[str, Any]) -> str:
    """``/metrics`` of a webhook that is started on the folder after the end, and stopped again."""
    nobody = {"url": "http://127.0.0.1:9"}
    settings |= {"prometheus": settings["prometheus"] | nobody, "alertmanager": nobody}
    file, log, runs = guarded.folder / "serve.yml", guarded.folder / "serve.log", RunsFolder(guarded.run_dir.parent)
    file.write_text(yaml.safe_dump(settings))
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fusewire_webhook", "serve", "--config", str(file), stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            while not runs.address_file.exists():
                assert child.returncode is None, log.read_text()
                await asyncio.sleep(0.1)
            url = json.loads(runs.address_file.read_bytes())["url"]
            async with http.get(f"{url}/metrics") as answer:
                text = await answer.text()
        assert not [command for command in guarded.processes().values() if "fusewire_trainer" in command]
        return text
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
        await child.wait()


def files_agree(guarded: GuardedRun) -> None:
    """Links and quarantine are what the journal's last entries say, and nobody of the run lives."""
    guarded.refresh()
    events = [entry.event for entry in guarded.entries]
    run_dir, state = guarded.run_dir, guarded.state
    promoted = state.promoted[-1].name if state.promoted else None
    stable, active = run_dir / STABLE_LINK, run_dir / ACTIVE_LINK
    assert (stable.readlink().name if stable.is_symlink() else None) == promoted
    assert (active.readlink().name if active.is_symlink() else None) == state.active
    aside = {name for event in events if isinstance(event, ev.RolledBack) for name in event.quarantined}
    assert aside == {path.name for path in (run_dir / QUARANTINE).glob("step-*")}
    assert not aside & {path.name for path in (run_dir / SNAPSHOTS).glob("step-*")}
    assert guarded.processes() == {}


def trip_alerts(guarded: GuardedRun, attempt: int) -> set[str]:
    """The trip alerts of an attempt that the journal knows: the one that stopped it, and the others as evidence."""
    return {
        entry.event.alertname for entry in guarded.entries
        if isinstance(entry.event, ev.AlertReported)
        and (entry.event.attempt, entry.event.action, entry.event.status) == (attempt, "trip", "firing")
    }  # fmt: skip


async def recover(folder: Path, name: str, pace: Pace = FAST, *, alerts: Collection[str] = ()) -> Failure:
    """A run that is tripped or dies once, comes back, and ends its incident; returns the failure.

    Each of ``alerts`` must have fired in the attempt that failed, whichever of them came first; without any, none.
    """
    scenario = SCENARIOS[name]
    async with GuardedRun(folder, config(scenario, pace)) as guarded:
        found = await watch(guarded, scenario)
        await metrics_agree(guarded)
        assert await guarded.interrupt() == 130
    files_agree(guarded)
    assert guarded.state.phase == "closed"
    assert guarded.state.shut_down
    failure = found[0]
    fired = trip_alerts(guarded, failure.attempt)
    assert fired >= set(alerts) if alerts else not fired, fired
    assert failure.failure_class == scenario.failure_class
    resumed = next(
        entry.event for entry in guarded.entries
        if isinstance(entry.event, ev.AttemptStarted) and entry.event.attempt == failure.attempt + 1
    )  # fmt: skip
    assert resumed.resume_from is not None
    assert resumed.lr_scale == (0.5 if scenario.failure_class == "divergence" else 1.0)
    return failure


async def test_lr_spike(tmp_path: Path) -> None:
    """A spike of the learning rate is seen as a spike of the KL; SIGTERM is enough."""
    failure = await recover(tmp_path, "lr-spike", alerts=["KLSpike"])
    assert failure.alert is not None
    assert failure.killed == 0
    order = (
        failure.strike,
        failure.violation,
        failure.alert,
        failure.exited,
        failure.rolled_back,
        failure.first_step,
    )
    assert list(order) == sorted(moment for moment in order if moment is not None)
    assert failure.steps_lost is not None
    assert failure.steps_lost > 0


async def test_nan_gradient(tmp_path: Path) -> None:
    """A trainer that dies of its NaN is a divergence and its alert fires, whichever of the two came first."""
    await recover(tmp_path, "nan-gradient", alerts=["NonFiniteValue"])


async def test_entropy_collapse(tmp_path: Path) -> None:
    """A policy that stops exploring is tripped by its entropy."""
    failure = await recover(tmp_path, "entropy-collapse", alerts=["EntropyCollapse"])
    assert failure.cause == "EntropyCollapse"


async def test_critic_explosion(tmp_path: Path) -> None:
    """A critic that is left behind fires by its loss and by its gradients."""
    await recover(tmp_path, "critic-explosion", alerts=["ValueLossExplosion", "GradNormExplosion"])


async def test_reward_collapse(tmp_path: Path) -> None:
    """A policy that unlearns is tripped by its return."""
    failure = await recover(tmp_path, "reward-collapse", LEARNT, alerts=["ReturnCollapse"])
    assert failure.cause == "ReturnCollapse"


async def test_hang(tmp_path: Path) -> None:
    """A hung trainer is tripped as infrastructure and needs SIGKILL; nothing is put into quarantine."""
    pace = dataclasses.replace(FAST, grace_seconds=1.0, kill_seconds=1.0)
    failure = await recover(tmp_path, "hang", pace, alerts=["TrainerStalled"])
    assert failure.cause == "TrainerStalled"
    assert failure.killed == 1


async def test_crash(tmp_path: Path) -> None:
    """A killed process is restarted as infrastructure, without any alert."""
    failure = await recover(tmp_path, "crash")
    assert failure.cause == "exit code 137"
    assert failure.alert is None


async def test_ignored_sigterm(tmp_path: Path) -> None:
    """A trainer whose gradients overflow, and that ignores SIGTERM, is killed after its grace; the run goes on."""
    pace = dataclasses.replace(FAST, grace_seconds=1.0, kill_seconds=1.0)
    assert (await recover(tmp_path, "ignore-sigterm", pace, alerts=["NonFiniteGradients"])).killed == 1


async def test_grandchildren(tmp_path: Path) -> None:
    """Processes that left the trainer's session and ignore SIGTERM are gone before the next attempt starts."""
    pace = dataclasses.replace(FAST, grace_seconds=1.0, kill_seconds=1.0)
    failure = await recover(tmp_path, "grandchildren", pace, alerts=["KLSpike"])
    assert failure.killed == 3
    assert failure.stopped is not None
    assert failure.next_started is not None
    assert failure.stopped <= failure.next_started


async def test_memory_leak_is_told_and_nothing_is_stopped(tmp_path: Path) -> None:
    """People hear of a leak; the attempt goes on."""
    scenario = SCENARIOS["memory-leak"]
    async with GuardedRun(tmp_path, config(scenario, FAST)) as guarded:
        assert await watch(guarded, scenario) == []
        await metrics_agree(guarded)
        assert (guarded.state.phase, guarded.state.attempt) == ("closed", 0)
        assert await guarded.interrupt() == 130
    files_agree(guarded)


async def test_a_persistent_fault_climbs_the_ladder_and_ends_locked(tmp_path: Path) -> None:
    """Each divergence goes one stable snapshot further back than the one before; the third locks the run.

    A webhook that starts later tells of it in its metrics and starts nothing.
    """
    scenario = SCENARIOS["lr-spike-forever"]
    # a busy machine may leave the first snapshots out: of six, two are stable by then
    pace = dataclasses.replace(FAST, strikes=f"promoted:{6 * FAST.snapshot_every}")
    async with GuardedRun(tmp_path, config(scenario, pace)) as guarded:
        found = await watch(guarded, scenario)
        assert guarded.exit_code == 3
    files_agree(guarded)
    assert guarded.state.phase == "locked"
    assert [failure.failure_class for failure in found] == ["divergence"] * 3
    last_stable, further_back, locked = (failure.resumed_step for failure in found)
    assert last_stable is not None
    assert further_back is not None
    assert last_stable > further_back > 0
    assert locked is None
    assert f"{guarded.run}: LOCKED: {guarded.state.reason}" in guarded.log.read_text()
    expected = [f"{name} {value}" for name, value in metrics(guarded).items()]
    exposed = (await exposition_of_a_later_webhook(guarded, config(scenario, pace))).splitlines()
    assert [line for line in expected if line not in exposed] == []
    assert f"fusewire_lockouts_total{matchers(run=guarded.run)} 1.0" in exposed
    files_agree(guarded)
    assert guarded.state.phase == "locked"
