"""Writes a postmortem: reads the journal and the run directory, asks Prometheus, judges, and renders."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import aiohttp

from fusewire.attempt import ATTEMPT_FILE
from fusewire.files import write_atomically
from fusewire.snapshots.layout import parse_name
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.postmortem import Suffix, html, markdown, plots, postmortem_path
from fusewire_webhook.postmortem.asking import observe
from fusewire_webhook.postmortem.audit import Finding, ReplayAudit, ReplayFindings, RunData, Start
from fusewire_webhook.postmortem.checks import audit
from fusewire_webhook.postmortem.costs import cost_of
from fusewire_webhook.postmortem.folder import Files, look
from fusewire_webhook.postmortem.observed import Observed, Traces
from fusewire_webhook.postmortem.report import Facts, report
from fusewire_webhook.postmortem.runbook import Sections, read_runbook
from fusewire_webhook.postmortem.story import Attempt, Story
from fusewire_webhook.postmortem.telling import tell
from fusewire_webhook.settings.runs_folder import RunsFolder
from fusewire_webhook.watch.prometheus import Prometheus

log = logging.getLogger(__name__)

PROMETHEUS_SECONDS = 3.0
"""Patience for each answer."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A postmortem that was written."""

    attempt: int
    markdown: Path
    html: Path
    notes: tuple[str, ...] = ()
    """What it lacks, and why."""


def write_postmortem(
    runs_dir: Path,
    run: str,
    attempt: int | None = None,
    *,
    prometheus_url: str | None = None,
    scrape_interval: float = 1.0,
    replay: ReplayAudit | None = None,
    pictures: bool | None = None,
    clock: Callable[[], float] = time.time,
) -> Written:
    """Write (again) the postmortem of an attempt that tripped; without ``attempt``, of the last one that did.

    Blocks for a second or two, and for as long as Prometheus takes: call it in a process of its own, or where
    nothing waits.

    Args:
        runs_dir: folder of all runs, with their journal.
        prometheus_url: None: there is none to ask; what it answered before is used where it is kept.
        scrape_interval: seconds.
        replay: the run's replay buffer, where it can look at its rows.
        pictures: whether to draw; None: where matplotlib is installed.
        clock: Unix seconds.

    Raises:
        CommandError: the attempt has not tripped.
        JournalError: the journal cannot be read.
        OSError: the files cannot be written.
    """
    folder = RunsFolder(runs_dir)
    entries = list(Journal(folder.journal, read_only=True).read(run))
    story = tell(run, entries, attempt)
    run_dir, number = folder.root / run, story.attempt.number
    rolled = story.rolled_back
    files = look(
        run_dir,
        number,
        quarantined=rolled.quarantined if rolled is not None else (),
        target=rolled.target if rolled is not None else None,
        origin=story.attempt.resume_from,
    )
    observed, kept_from = _observed(run_dir, story, prometheus_url, scrape_interval, clock)
    algorithm = _algorithm(run_dir, story)
    facts = Facts(
        story=story,
        files=files,
        observed=observed,
        cost=cost_of(story, last_step=files.step, gpus=observed.gpus, energy_joules=observed.energy_joules),
        findings=judge(story, files, observed, algorithm=algorithm, replay=replay),
        runs_dir=folder.root,
        kept_from=kept_from,
        written_at=clock(),
        pictures=plots.available() if pictures is None else pictures,
        host=socket.gethostname(),
        runbooks=_runbooks(story),
    )
    return _write(run_dir, facts)


def judge(
    story: Story, files: Files, observed: Observed, *, algorithm: str = "", replay: ReplayAudit | None = None
) -> tuple[Finding, ...]:
    """The audit. What an attempt that ended soon cannot say, the longest one that led to it may."""
    found = audit(run_data(story, files, observed, algorithm=algorithm, replay=replay))
    if observed.longest is None or not observed.longest_whole:
        return found
    before = audit(RunData(algorithm=algorithm, signals=observed.longest_whole))
    return tuple(
        replace(earlier, evidence=f"Seen in attempt {observed.longest}, this one being short: {earlier.evidence}")
        if own.verdict == "unknown" and earlier.verdict != "unknown"
        else own
        for own, earlier in zip(found, before, strict=True)
    )


def _runbooks(story: Story) -> dict[str, tuple[str, Sections]]:
    """The runbooks that come with fusewire, by the address in the alerts."""
    addresses = dict.fromkeys(alert.annotations.get("runbook_url", "") for alert in story.alerts)
    return {address: found for address in addresses if (found := read_runbook(address)) is not None}


def run_data(
    story: Story,
    files: Files,
    observed: Observed,
    *,
    algorithm: str = "",
    replay: ReplayAudit | None = None,
) -> RunData:
    """What the audit reads."""
    findings, problem = _replay(story, files, replay)
    return RunData(
        algorithm=algorithm,
        signals=observed.whole,
        starts=tuple(
            _start(attempt, story, observed.rates)
            for attempt in (story.attempt, story.next)
            if attempt is not None and attempt.resume_from is not None
        ),
        replay=findings,
        replay_problem=problem,
        last=files.values,
    )


def _replay(story: Story, files: Files, replay: ReplayAudit | None) -> tuple[ReplayFindings | None, str]:
    if replay is None:
        return None, ""
    try:
        return replay.audit(story.run, story.attempt.number, files.origin_watermark), ""
    except Exception as error:  # whatever a data source does, the postmortem is written
        log.warning("the replay buffer could not be audited: %s", error)
        return None, f"{type(error).__name__}: {error}"


def _start(attempt: Attempt, story: Story, rates: Mapping[int, Traces]) -> Start:
    assert attempt.resume_from is not None
    step, writer = parse_name(attempt.resume_from) or (0, -1)
    parent = next((other for other in story.attempts if other.number == writer), None)
    own, parents = rates.get(attempt.number, {}), rates.get(writer, {})
    return Start(
        attempt=attempt.number,
        asked=attempt.lr_scale,
        parent_asked=parent.lr_scale if parent is not None else 0.0,
        reported_scale=_first(own, "lr_scale"),
        rate=_first(own, "learning_rate"),
        parent_rate=_rate_at(parents, step),
    )


def _first(traces: Traces, name: str) -> float | None:
    trace = traces.get(name)
    return float(trace.finite[0]) if trace is not None and len(trace.finite) else None


def _rate_at(traces: Traces, step: int) -> float | None:
    """The learning rate when the attempt stood at ``step``."""
    steps, rates = traces.get("step"), traces.get("learning_rate")
    if steps is None or rates is None:
        return None
    reached = steps.times[steps.values <= step]
    return rates.at(float(reached[-1])) if len(reached) else None


def _algorithm(run_dir: Path, story: Story) -> str:
    for alert in story.alerts:
        if alert.labels.get("algorithm"):
            return alert.labels["algorithm"]
    try:
        value = json.loads((run_dir / ATTEMPT_FILE).read_bytes())
        return str(value["algorithm"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _observed(
    run_dir: Path, story: Story, url: str | None, scrape_interval: float, clock: Callable[[], float]
) -> tuple[Observed, float | None]:
    if url is not None:
        return better(run_dir, story, asyncio.run(_ask(url, story, scrape_interval, clock)))
    nobody = Observed(
        problem="there is no Prometheus to ask now",
        asked_at=clock(),
        tripped_at=story.alert_at or story.tripped_at,
    )
    return better(run_dir, story, nobody)


def better(run_dir: Path, story: Story, fresh: Observed) -> tuple[Observed, float | None]:
    """What Prometheus says now, or where that lacks something, what it said before and when (Unix seconds)."""
    complete = not fresh.problem and bool(fresh.whole)
    kept = None if complete else read_kept(postmortem_path(run_dir, story.attempt.number, "json"))
    if kept is None or (fresh.whole and kept.problem):
        return fresh, None
    return kept, kept.asked_at


async def _ask(url: str, story: Story, scrape_interval: float, clock: Callable[[], float]) -> Observed:
    async with aiohttp.ClientSession() as session:
        prometheus = Prometheus(url, session=session, timeout=PROMETHEUS_SECONDS)
        return await observe(prometheus, story, scrape_interval=scrape_interval, clock=clock)


def read_kept(path: Path) -> Observed | None:
    """Answers of Prometheus that were kept beside a postmortem; None: there are none, or they are not readable."""
    try:
        return Observed.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: cannot be read (%s); it is ignored", path, error)
        return None


def _write(run_dir: Path, facts: Facts) -> Written:
    number = facts.story.attempt.number
    paths = {suffix: postmortem_path(run_dir, number, suffix) for suffix in get_args(Suffix)}
    paths["md"].parent.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, str] = {}
    if facts.pictures:
        drawn = {
            "svg": plots.draw(facts.observed, number),
            "incident.svg": plots.draw_incident(facts.observed, facts.story.incident),
        }
        pictures = {name: picture for name, picture in drawn.items() if picture is not None}
    if facts.kept_from is None and (facts.observed.whole or facts.observed.around):
        _put(paths["json"], json.dumps(facts.observed.to_json(), separators=(",", ":")))
    for name, picture in pictures.items():
        _put(paths[name], picture)
    document = report(facts)
    _put(paths["md"], markdown.render(document, plots={name: paths[name].name for name in pictures}))
    inline = {name: own_ids(picture, f"a{number}{name[0]}") for name, picture in pictures.items()}
    _put(paths["html"], html.render(document, plots=inline))
    notes = [facts.observed.problem] if facts.observed.problem and facts.kept_from is None else []
    if not facts.pictures:
        notes.append(plots.MISSING)
    return Written(attempt=number, markdown=paths["md"], html=paths["html"], notes=tuple(notes))


def own_ids(svg: str, prefix: str) -> str:
    """The picture with identifiers that clash with none of the page around it."""
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def _put(path: Path, text: str) -> None:
    write_atomically(path, text.encode(errors="replace"), durable=False)
