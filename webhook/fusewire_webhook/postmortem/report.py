"""From the facts to the document: the sections of a postmortem in words. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.breaker.events import AlertReported
from fusewire_webhook.postmortem import plots
from fusewire_webhook.postmortem.audit import Finding
from fusewire_webhook.postmortem.costs import Cost, span
from fusewire_webhook.postmortem.document import (
    Badge,
    Block,
    Cell,
    Code,
    Document,
    Paragraph,
    Plots,
    Section,
    Table,
    Tone,
)
from fusewire_webhook.postmortem.folder import Files
from fusewire_webhook.postmortem.observed import Observed
from fusewire_webhook.postmortem.story import Attempt, Known, Story, unix
from fusewire_webhook.postmortem.summary import command, moment, state, what_happened
from fusewire_webhook.postmortem.traces import Trace

MOST_SNAPSHOTS, MOST_ATTEMPTS, MOST_SIGNALS = 40, 40, 24

_TONES: dict[str, Tone] = {"pass": "good", "suspicious": "bad", "unknown": "unclear"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """Everything that a postmortem is written from."""

    story: Story
    files: Files
    observed: Observed
    cost: Cost
    findings: tuple[Finding, ...]
    runs_dir: Path
    """Folder of all runs, for commands that are to be pasted."""
    kept_from: float | None = None
    """Prometheus does not answer all of it now: its answers are those of this moment, Unix seconds."""
    written_at: float = 0.0
    pictures: bool = True
    """matplotlib is here."""


def report(facts: Facts) -> Document:
    """The document."""
    story = facts.story
    return Document(
        title=f"Postmortem: {story.run}, attempt {story.attempt.number}",
        badge=state(story),
        subtitle=f"tripped {moment(story.tripped_at)} · written {moment(facts.written_at)}",
        sections=(
            Section(title="What happened", blocks=tuple(_summary(facts))),
            Section(title="Evidence", blocks=tuple(_evidence(facts))),
            Section(title="Decisions", blocks=tuple(_decisions(story, facts.runs_dir))),
            Section(title="Lineage", blocks=tuple(_lineage(story))),
            Section(title="Quarantine and replay rows", blocks=tuple(_quarantine(facts))),
            Section(title="Cost", blocks=tuple(_cost(facts.cost))),
            Section(title="Audit", blocks=tuple(_audit(facts.findings))),
            Section(title="Log tail", blocks=tuple(_log(facts))),
        ),
    )


# Evidence -------------------------------------------------------------------------------------------------


def _evidence(facts: Facts) -> Iterator[Block]:
    story, observed = facts.story, facts.observed
    if facts.kept_from is not None:
        yield Paragraph(
            text=f"Prometheus does not answer all of it now; these are its answers of {moment(facts.kept_from)}."
        )
    elif observed.problem:
        yield Paragraph(
            text=f"Prometheus could not answer everything: {observed.problem}. What is missing here is known from "
            "the journal and the trainer's own file of last values only."
        )
    if story.alerts:
        head = ("Alert", "Began", "Severity", "What it says", "Runbook")
        yield Table(
            head=head,
            rows=tuple(
                (
                    alert.alertname,
                    _began(alert),
                    alert.severity,
                    alert.annotations.get("description") or alert.summary,
                    alert.annotations.get("runbook_url", ""),
                )
                for alert in story.alerts
            ),
        )
    else:
        yield Paragraph(text=f"No alert fired: {story.cause}.")
    for rule in observed.rules:
        patience = f", held for {span(rule.for_seconds)}" if rule.for_seconds else ""
        yield Code(text=rule.query.strip(), caption=f"PromQL of {rule.alert}{patience}:")
        if rule.samples:
            yield Table(
                head=("Its value when the alert began", "Labels"),
                rows=tuple((number(value), _labels(labels)) for labels, value in rule.samples),
            )
    yield from _pictures(facts)
    rows = tuple(_signals(facts))
    if rows:
        yield Paragraph(text="The attempt's signals up to the trip, and what the trainer itself reported last:")
        yield Table(head=("Signal", "Lowest", "Median", "Highest", "Reported last", "Not finite"), rows=rows)


def _began(alert: AlertReported) -> str:
    began = unix(alert.starts_at)
    return "unknown" if began is None else moment(began)


def _pictures(facts: Facts) -> Iterator[Block]:
    names = plots.chosen(facts.observed)
    if not names:
        yield Paragraph(text="There is nothing to plot: Prometheus has no samples of the time around the trip.")
    elif not facts.pictures:
        yield Paragraph(text=plots.MISSING)
    else:
        yield Plots(alt=f"{', '.join(names)} around the trip of attempt {facts.story.attempt.number}")


def _signals(facts: Facts) -> Iterator[tuple[Cell, ...]]:
    files, whole = facts.files, facts.observed.whole
    known = {*whole, *files.values} - {"step", "seconds_since_step", "lr_scale"}
    known = {name for name in known if name in files.values or not name.startswith(("phase", "snapshot_", "step_"))}
    order = [name for name in plots.PREFERRED if name in known]
    for name in [*order, *sorted(known - set(order))][:MOST_SIGNALS]:
        trace = whole.get(name)
        last = files.values.get(name)
        if last is None and trace is not None and len(trace):
            last = float(trace.values[-1])
        bad = files.nonfinite.get(name, trace.bad if trace is not None else 0)
        yield (name, *_range(trace), number(last), str(bad) if bad else "")


def _range(trace: Trace | None) -> tuple[str, str, str]:
    if trace is None or not len(trace.finite):
        return "", "", ""
    values = trace.finite
    return number(float(values.min())), number(float(np.median(values))), number(float(values.max()))


def number(value: float | None) -> str:
    """Four figures; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _labels(labels: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "__name__")


# The other sections ---------------------------------------------------------------------------------------


def _summary(facts: Facts) -> Iterator[Block]:
    yield Paragraph(text=what_happened(facts.story, facts.cost), lead=True)
    next_step = command(facts.story, facts.runs_dir)
    if next_step is not None:
        yield next_step


def _decisions(story: Story, runs_dir: Path) -> Iterator[Block]:
    if story.omitted:
        yield Code(
            text=f"fusewire log {story.run} --runs {shlex.quote(str(runs_dir))}",
            caption=f"{story.omitted} entries in the middle are left out. All of them:",
        )
    yield Table(
        head=("Time", "Entry", "What happened", "Decision"),
        rows=tuple((moment(line.at), str(line.seq), line.words, line.decided) for line in story.lines),
    )


def _lineage(story: Story) -> Iterator[Block]:
    attempts = story.attempts[-MOST_ATTEMPTS:]
    if len(attempts) < len(story.attempts):
        yield Paragraph(text=f"The last {len(attempts)} of {len(story.attempts)} attempts.")
    yield Table(
        head=("Attempt", "Started", "From", "LR scale", "Seed", "Last step", "Its end"),
        rows=tuple(_attempt(attempt, story) for attempt in attempts),
    )
    snapshots = [known for known in story.snapshots if known.promoted_at is not None or known.fate]
    newest = snapshots[-MOST_SNAPSHOTS:]
    if len(newest) < len(snapshots):
        yield Paragraph(text=f"The last {len(newest)} of {len(snapshots)} judged snapshots.")
    if newest:
        yield Table(
            head=("Snapshot", "Written", "Promoted", "Now"),
            rows=tuple(_snapshot(known, story) for known in newest),
        )


def _attempt(attempt: Attempt, story: Story) -> tuple[Cell, ...]:
    here = " (this one)" if attempt.number == story.attempt.number else ""
    end = f"tripped: {attempt.tripped}" if attempt.tripped else attempt.ended or "runs"
    step = "unknown" if attempt.last_step is None else str(attempt.last_step)
    origin = attempt.resume_from or "scratch"
    scale, seed = f"{attempt.lr_scale:g}", str(attempt.seed)
    return f"{attempt.number}{here}", moment(attempt.started_at), origin, scale, seed, step, end


def _snapshot(known: Known, story: Story) -> tuple[Cell, ...]:
    promoted = f"{moment(known.promoted_at)} by {known.promoted_by}" if known.promoted_at is not None else "no"
    target = story.rolled_back.target if story.rolled_back is not None else None
    fate = known.fate or ("rolled back to" if known.name == target else "kept")
    return known.name, moment(known.seen_at) if known.seen_at else "unknown", promoted, fate


def _quarantine(facts: Facts) -> Iterator[Block]:
    story, files = facts.story, facts.files
    if not files.set_aside:
        yield Paragraph(text="No snapshot was put in quarantine.")
    else:
        yield Table(
            head=("Snapshot", "Step", "Size", "Replay watermark", "Reason"),
            rows=tuple(
                (
                    aside.name,
                    str((parse_name(aside.name) or ("",))[0]),
                    "not there any more" if aside.size is None else f"{aside.size / 1e6:.1f} MB",
                    watermark(aside.watermark),
                    aside.reason,
                )
                for aside in files.set_aside
            ),
        )
    if story.failure_class != "divergence" or story.rolled_back is None:
        yield Paragraph(text="No replay rows are condemned by this failure.")
        return
    target = story.rolled_back.target
    if files.target_watermark is None:
        yield Paragraph(text="Replay rows: the snapshot that was rolled back to names no replay watermark.")
    else:
        yield Paragraph(
            text=f"Replay rows after watermark {watermark(files.target_watermark)} (of {target}) were written by "
            "what is now in quarantine."
        )
    if story.purge is None:
        yield Paragraph(text="No purge command ran: such rows, if there are any, are still in the replay store.")
    else:
        done = "removed them" if story.purge.exit_code == 0 else "FAILED"
        yield Paragraph(text=f"The purge command {done} (exit code {story.purge.exit_code}).")
        if story.purge.output.strip():
            yield Code(text=story.purge.output.strip()[-4000:], caption="Its output:")


def watermark(value: Any) -> str:
    """A replay watermark, bounded."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _cost(cost: Cost) -> Iterator[Block]:
    energy = None if cost.energy_joules is None else f"{cost.energy_joules / 3.6e6:.3f} kWh in the whole attempt"
    rows: list[tuple[Cell, ...]] = [
        ("Steps to be trained again", "unknown" if cost.steps is None else f"{cost.steps:,} ({cost.steps_words})"),
        ("Training thrown away", _span(cost.discarded_seconds)),
        ("Standstill, trip to restart", _span(cost.down_seconds, "not over")),
        ("GPUs", "unknown (no NVML series)" if cost.gpus is None else str(cost.gpus)),
        ("GPU hours", "unknown (no NVML series)" if cost.gpu_hours is None else f"{cost.gpu_hours:.3f}"),
        ("Energy", energy or "unknown (no NVML series)"),
    ]
    yield Table(head=("What", "How much"), rows=tuple(rows))


def _span(seconds: float | None, otherwise: str = "unknown") -> str:
    return otherwise if seconds is None else span(seconds)


def _audit(findings: Sequence[Finding]) -> Iterator[Block]:
    yield Paragraph(
        text="Judged from the attempt's data alone. Suspicious is a place to start reading, not a proof."
    )
    yield Table(
        head=("Item", "Verdict", "Evidence"),
        rows=tuple(
            (found.item, Badge(text=found.verdict, tone=_TONES[found.verdict]), found.evidence)
            for found in findings
        ),
    )


def _log(facts: Facts) -> Iterator[Block]:
    attempt = facts.story.attempt.number
    if not facts.files.log:
        yield Paragraph(text=f"Attempt {attempt} has left no output.")
        return
    part = "The last lines of the trainer's output" if facts.files.log_omitted else "The trainer's output"
    yield Code(text=facts.files.log, caption=f"{part} (attempts/{attempt:03d}/output.log):")
