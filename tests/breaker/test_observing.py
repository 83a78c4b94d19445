"""Observe mode does nothing to a person's data on account of an alert; what changes with the mode is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import Command, SnapshotRejected, SnapshotSeen
from fusewire_webhook.settings.config import RunConfig

from .doubles import RUN, Guard, guarding, quick, trip, write_snapshot


async def observed(guard: Guard) -> list[str]:
    """One stable snapshot, a trip that only was observed, and two that the gate has rejected since; their names."""
    await guard.running(0)
    names = [await guard.promote(100, 0), *(write_snapshot(guard.run_dir, step, 0) for step in (200, 300))]
    await guard.engine.submit(RUN, trip(0, step=150))
    for name, step in zip(names[1:], (200, 300), strict=True):
        reasons = ("tripped: KLSpike fired after the snapshot",)
        guard.store.reject(name, reasons)
        await guard.engine.submit(RUN, SnapshotSeen(name=name, step=step, attempt=0, rules="r"))
        await guard.engine.submit(RUN, SnapshotRejected(name=name, step=step, attempt=0, reasons=reasons))
        guard.evidence.unclean[name] = ("KLSpike was firing",)
    await guard.until(lambda state: state.would_have == ())
    return names


async def stopped(tmp_path: Path, config: RunConfig) -> tuple[list[str], FakeActuator, str]:
    """The names, the machine, and what the next start was said to do."""
    async with guarding(tmp_path, config) as guard:
        names = await observed(guard)
        await guard.engine.close(stop_runs=True, who="operator", why="Ctrl-C")
        return names, guard.actuator, guard.engine.view(RUN).next_start


async def test_an_observed_run_goes_on_from_its_newest_snapshot(tmp_path: Path) -> None:
    """After Ctrl-C nothing is lost and nothing is set aside, whatever alerts and the gate said."""
    config = quick(mode="observe", snapshots={"keep_quarantined": 0, "keep_quarantined_days": 0.0})
    names, actuator, said = await stopped(tmp_path, config)
    assert said.startswith("goes on from its newest verified snapshot; with `mode: act` ")
    async with guarding(tmp_path, config, actuator=actuator) as guard:
        state = await guard.running(1)
        assert (state.resumed_from, state.phase, state.lr_scale) == (names[2], "closed", 1.0)
        assert [(info.name, info.state) for info in guard.store.list()] == [
            (names[0], "promoted"),
            (names[1], "rejected"),
            (names[2], "rejected"),
        ]


async def test_with_the_mode_act_the_restart_goes_back_to_a_clean_one_and_says_so(tmp_path: Path) -> None:
    """Nothing has tripped, so a person can still name what the restart left behind, for a day at least."""
    names, actuator, said = await stopped(tmp_path, quick(mode="observe"))
    assert said.endswith("with `mode: act` it would be the newest one that no alert speaks against")
    acting = quick(snapshots={"keep_quarantined": 0})
    async with guarding(tmp_path, acting, actuator=actuator) as guard:
        state = await guard.running(1)
        assert state.resumed_from == names[0]
        assert (state.lr_scale, state.trips_divergence) == (1.0, 0)
        entries = [entry.event for entry in guard.journal.read()]
        assert [event.quarantined for event in entries if event.kind == "rolled_back"][-1] == tuple(names[1:])
        told = f"the mode is act now, and KLSpike was only observed; resumed from {names[0]}"
        assert told in state.decision
        await guard.promote(120, 1)  # retention runs
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="it was fine", snapshot=names[2]))
        assert (await guard.running(2)).resumed_from == names[2]


async def test_an_act_run_is_told_what_its_restart_will_set_aside(tmp_path: Path) -> None:
    """The words at the end of the first are what the second start does."""
    async with guarding(tmp_path, quick()) as guard:
        await guard.running(0)
        stable, name = await guard.promote(100, 0), write_snapshot(guard.run_dir, 200, 0)
        guard.store.reject(name, ["hold"])
        await guard.engine.submit(RUN, SnapshotSeen(name=name, step=200, attempt=0, rules="r"))
        await guard.engine.submit(RUN, SnapshotRejected(name=name, step=200, attempt=0, reasons=("hold",)))
        await guard.engine.close(stop_runs=True, who="operator", why="Ctrl-C")
        said, actuator = guard.engine.view(RUN).next_start, guard.actuator
    assert said == (
        "goes on from its newest verified snapshot that no alert speaks against; 1 that the gate rejected after it "
        "will go to quarantine"
    )
    async with guarding(tmp_path, quick(), actuator=actuator) as guard:
        assert (await guard.running(1)).resumed_from == stable
        assert guard.store.get(name).state == "quarantined"


@pytest.mark.parametrize("cut_short", [False, True], ids=["after Ctrl-C", "after a kill"])
async def test_with_the_mode_observe_a_rollback_that_an_alert_began_is_not_done(
    tmp_path: Path, cut_short: bool
) -> None:
    """Whoever sets the mode back before the rollback keeps every snapshot, and goes on from the newest."""
    actuator = FakeActuator(stop_seconds=3600)
    async with guarding(tmp_path, quick(), actuator=actuator) as guard:
        await guard.running(0)
        stable, newest = await guard.promote(100, 0), write_snapshot(guard.run_dir, 200, 0)
        guard.evidence.unclean[newest] = ("KLSpike was firing",)
        await guard.engine.submit(RUN, trip(0, step=150))
        if not cut_short:
            await guard.engine.submit(RUN, Command(verb="shutdown", who="operator", why="Ctrl-C"))
    actuator.stop_seconds = 0.0
    async with guarding(tmp_path, quick(mode="observe"), actuator=actuator) as guard:
        state = await guard.running(1)
        assert (state.resumed_from, state.lr_scale) == (newest, 1.0)
        assert "the mode is observe now, so nothing is rolled back for it" in state.decision
        assert [info.name for info in guard.store.list() if info.state != "quarantined"] == [stable, newest]


async def test_a_reset_in_observe_mode_condemns_nothing(tmp_path: Path) -> None:
    """A run that a divergence has locked while the mode was act goes on from its newest snapshot."""
    locking = quick(retry={"divergences_per_incident": 1})
    async with guarding(tmp_path, locking) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        newest = write_snapshot(guard.run_dir, 200, 0)
        guard.evidence.unclean[newest] = ("KLSpike was firing",)
        await guard.engine.submit(RUN, trip(0, step=150))
        assert (await guard.engine.wait_finished(RUN)).state == "locked"
        actuator = guard.actuator
    async with guarding(tmp_path, quick(mode="observe"), actuator=actuator) as guard:
        await guard.engine.command(RUN, Command(verb="reset", who="ann", why="a false alarm"))
        assert (await guard.running(1)).resumed_from == newest
        assert not any(info.state == "quarantined" for info in guard.store.list())


async def test_a_rollback_that_a_person_asked_for_is_done_in_observe_mode_too(tmp_path: Path) -> None:
    """The mode is about alerts."""
    async with guarding(tmp_path, quick(mode="observe")) as guard:
        names = await observed(guard)
        await guard.engine.command(RUN, Command(verb="rollback", who="ann", why="so", snapshot="100"))
        assert (await guard.running(1)).resumed_from == names[0]
        assert [info.state for info in guard.store.list()] == ["promoted", "quarantined", "quarantined"]
