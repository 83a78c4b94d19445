"""The paragraph that is read first, and the state of the run in a few words. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from fusewire_webhook.breaker.events import StopConfirmed, StopUnconfirmed
from fusewire_webhook.postmortem.costs import Cost, span
from fusewire_webhook.postmortem.document import Badge, Code
from fusewire_webhook.postmortem.story import Story


def what_happened(story: Story, cost: Cost) -> str:
    """One paragraph: what tripped, what was done, is the GPU free, what it cost, what to do next."""
    parts = (_tripped(story), _done(story), _gpu(story), _price(cost), _next(story))
    return " ".join(part for part in parts if part)


def command(story: Story, runs_dir: Path) -> Code | None:
    """What to do next as a command line that can be pasted; None: there is nothing to do."""
    where = f"{story.run} --runs {shlex.quote(str(runs_dir))}"
    match story.outcome:
        case "locked" if story.next is None:
            return Code(text=f'fusewire reset {where} --why "…"', caption="To reset it:")
        case "observed":
            return Code(text=f'fusewire trip {where} --why "…"', caption="To stop it and roll back:")
        case "under_way":
            return Code(text=f"fusewire status {where}", caption="Where it stands:")
    return None


def moment(at: float) -> str:
    """Unix seconds as date and time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def state(story: Story) -> Badge:
    """What became of the run."""
    match story.outcome:
        case "locked" if story.next is not None:
            return Badge(text=f"was LOCKED, then reset: attempt {story.next.number}", tone="unclear")
        case "locked":
            return Badge(text="LOCKED: a person is needed", tone="bad")
        case "restarted":
            return Badge(text=f"restarted as attempt {story.next.number if story.next else '?'}", tone="good")
        case "observed":
            return Badge(text="observed only: nothing was done", tone="unclear")
        case _:
            return Badge(text="being handled", tone="unclear")


def _tripped(story: Story) -> str:
    kind = "diverged" if story.failure_class == "divergence" else "failed (infrastructure)"
    if story.outcome == "observed":
        kind = "tripped"
    text = f"At {moment(story.tripped_at)} attempt {story.attempt.number} of {story.run} {kind}: {story.cause}."
    summary = story.alerts[0].summary if story.alerts else ""
    if summary:
        text += f" The alert says: {summary}."
    if story.monitoring:
        text += f" The watch itself was degraded then ({'; '.join(story.monitoring)})."
    return text


def _done(story: Story) -> str:
    if story.outcome == "observed":
        return "The run is only observed, so it was not touched."
    done = []
    match story.stop:
        case StopConfirmed():
            killed = f" (processes that needed SIGKILL: {story.stop.killed})" if story.stop.killed else ""
            how = "had ended by itself" if story.exit else f"was stopped within {span(story.stop.seconds)}"
            done.append(f"the trainer {how}{killed}")
        case StopUnconfirmed():
            done.append(f"the trainer could NOT be stopped: {story.stop.reason}")
        case None if story.exit is not None:
            done.append("the trainer had ended by itself")
    if story.rolled_back is not None:
        aside = len(story.rolled_back.quarantined)
        target = story.rolled_back.target or "scratch"
        if story.failure_class == "divergence":
            done.append(f"training was rolled back to {target}")
        if aside:
            done.append(f"{aside} newer {'snapshot was' if aside == 1 else 'snapshots were'} put in quarantine")
    if story.purge is not None:
        done.append(f"the purge command ended with code {story.purge.exit_code}")
    if story.outcome == "locked":
        done.append(f"the run was LOCKED ({story.lock_reason})")
    if story.next is not None:
        origin, again = story.next.resume_from or "scratch", ", after a reset," if story.outcome == "locked" else ""
        scale = f"learning-rate scale {story.next.lr_scale:g}"
        done.append(f"attempt {story.next.number} was{again} started from {origin} with {scale}")
    return f"{_sentence(done)}" if done else "Nothing has been done yet."


def _gpu(story: Story) -> str:
    if story.outcome == "observed":
        return ""
    match story.stop:
        case StopUnconfirmed():
            return "Its GPU memory may still be held: do not start anything on that GPU."
        case StopConfirmed(gpu="released"):
            free = "The failed attempt's GPU memory was seen released"
        case StopConfirmed(gpu="none"):
            free = "The failed attempt held no GPU"
        case StopConfirmed():
            free = "Every process of the failed attempt is gone; GPU memory could not be asked for (no NVML)"
        case _:
            return "Whether its GPU is free is not confirmed yet."
    if story.next is not None:
        return f"{free}; attempt {story.next.number} has taken its place."
    return f"{free}; nothing of this run is left on the machine."


def _price(cost: Cost) -> str:
    parts = []
    if cost.steps is not None:
        parts.append(f"{cost.steps:,} {'step' if cost.steps == 1 else 'steps'} to be trained again")
    if cost.discarded_seconds is not None:
        parts.append(f"{span(cost.discarded_seconds)} of training thrown away")
    if cost.down_seconds is not None:
        parts.append(f"{span(cost.down_seconds)} of standstill")
    if cost.gpu_hours is not None:
        parts.append(f"{cost.gpu_hours:.2f} GPU hours")
    return f"It cost {', '.join(parts)}." if parts else ""


def _next(story: Story) -> str:
    match story.outcome:
        case "locked":
            todo = _after_lock(story)
        case "restarted" if story.failure_class == "divergence":
            left = story.divergences_allowed - story.divergences
            more = f"{left} more and" if left > 0 else "the next one means that"
            todo = (
                f"nothing tonight. This was divergence {story.divergences} of {story.divergences_allowed} in this "
                f"incident; {more} the run is locked and you are paged. In the morning read what the audit calls "
                "suspicious."
            )
        case "restarted":
            todo = "nothing tonight; if it happens again, look at the log tail and at the host."
        case "observed":
            todo = "decide whether to stop it yourself."
        case _:
            todo = "wait for the restart."
    return f"What to do next: {todo}"


def _after_lock(story: Story) -> str:
    if story.next is not None:
        return "nothing; a person has looked at it and reset the run."
    host = "look at the host first, " if isinstance(story.stop, StopUnconfirmed) else ""
    return (
        f"{host}read the evidence and the audit below, remove the cause, then reset the run. "
        "Until then nothing is started."
    )


def _sentence(parts: Sequence[str]) -> str:
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return f"{text[0].upper()}{text[1:]}."
