"""A recorded incident: the journal of a run that diverged at step 34, and what Prometheus had seen of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import NullObserver, SnapshotStore, SnapshotWriter
from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.engine.journal import Entry, Journal
from fusewire_webhook.postmortem import postmortem_path
from fusewire_webhook.postmortem.observed import Observed, RuleEvidence, Threshold
from fusewire_webhook.postmortem.traces import Trace
from fusewire_webhook.settings.runs_folder import RunsFolder

RUN = "cartpole"
START = 1_796_038_846.0
TRIP = START + 40.0
QUERY = 'max by (run, attempt) (last_over_time(rl_approx_kl_run_min{steps="1"}[1s])) > 3'
S20, S30 = "step-000000000020-a000", "step-000000000030-a000"


def declared(**policy: Any) -> ev.RunDeclared:
    """The run with a policy that differs from the default in these settings."""
    return ev.RunDeclared(at=START - 1, policy=Policy(**policy).to_json())


def alert(name: str = "KLSpike", *, attempt: int = 0, at: float = TRIP, **more: Any) -> ev.AlertReported:
    """A trip alert."""
    fields: dict[str, Any] = {
        "failure_class": "divergence",
        "severity": "critical",
        "summary": f"{RUN}: KL of an update reached 43.57 nats",
        "labels": {"run": RUN, "attempt": str(attempt), "algorithm": "ppo", "alertname": name},
        "annotations": {"description": "An update moved the policy by 43.57 nats.", "runbook_url": "docs/x.md"},
        "starts_at": "2026-11-30T11:41:26.000Z",
        "step": 33,
    }
    return ev.AlertReported(
        at=at, alertname=name, status="firing", attempt=attempt, action="trip", **(fields | more)
    )


def started(attempt: int, *, at: float, resume_from: str | None = None, lr_scale: float = 1.0) -> ev.AttemptStarted:
    """An attempt whose process exists."""
    return ev.AttemptStarted(
        at=at, attempt=attempt, handle={}, resume_from=resume_from, lr_scale=lr_scale, seed=attempt
    )


def until_trip(**policy: Any) -> list[Event]:
    """From the declaration to the alert: one promoted snapshot at step 20, one candidate at step 30."""
    return [
        declared(**policy),
        ev.RolledBack(at=START - 0.5, target=None),
        started(0, at=START),
        ev.SnapshotSeen(at=START + 28, name=S20, step=20, attempt=0),
        ev.SnapshotPromoted(at=START + 36, name=S20, step=20, attempt=0),
        ev.SnapshotSeen(at=START + 37, name=S30, step=30, attempt=0),
        alert(),
    ]


def recovered() -> list[Event]:
    """The whole incident, restarted once."""
    return [
        *until_trip(),
        ev.StopConfirmed(at=TRIP + 1, attempt=0, exit_code=143, seconds=1.0, gpu="released", step=34),
        ev.RolledBack(at=TRIP + 1.1, target=S20, step=20, attempt=0, quarantined=(S30,)),
        started(1, at=TRIP + 2, resume_from=S20, lr_scale=0.5),
        ev.StepsWatched(at=TRIP + 10, attempt=1, step=25, watched=5),
    ]


def locked(**outcome: Any) -> list[Event]:
    """The same with a budget of one divergence."""
    stop = ev.StopConfirmed(at=TRIP + 1, attempt=0, exit_code=143, seconds=1.0, gpu="released", step=34)
    return [*until_trip(divergences_per_incident=1), outcome.get("stop", stop)]


def entries(events: Sequence[Event], run: str = RUN) -> list[Entry]:
    """The events as a journal holds them."""
    return [Entry(seq=number, run=run, event=event) for number, event in enumerate(events, start=1)]


def write_journal(runs_dir: Path, events: Sequence[Event], run: str = RUN) -> RunsFolder:
    """A runs folder whose journal holds the events."""
    folder = RunsFolder(runs_dir)
    folder.prepare()

    async def store() -> None:
        with closing(Journal(folder.journal)) as journal:
            await asyncio.gather(*(journal.put(run, event) for event in events))

    asyncio.run(store())
    return folder


def write_run(runs_dir: Path, *, watermark: Any = None, log: str = "update 32\nloss is nan\n") -> Path:
    """The run directory of :func:`recovered`: snapshots, quarantine, log and last values."""
    run_dir = runs_dir / RUN
    run_dir.mkdir(parents=True)
    parameters = AttemptParameters(run=RUN, run_dir=str(run_dir), algorithm="ppo")
    parameters.write(run_dir)
    writer = SnapshotWriter(run_dir, parameters, parent=None, lineage=dict, observer=NullObserver())
    for step in (20, 30):
        with writer.folder(step, replay_watermark=watermark and watermark + step) as folder:
            (folder / "state.bin").write_bytes(b"weights " * 64)
    writer.close()
    store = SnapshotStore(run_dir)
    store.promote(S20, by="gate", evidence={}, baselines={})
    store.quarantine((S30,), reason="KLSpike on attempt 0 at step 33", journal_entry=8)
    attempt = run_dir / "attempts" / "000"
    attempt.mkdir(parents=True)
    (attempt / "output.log").write_text(log)
    values = {"approx_kl": 43.5, "grad_norm": 679.0, "advantage_std": "NaN"}
    last = {"step": 34, "time": TRIP, "values": values, "nonfinite": {"advantage_std": 2}}
    (attempt / "last-values.json").write_text(json.dumps(last))
    return run_dir


def series(value: Callable[[float], float], *, start: float = START, end: float = TRIP, step: float = 1.0) -> Trace:
    """A trace of a function of the seconds since ``start``."""
    offsets = np.arange(0.0, end - start, step)
    return Trace(times=start + offsets, values=np.array([value(offset) for offset in offsets]))


def observed() -> Observed:
    """What Prometheus had seen of :func:`recovered`."""
    whole = {
        "approx_kl": series(lambda t: 0.01 if t < 38 else 43.57),
        "episode_return": series(lambda t: 10.0 + t),
        "value_loss": series(lambda t: math.nan if t > 38 else 1.0),
        "learning_rate": series(lambda _: 0.001),
        "step": series(lambda t: t),
    }
    later = {"approx_kl": series(lambda _: 0.01, start=TRIP + 3, end=TRIP + 20)}
    rates = {
        0: {"learning_rate": whole["learning_rate"], "step": whole["step"]},
        1: {"learning_rate": series(lambda _: 0.0005, start=TRIP + 3, end=TRIP + 20)},
    }
    return Observed(
        asked_at=TRIP + 30,
        tripped_at=TRIP,
        rules=(RuleEvidence(alert="KLSpike", query=QUERY, samples=(({"run": RUN, "attempt": "0"}, 43.57),)),),
        thresholds=(Threshold(signal="approx_kl", op=">", value=3.0, alert="KLSpike"),),
        around={0: whole, 1: later},
        whole=whole,
        rates=rates,
        gpus=2,
        energy_joules=7.2e6,
    )


def keep(run_dir: Path, attempt: int, answers: Observed) -> None:
    """Answers of Prometheus, as an earlier postmortem kept them."""
    path = postmortem_path(run_dir, attempt, "json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(answers.to_json()))
