"""The engine on a fake machine with a real journal and real snapshots."""

from __future__ import annotations

import json
from pathlib import Path

from fusewire.snapshots import SnapshotStore
from fusewire_webhook.evidence_protocol import ExitEvidence
from fusewire_webhook.policy import Policy

from .doubles import RUN, guarding, quick, trip, write_snapshot


async def test_divergence_is_stopped_rolled_back_and_restarted(tmp_path: Path) -> None:
    """A divergence alert leads to the next attempt: last promoted snapshot, half the rate, a new seed."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        target = await guard.promote(100, 0)
        later = write_snapshot(guard.run_dir, 200, 0)
        await guard.engine.submit(RUN, trip(0, step=250))
        state = await guard.running(1)
        assert (state.phase, state.lr_scale, state.resumed_from, state.rng) == ("half_open", 0.5, target, "reseed")
        assert guard.actuator.stops == [(RUN, 0)]
        assert guard.store.get(later).state == "quarantined"
        told = json.loads((guard.run_dir / "attempt.json").read_bytes())
        assert told["attempt"] == 1
        assert told["lr_scale"] == 0.5
        assert told["seed"] == Policy().attempt_seed(1)
        assert told["resume_from"] == str(guard.run_dir / "snapshots" / target)
        launch = guard.actuator.processes[RUN, 1].launch
        assert launch.argv == ("train", f"--resume={guard.run_dir / 'snapshots' / target}")
        assert launch.environment["FUSEWIRE_ATTEMPT"] == "1"


async def test_crash_resumes_the_newest_clean_snapshot_with_the_same_parameters(tmp_path: Path) -> None:
    """A crash quarantines nothing and restarts from the newest candidate; rate, seed and generators stay."""
    async with guarding(tmp_path, quick(seed=7)) as guard:
        await guard.running(0)
        await guard.promote(100, 0)
        newest = write_snapshot(guard.run_dir, 200, 0)
        guard.actuator.exit(RUN, 0, 1)
        state = await guard.running(1)
        assert (state.phase, state.lr_scale, state.seed, state.rng) == ("closed", 1.0, 7, "restore")
        assert state.resumed_from == newest
        assert state.infrastructure_failures == 1
        assert not any(info.state == "quarantined" for info in guard.store.list())


async def test_exit_with_evidence_of_divergence_is_a_divergence(tmp_path: Path) -> None:
    """A trainer that died of its NaN is rolled back, not resumed from what it wrote last."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        target = await guard.promote(100, 0)
        write_snapshot(guard.run_dir, 200, 0)
        guard.evidence.exits[RUN, 0] = ExitEvidence(failure_class="divergence", reasons=("kl is NaN",), step=220)
        guard.actuator.exit(RUN, 0, 1)
        state = await guard.running(1)
        assert (state.resumed_from, state.divergences_run, state.infrastructure_failures) == (target, 1, 0)
        assert state.furthest_trip == 220


async def test_ctrl_c_leaves_a_run_that_the_next_start_continues(tmp_path: Path) -> None:
    """A shutdown stops the trainer without using a budget; the next start resumes it under a new attempt number."""
    async with guarding(tmp_path, quick(seed=7)) as guard:
        await guard.running(0)
        name = await guard.promote(100, 0)
        await guard.engine.close(stop_runs=True, who="ann", why="Ctrl-C")
        assert guard.state.shut_down
        assert guard.actuator.alive(RUN) == []
        actuator = guard.actuator
    async with guarding(tmp_path, quick(seed=7), actuator=actuator) as guard:
        state = await guard.running(1)
        assert (state.resumed_from, state.lr_scale, state.seed, state.rng) == (name, 1.0, 7, "restore")
        assert (state.divergences_run, state.infrastructure_failures, state.phase) == (0, 0, "closed")


async def test_a_target_is_listed_before_the_start_and_until_the_exit_is_confirmed(tmp_path: Path) -> None:
    """Service discovery knows an attempt's port before its process exists, and forgets it once it is gone."""
    seen: list[list[int]] = []
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        [target] = guard.engine.targets()
        assert target.port == json.loads((guard.run_dir / "attempt.json").read_bytes())["exporter_port"]

        guard.actuator.on_start = lambda _: seen.append([t.attempt for t in guard.engine.targets()])
        await guard.engine.submit(RUN, trip(0))
        await guard.running(1)
        assert seen == [[1]]
        assert [t.attempt for t in guard.engine.targets()] == [1]


async def test_a_completed_run_takes_the_promotion_of_its_last_snapshot(tmp_path: Path) -> None:
    """After a clean end the run is COMPLETED, and the gate's last verdict is still accepted."""
    async with guarding(tmp_path) as guard:
        await guard.running(0)
        folder = guard.run_dir / "attempts" / "000"
        (folder / "exporter.json").write_text("{}")
        (folder / "completed.json").write_text("{}")
        guard.actuator.exit(RUN, 0, 0)
        view = await guard.engine.wait_finished(RUN)
        assert view.state == "completed"
        name = await guard.promote(300, 0)
        assert SnapshotStore(guard.run_dir).stable().name == name  # type: ignore[union-attr]
        assert [p["name"] for p in guard.engine.view(RUN).promoted] == [name]
