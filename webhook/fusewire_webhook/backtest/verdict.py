"""What the pack did to each run, and how that compares with the labels."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusewire_webhook.backtest.dryrun import DryRun, dry_run
from fusewire_webhook.backtest.engine import Heard, Plan
from fusewire_webhook.backtest.model import NOISY_LABEL, SPARED_LABELS, RunLog

EARLY_ROWS = 3
"""A bad run that trips more than this many rows before its onset was stopped too early."""


@dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """What one rule did to a run."""

    rule: str
    action: str
    pending_rows: tuple[int, ...]
    firing_rows: tuple[int, ...]
    firing_seconds: float | None
    """Of the first."""

    @property
    def firing_row(self) -> int | None:
        """The first."""
        return self.firing_rows[0] if self.firing_rows else None

    @property
    def doubtful_rows(self) -> tuple[int, ...]:
        """Rows in which nothing would have been promoted because of it."""
        return self.pending_rows if self.action == "trip" else (*self.pending_rows, *self.firing_rows)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the pack did to a run. Rows count from 0."""

    log: RunLog
    rules: tuple[RuleVerdict, ...] = ()
    tripped_row: int | None = None
    tripped_rule: str | None = None
    tripped_seconds: float | None = None
    onset_seconds: float | None = None
    breaker: DryRun | None = None
    left_out: tuple[str, ...] = ()
    """Alerts that could say nothing, because the run shows none of their series."""
    limits: Mapping[str, tuple[Sequence[int], Sequence[float]]] = field(default_factory=dict)
    """By signal (rows, levels at which a rule would have tripped); empty unless asked for."""

    @property
    def pending_rows(self) -> list[int]:
        """Rows before the trip in which a trip was pending, or a hold was pending or firing."""
        doubtful = {row for rule in self.rules for row in rule.doubtful_rows}
        return sorted(row for row in doubtful if self.tripped_row is None or row < self.tripped_row)

    @property
    def delay_rows(self) -> int | None:
        """From the labelled onset to the trip; negative: before it."""
        if self.tripped_row is None or self.log.first_bad_row is None:
            return None
        return self.tripped_row - self.log.first_bad_row

    @property
    def delay_seconds(self) -> float | None:
        """The same in seconds of the time that was assumed."""
        if self.tripped_seconds is None or self.onset_seconds is None:
            return None
        return self.tripped_seconds - self.onset_seconds

    def to_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "id": self.log.id,
            "source": self.log.source,
            "algorithm": self.log.algorithm,
            "label": self.log.label or None,
            "rows": self.log.rows,
            "first_bad_row": self.log.first_bad_row,
            "tripped_row": self.tripped_row,
            "tripped_rule": self.tripped_rule,
            "tripped_seconds": self.tripped_seconds,
            "delay_rows": self.delay_rows,
            "delay_seconds": self.delay_seconds,
            "pending_rows": self.pending_rows,
            "rules": [
                {
                    "rule": rule.rule,
                    "action": rule.action,
                    "pending_rows": list(rule.pending_rows),
                    "firing_row": rule.firing_row,
                    "firing_rows": list(rule.firing_rows),
                    "firing_seconds": rule.firing_seconds,
                }
                for rule in self.rules
            ],
            "left_out": list(self.left_out),
            "breaker": None
            if self.breaker is None
            else {
                "journal": list(self.breaker.lines),
                "rollback_row": self.breaker.rollback_row,
                "lr_scale": self.breaker.lr_scale,
            },
            "notes": list(self.log.notes),
        }


def judge(plan: Plan, heard: Heard, classes: Mapping[str, str], *, scrape_seconds: float) -> Verdict:
    """The verdict on one run from everything that was heard of it."""
    rows = [max(0, int(seen) - 1) for seen in plan.seen]
    scrapes: dict[str, dict[str, list[int]]] = {}
    for alert in heard.alerts:
        scrapes.setdefault(alert.alert, {"pending": [], "firing": []})[alert.state].append(alert.scrape)
    actions = {alert.alert: alert.action for alert in heard.alerts}
    verdicts = tuple(
        RuleVerdict(
            rule=name,
            action=actions[name],
            pending_rows=tuple(dict.fromkeys(rows[scrape] for scrape in states["pending"])),
            firing_rows=tuple(dict.fromkeys(rows[scrape] for scrape in states["firing"])),
            firing_seconds=states["firing"][0] * scrape_seconds if states["firing"] else None,
        )
        for name, states in scrapes.items()
    )
    trips = [rule for rule in verdicts if rule.action == "trip" and rule.firing_rows]
    first = min(trips, key=lambda rule: rule.firing_seconds or 0.0, default=None)
    onset = plan.log.first_bad_row
    verdict = Verdict(
        log=plan.log,
        rules=verdicts,
        tripped_row=first.firing_row if first else None,
        tripped_rule=first.rule if first else None,
        tripped_seconds=first.firing_seconds if first else None,
        onset_seconds=None if onset is None else float(plan.seconds[onset]),
        left_out=heard.left_out,
        limits={
            signal: ([rows[scrape] for scrape, _ in levels], [level for _, level in levels])
            for signal, levels in heard.limits.items()
        },
    )
    return verdict if first is None else replace(verdict, breaker=_breaker(first, verdict, classes))


def _breaker(first: RuleVerdict, verdict: Verdict, classes: Mapping[str, str]) -> DryRun:
    return dry_run(
        alert=first.rule,
        failure_class=classes.get(first.rule, "divergence"),
        row=first.firing_row or 0,
        doubtful_rows=verdict.pending_rows,
    )


@dataclass(frozen=True, kw_only=True)
class Score:
    """How the pack did on labelled runs; the figures that docs/rules.md records."""

    spared: tuple[int, int]
    """(tripped, all) of healthy runs and survived KL spikes."""
    noisy: tuple[int, int]
    """(tripped, all) of noisy but fine runs."""
    caught: tuple[int, int]
    """(tripped, all) of bad runs."""
    early: int
    """Bad runs that tripped more than three rows before their onset."""
    median_delay_rows: float | None
    """Over the bad runs that tripped."""
    in_time_delay_rows: float | None
    """The same over those that did not trip too early: what a number costs the others."""

    def to_json(self) -> dict[str, Any]:
        """Names as in the documentation."""
        return {
            "healthy_and_kl_spike": {"tripped": self.spared[0], "runs": self.spared[1]},
            NOISY_LABEL: {"tripped": self.noisy[0], "runs": self.noisy[1]},
            "bad": {"tripped": self.caught[0], "runs": self.caught[1], "early": self.early},
            "median_delay_rows": self.median_delay_rows,
            "median_delay_rows_without_early": self.in_time_delay_rows,
        }


def score(verdicts: Iterable[Verdict]) -> Score | None:
    """The score over labelled runs; None where none is labelled. Runs labelled ``unclear`` do not count."""
    labelled = [verdict for verdict in verdicts if verdict.log.label]
    if not labelled:
        return None
    bad = [verdict for verdict in labelled if verdict.log.is_bad]
    delays = [verdict.delay_rows for verdict in bad if verdict.delay_rows is not None]
    in_time = [delay for delay in delays if delay >= -EARLY_ROWS]

    def tripped(runs: Sequence[Verdict]) -> tuple[int, int]:
        return sum(run.tripped_row is not None for run in runs), len(runs)

    return Score(
        spared=tripped([verdict for verdict in labelled if verdict.log.label in SPARED_LABELS]),
        noisy=tripped([verdict for verdict in labelled if verdict.log.label == NOISY_LABEL]),
        caught=tripped(bad),
        early=len(delays) - len(in_time),
        median_delay_rows=statistics.median(delays) if delays else None,
        in_time_delay_rows=statistics.median(in_time) if in_time else None,
    )


def by_label(verdicts: Iterable[Verdict]) -> dict[str, tuple[int, int]]:
    """(tripped, all) for each label."""
    counts: dict[str, tuple[int, int]] = {}
    for verdict in verdicts:
        tripped, runs = counts.get(verdict.log.label or "unlabelled", (0, 0))
        counts[verdict.log.label or "unlabelled"] = (tripped + (verdict.tripped_row is not None), runs + 1)
    return dict(sorted(counts.items()))
