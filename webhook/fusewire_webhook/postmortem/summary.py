"""What is read first: can it wait, what to do, the paragraph that says what happened. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from fusewire_webhook.breaker.events import StopConfirmed, StopUnconfirmed
from fusewire_webhook.postmortem.costs import Cost, span
from fusewire_webhook.postmortem.document import Badge, Code
from fusewire_webhook.postmortem.story import Story

_YES, _NO = Badge(text="It can wait", tone="good"), Badge(text="It cannot wait", tone="bad")
_UNKNOWN = Badge(text="It is not known yet whether it can wait", tone="unclear")


def what_happened(story: Story) -> str:
    """What tripped, what was done, and whether the GPU is free."""
    return " ".join(part for part in (_tripped(story), _done(story), _gpu(story)) if part)


def what_it_cost(story: Story, cost: Cost) -> str:
    """The cost of the trip, or of the whole incident where more than one attempt failed."""
    return _incident(story, cost) or _price("It cost", cost)


def what_next(story: Story) -> str:
    """What is left to a person."""
    return f"What to do next: {_next(story)}"


def until_morning(story: Story, cost: Cost) -> tuple[Badge, str]:
    """Can it wait until morning? The verdict, and the rest of its sentence: the facts."""
    keeps = "there is no snapshot to go on from"
    if story.stable is not None:
        keeps = f"the snapshot {story.stable} is kept to go on from"
    match story.outcome:
        case "locked" if story.next is not None:
            facts = f"a person has reset it, and attempt {story.next.number} was started."
            return _YES, f"until morning: {facts}"
        case "locked" if isinstance(story.stop, StopUnconfirmed):
            facts = f"the host needs attention ({story.stop.reason}), the GPU may still be held; {keeps}."
            return _NO, f"until morning: {facts}"
        case "locked":
            idle = "" if cost.gpus is None else f" ({cost.gpus} {'GPU' if cost.gpus == 1 else 'GPUs'} idle)"
            host = "it diverged, so the host needs no attention"
            if story.failure_class != "divergence":
                host = "look at the host tonight only if other runs fail on it too"
            return _YES, (
                f"until morning: nothing of this run runs or is started by itself, {_held(story)}, and {keeps}; "
                f"waiting costs the time until the reset{idle} and no further work; {host}."
            )
        case "restarted":
            return _YES, f"until morning: fusewire has restarted it by itself, from {story.stable or 'scratch'}."
        case "observed":
            return _NO, "unless the run may go on as it is: it is only observed, so nothing was stopped."
        case _:
            return _UNKNOWN, "until morning: fusewire is still at it; this is written again after the restart."


def command(story: Story, runs_dir: Path, host: str = "") -> Code | None:
    """What to do next as a command line that can be pasted; None: there is nothing to do."""
    where = f"{story.run} --runs {shlex.quote(str(runs_dir))}"
    there = f", on {host} in any folder" if host else ""
    match story.outcome:
        case "locked" if story.next is None:
            return Code(
                text=f'fusewire reset {where} --why "…"',
                caption=f"Once the cause is removed, this resets it{there}; it then goes on from "
                f"{story.stable or 'scratch'}; --to STEP chooses another snapshot. Where fusewire run has ended "
                "since (it does when all of its runs have), start the same command again afterwards.",
            )
        case "observed":
            return Code(text=f'fusewire trip {where} --why "…"', caption=f"To stop it and roll back{there}:")
        case "under_way":
            return Code(text=f"fusewire status {where}", caption=f"Where it stands{there}:")
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
        if story.failure_class == "divergence" and story.outcome != "locked":
            done.append(f"training was rolled back to {target}")
        if aside:
            done.append(f"{aside} newer {'snapshot was' if aside == 1 else 'snapshots were'} put in quarantine")
    if story.purge is not None:
        done.append(f"the purge command ended with code {story.purge.exit_code}")
    if story.outcome == "locked":
        done.append(f"the run was LOCKED ({story.lock_reason.removesuffix(f': {story.cause}')})")
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


def _held(story: Story) -> str:
    """Whether the GPU is held, as far as anybody knows."""
    match story.stop:
        case StopConfirmed(gpu="released"):
            return "its GPU memory was seen released"
        case StopConfirmed(gpu="none"):
            return "it held no GPU"
        case StopConfirmed():
            return "every process of it is gone"
    return "its process has ended" if story.exit is not None else "no process of it is known"


def _incident(story: Story, cost: Cost) -> str:
    """The attempts that led here, where there was more than one."""
    failed = [failure for failure in story.incident if failure.alert]
    if cost.incident is None or len(failed) < 2:
        return ""
    numbers = ", ".join(str(failure.attempt.number) for failure in failed)
    names = list(dict.fromkeys(failure.alert for failure in failed))
    origins = {failure.attempt.resume_from for failure in failed}
    scales = [failure.attempt.lr_scale for failure in failed]
    same = f"each tripped by {names[0]}" if len(names) == 1 else f"tripped by {', then '.join(names)}"
    snapshots = "the same start" if len(origins) == 1 else f"{len(origins)} different starts"
    reached = [f.attempt.last_step - f.attempt.resumed_step for f in failed if f.attempt.last_step is not None]
    within = f", {_range(reached)} steps after its start" if reached and len(names) == 1 else ""
    words = f"The incident: {len(failed)} attempts ({numbers}), {same}{within}, from {snapshots}"
    if min(scales) < scales[0]:
        tried = ", ".join(f"{scale:g}" for scale in scales)
        words += f", at learning-rate scales {tried}: a smaller one did not help"
    return f"{words}. {_price('All in all it cost', cost.incident)}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _price(opening: str, cost: Cost) -> str:
    parts = []
    if cost.steps is not None:
        many = "step" if cost.steps == 1 else "steps"
        parts.append(f"{cost.steps:,} {many} to be trained again ({cost.steps_words})")
    if cost.discarded_seconds is not None:
        parts.append(f"{span(cost.discarded_seconds)} of training thrown away")
    if cost.down_seconds is not None:
        parts.append(f"{span(cost.down_seconds)} of standstill")
    if cost.gpu_hours is not None:
        parts.append(f"{cost.gpu_hours:.2f} GPU hours")
    return f"{opening} {', '.join(parts)}." if parts else ""


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
    return todo


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
