"""What a trip has cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.postmortem.story import Story


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


def cost_of(
    story: Story, *, last_step: int | None = None, gpus: int | None = None, energy_joules: float | None = None
) -> Cost:
    """The cost of a story's trip; ``last_step`` is what the trainer's own file says, where there is one."""
    if story.outcome == "observed":
        return Cost(gpus=gpus, energy_joules=energy_joules)
    steps_known = [step for step in (story.attempt.last_step, last_step) if step is not None]
    furthest = max(steps_known, default=None)
    target, target_step, since = _target(story)
    discarded = max(0.0, story.tripped_at - since)
    down = story.next.started_at - story.tripped_at if story.next is not None else None
    hours = None if gpus is None else gpus * (discarded + (down or 0.0)) / 3600
    return Cost(
        steps=None if furthest is None else max(0, furthest - target_step),
        steps_words="" if furthest is None else f"from {target_step} ({target or 'scratch'}) to {furthest}",
        discarded_seconds=discarded,
        down_seconds=down,
        gpus=gpus,
        gpu_hours=hours,
        energy_joules=energy_joules,
    )


def _target(story: Story) -> tuple[str | None, int, float]:
    """The snapshot from which training goes on, its step, and since when the attempt's work is lost."""
    if story.next is not None:
        name = story.next.resume_from
    elif story.rolled_back is not None:
        name = story.rolled_back.target
    else:
        stable = [known.name for known in story.snapshots if known.promoted_at is not None and not known.fate]
        name = stable[-1] if stable else story.attempt.resume_from
    parsed = parse_name(name) if name is not None else None
    if parsed is None:
        return None, 0, story.attempt.started_at
    written = next((known.seen_at for known in story.snapshots if known.name == name), 0.0)
    return name, parsed[0], max(story.attempt.started_at, written)


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
