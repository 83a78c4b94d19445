"""What a trip, and the incident that it belongs to, have cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.postmortem.story import Failure, Story


@dataclass(frozen=True, kw_only=True)
class Cost:
    """None: not known."""

    steps: int | None = None
    steps_words: str = ""
    discarded_seconds: float | None = None
    """Training between the snapshot that was gone back to and the trip."""
    down_seconds: float | None = None
    """From the trip to the start of the next attempt."""
    gpus: int | None = None
    gpu_hours: float | None = None
    """Of both times together."""
    energy_joules: float | None = None
    attempts: tuple[Cost, ...] = ()
    """Of each attempt of the incident, oldest first; empty where the trip was alone."""
    incident: Cost | None = None
    """All of them together; its steps are those from the furthest one to where training stands."""


def cost_of(
    story: Story, *, last_step: int | None = None, gpus: int | None = None, energy_joules: float | None = None
) -> Cost:
    """The cost of a story's trip; ``last_step`` is what the trainer's own file says, where there is one."""
    if story.outcome == "observed" or not story.incident:
        return Cost(gpus=gpus, energy_joules=energy_joules)
    written = {known.name: known.seen_at for known in story.snapshots}
    steps = [failure.attempt.last_step for failure in story.incident]
    steps[-1] = max((step for step in (steps[-1], last_step) if step is not None), default=None)
    costs = [
        _cost(
            failure,
            step,
            written,
            gpus=gpus,
            energy_joules=energy_joules if failure is story.incident[-1] else None,
        )
        for failure, step in zip(story.incident, steps, strict=True)
    ]
    if len(costs) == 1:
        return costs[0]
    last, older = costs[-1], _older_seconds(story, written)
    furthest = max((step for step in steps if step is not None), default=None)
    return Cost(
        **{name: value for name, value in vars(last).items() if name not in ("attempts", "incident")},
        attempts=tuple(costs),
        incident=Cost(
            **_steps(story.stable, furthest),
            discarded_seconds=sum((cost.discarded_seconds or 0.0 for cost in costs), start=older),
            down_seconds=sum(cost.down_seconds or 0.0 for cost in costs),
            gpus=gpus,
            gpu_hours=None
            if gpus is None
            else sum((cost.gpu_hours or 0.0 for cost in costs), start=gpus * older / 3600),
        ),
    )


def _older_seconds(story: Story, written: dict[str, float]) -> float:
    """Training before the incident that it cost as well: it went back past the snapshot that it began from."""
    began, stands = story.incident[0].attempt.resume_from, story.stable
    if began is None or stands is None or began not in written or stands not in written:
        return 0.0
    writers = {(parse_name(name) or ("", name))[1] for name in (began, stands)}
    return max(0.0, written[began] - written[stands]) if len(writers) == 1 else 0.0


def _cost(
    failure: Failure, step: int | None, written: dict[str, float], *, gpus: int | None, energy_joules: float | None
) -> Cost:
    target = failure.went_back_to
    since = max(failure.attempt.started_at, written.get(target, 0.0) if target is not None else 0.0)
    discarded = max(0.0, failure.ended_at - since)
    down = failure.next_at - failure.ended_at if failure.next_at is not None else None
    return Cost(
        **_steps(target, step),
        discarded_seconds=discarded,
        down_seconds=down,
        gpus=gpus,
        gpu_hours=None if gpus is None else gpus * (discarded + (down or 0.0)) / 3600,
        energy_joules=energy_joules,
    )


def _steps(target: str | None, furthest: int | None) -> dict[str, Any]:
    """Steps from the snapshot that was gone back to up to the furthest one."""
    if furthest is None:
        return {}
    step = step_of(target)
    return {"steps": max(0, furthest - step), "steps_words": f"from {step} ({target or 'scratch'}) to {furthest}"}


def step_of(snapshot: str | None) -> int:
    """Step of a snapshot; 0 from scratch."""
    parsed = parse_name(snapshot) if snapshot is not None else None
    return parsed[0] if parsed is not None else 0


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
