"""From the facts to the document: the sections of a postmortem in words. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.breaker.events import AlertReported
from fusewire_webhook.postmortem import plots
from fusewire_webhook.postmortem.audit import Finding
from fusewire_webhook.postmortem.costs import Cost, span, step_of
from fusewire_webhook.postmortem.document import (
    Badge,
    Block,
    Cell,
    Code,
    Document,
    Link,
    Paragraph,
    Plots,
    Section,
    Table,
    Tone,
    destination,
)
from fusewire_webhook.postmortem.folder import Files
from fusewire_webhook.postmortem.observed import Observed
from fusewire_webhook.postmortem.runbook import Sections
from fusewire_webhook.postmortem.story import Attempt, Known, Story, unix
from fusewire_webhook.postmortem.summary import (
    command,
    moment,
    state,
    until_morning,
    what_happened,
    what_it_cost,
    what_next,
)
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
    host: str = ""
    """Where the runs folder is."""
    runbooks: Mapping[str, tuple[str, Sections]] = field(default_factory=dict)
    """Those that come with fusewire, by the address in the alerts: (name, sections)."""


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
            *(
                Section(title=f"Runbook: {name}", name=_anchor(name), blocks=tuple(_runbook(sections)))
                for name, sections in facts.runbooks.values()
            ),
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
                    _link(facts, alert),
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


def _link(facts: Facts, alert: AlertReported) -> Cell:
    """To the alert's runbook: within the document, or where its annotation says."""
    address = alert.annotations.get("runbook_url", "")
    here = facts.runbooks.get(address)
    if here is not None:
        return Link(text=here[0], href=f"#{_anchor(here[0])}")
    link = Link(text=address, href=address)
    return link if destination(link) else address


def _anchor(name: str) -> str:
    """Of a runbook's section; GitHub gives the heading the same."""
    return f"runbook-{name.lower()}"


def _runbook(sections: Sections) -> Iterator[Block]:
    for heading, text in sections:
        yield Paragraph(badge=Badge(text=heading, tone="plain"), text="")
        for line in text.splitlines():
            yield Paragraph(text=line)


def _pictures(facts: Facts) -> Iterator[Block]:
    if facts.pictures and plots.over_incident(facts.observed, facts.story.incident):
        numbers = ", ".join(str(failure.attempt.number) for failure in facts.story.incident)
        yield Paragraph(text="The whole incident:")
        yield Plots(name="incident.svg", alt=f"Attempts {numbers} over the time of the incident, each trip marked")
        yield Paragraph(text="Around this trip:")
    names = plots.chosen(facts.observed)
    if not names:
        yield Paragraph(text="There is nothing to plot: Prometheus has no samples of the time around the trip.")
    elif not facts.pictures:
        yield Paragraph(text=plots.MISSING)
    else:
        yield Plots(name="svg", alt=f"{', '.join(names)} around the trip of attempt {facts.story.attempt.number}")


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
    answer, facts_for_it = until_morning(facts.story, facts.cost)
    links = tuple(link for alert in facts.story.alerts[:1] if isinstance(link := _link(facts, alert), Link))
    yield Paragraph(text=facts_for_it, badge=answer, lead=True)
    yield Paragraph(text=what_happened(facts.story))
    cost = what_it_cost(facts.story, facts.cost)
    if cost:
        yield Paragraph(text=cost)
    yield Paragraph(text=what_next(facts.story))
    next_step = command(facts.story, facts.runs_dir, facts.host)
    if next_step is not None:
        yield next_step
    if links:
        yield Paragraph(text="Runbook:", links=links)
    yield from _attempts_of(facts)


def _attempts_of(facts: Facts) -> Iterator[Block]:
    """The incident as a table, where it had more than one attempt."""
    cost = facts.cost
    if cost.incident is None:
        return
    hours = cost.gpus is not None
    rows: list[tuple[Cell, ...]] = []
    for failure, lost in zip(facts.story.incident, cost.attempts, strict=True):
        attempt = failure.attempt
        reached = "?" if attempt.last_step is None else f"{attempt.last_step:,}"
        spent = [span(failure.ended_at - attempt.started_at)]
        spent += [f"{lost.gpu_hours:.2f} GPU hours"] if lost.gpu_hours is not None else []
        by = failure.alert or attempt.ended or "it did not trip"
        rows.append(
            (
                str(attempt.number),
                f"{attempt.resumed_step:,} → {reached}",
                f"{attempt.lr_scale:g}",
                by,
                f"{step_of(failure.went_back_to):,}",
                ", ".join(spent),
            )
        )
    unknown = "" if hours else " (GPU hours are not known: no NVML series)"
    yield Paragraph(text=f"The attempts of this incident{unknown}:")
    head = ("No.", "From → to step", "LR scale", "Tripped by", "Back to", "Ran for, lost" if hours else "Ran for")
    yield Table(head=head, rows=tuple(rows), narrow=True)


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
    if known.name == story.stable and not known.fate and story.next is None:
        fate = f"{fate}: training goes on from it"
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
                    "not there any more" if aside.size is None else decimal(aside.size),
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
    unknown = "unknown (no NVML series)"

    def row(name: str, told: Callable[[Cost], str], whole: str | None = None) -> tuple[Cell, ...]:
        more = () if cost.incident is None else (told(cost.incident) if whole is None else whole,)
        return (name, told(cost), *more)

    rows = (
        row("Steps to be trained again", _steps),
        row("Training thrown away", lambda of: _span(of.discarded_seconds)),
        row("Standstill, trip to restart", lambda of: _span(of.down_seconds, "not over")),
        row("GPUs", lambda of: unknown if of.gpus is None else str(of.gpus)),
        row("GPU hours", lambda of: unknown if of.gpu_hours is None else f"{of.gpu_hours:.3f}"),
        row("Energy", lambda _: energy or unknown, ""),
    )
    head = ("What", "How much") if cost.incident is None else ("What", "This attempt", "The whole incident")
    yield Table(head=head, rows=rows, narrow=True)


def _steps(cost: Cost) -> str:
    return "unknown" if cost.steps is None else f"{cost.steps:,} ({cost.steps_words})"


def _span(seconds: float | None, otherwise: str = "unknown") -> str:
    return otherwise if seconds is None else span(seconds)


def _audit(findings: Sequence[Finding]) -> Iterator[Block]:
    yield Paragraph(
        text="Judged from the attempt's data alone. Suspicious is a place to start reading, not a proof."
    )
    judged = tuple(found for found in findings if found.verdict != "unknown")
    if judged:
        yield Table(
            head=("Item", "Verdict", "Evidence"),
            rows=tuple(
                (found.item, Badge(text=found.verdict, tone=_TONES[found.verdict]), found.evidence)
                for found in judged
            ),
            narrow=True,
        )
    unknown = [found for found in findings if found.verdict == "unknown"]
    if unknown:
        words = "; ".join(f"{found.item}: {found.evidence.rstrip('.')}" for found in unknown)
        yield Paragraph(badge=Badge(text="unknown", tone="unclear"), text=f"for want of data. {words}.")


def _log(facts: Facts) -> Iterator[Block]:
    attempt = facts.story.attempt.number
    if not facts.files.log:
        yield Paragraph(text=f"Attempt {attempt} has left no output.")
        return
    part = "The last lines of the trainer's output" if facts.files.log_omitted else "The trainer's output"
    yield Code(text=facts.files.log, caption=f"{part} (attempts/{attempt:03d}/output.log):")
