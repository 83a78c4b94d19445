"""What the tests of the engine share: evidence that a test sets, real snapshots, and a guarded run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import NullObserver, SnapshotStore, SnapshotWriter, snapshot_name
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import AlertReported, AlertStatus
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.evidence_protocol import ExitEvidence
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import RetryConfig, RunConfig, SnapshotConfig

RUN = "ppo"


@dataclass(kw_only=True)
class SetEvidence:
    """Evidence as a test wants it: nothing is known unless it was set."""

    exits: dict[tuple[str, int], ExitEvidence] = field(default_factory=dict)
    steps: dict[tuple[str, int], int] = field(default_factory=dict)
    unclean: dict[str, tuple[str, ...] | None] = field(default_factory=dict)

    async def exit_evidence(self, run: str, attempt: int, run_dir: Path) -> ExitEvidence:
        return self.exits.get((run, attempt), ExitEvidence(failure_class="infrastructure"))

    async def last_step(self, run: str, attempt: int) -> int | None:
        return self.steps.get((run, attempt))

    async def unclean_since(self, run: str, attempt: int, snapshot: str) -> tuple[str, ...] | None:
        return self.unclean.get(snapshot, ())


def trip(
    attempt: int | None,
    *,
    name: str = "KLSpike",
    status: AlertStatus = "firing",
    failure_class: str = "divergence",
    action: str = "trip",
    **more: Any,
) -> AlertReported:
    """A trip alert as intake makes it."""
    return AlertReported(
        alertname=name, status=status, attempt=attempt, action=action, failure_class=failure_class, **more
    )


def write_snapshot(run_dir: Path, step: int, attempt: int, *, watermark: Any = None) -> str:
    """A real snapshot on disk, as the trainer writes it; its name."""
    run_dir.mkdir(parents=True, exist_ok=True)
    writer = SnapshotWriter(
        run_dir,
        AttemptParameters(run=run_dir.name, run_dir=str(run_dir), attempt=attempt),
        parent=None,
        lineage=dict,
        observer=NullObserver(),
    )
    with writer.folder(step, replay_watermark=watermark) as folder:
        (folder / "state.bin").write_bytes(f"{step} of {attempt}".encode())
    writer.close()
    return snapshot_name(step, attempt)


def quick(**changes: Any) -> RunConfig:
    """A run whose waits take no time."""
    retry = {"settle_seconds": 0.0, "backoff_seconds": 0.0, **changes.pop("retry", {})}
    snapshots = {"watch_steps": 100, **changes.pop("snapshots", {})}
    return RunConfig(
        command=("train", "--resume={resume_from}"),
        retry=RetryConfig(**retry),
        snapshots=SnapshotConfig(**snapshots),
        **changes,
    )


@dataclass(kw_only=True)
class Guard:
    """An engine on a fake machine, with a real journal and real snapshots."""

    engine: Engine
    actuator: FakeActuator
    evidence: SetEvidence
    journal: Journal
    runs_dir: Path

    @property
    def run_dir(self) -> Path:
        return self.runs_dir / RUN

    @property
    def store(self) -> SnapshotStore:
        return SnapshotStore(self.run_dir)

    @property
    def state(self) -> RunState:
        return self.engine.state(RUN)

    async def until(self, condition: Callable[[RunState], bool], *, run: str = RUN) -> RunState:
        """The state once it meets the condition."""
        async with asyncio.timeout(20):
            async with self.engine.subscribe() as happenings:
                while not condition(self.engine.state(run)):
                    await anext(happenings)
        return self.engine.state(run)

    async def running(self, attempt: int, *, run: str = RUN) -> RunState:
        """The state once the attempt runs and nothing is in flight."""
        return await self.until(lambda s: s.attempt == attempt and s.live and s.procedure is None, run=run)

    async def promote(self, step: int, attempt: int) -> str:
        """A snapshot that the gate passes."""
        name = write_snapshot(self.run_dir, step, attempt)
        await self.engine.promote(RUN, name, by="gate", evidence={}, baselines={})
        return name

    def kinds(self) -> list[str]:
        """The kinds of the journal's entries."""
        return [entry.event.kind for entry in self.journal.read()]


@asynccontextmanager
async def guarding(
    folder: Path,
    config: RunConfig | None = None,
    *,
    runs: Mapping[str, RunConfig] | None = None,
    actuator: FakeActuator | None = None,
    evidence: SetEvidence | None = None,
    **engine: Any,
) -> AsyncIterator[Guard]:
    """Guard a run in ``folder``; at the end the trainers go on and the engine is gone."""
    journal = Journal(folder / "journal.db")
    actuator = FakeActuator() if actuator is None else actuator
    evidence = SetEvidence() if evidence is None else evidence
    guarded = Engine(
        runs_dir=folder / "runs",
        runs={RUN: config or quick()} if runs is None else runs,
        journal=journal,
        actuator=actuator,
        evidence=evidence,
        **engine,
    )
    try:
        await guarded.start()
        yield Guard(engine=guarded, actuator=actuator, evidence=evidence, journal=journal, runs_dir=folder / "runs")
    finally:
        await guarded.close(stop_runs=False)
        journal.close()
