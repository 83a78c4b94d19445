"""Verdicts for people: tables. The JSON form is :meth:`Verdict.to_json` and :meth:`Score.to_json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fusewire_webhook.backtest.model import LogError
from fusewire_webhook.backtest.pack import Pack
from fusewire_webhook.backtest.session import Point
from fusewire_webhook.backtest.verdict import Score, Verdict, by_label, score


def runs_table(verdicts: Sequence[Verdict]) -> Table:
    """A line per run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (
        ("run", "left"), ("algorithm", "left"), ("label", "left"), ("rows", "right"), ("bad from", "right"),
        ("pending", "right"), ("tripped", "right"), ("after onset", "right"), ("rule", "left"), ("then", "left"),
    ):  # fmt: skip
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=name != "then")
    for verdict in verdicts:
        log = verdict.log
        table.add_row(
            log.id,
            log.algorithm,
            log.label,
            str(log.rows),
            _number(log.first_bad_row),
            _pending(verdict),
            _number(verdict.tripped_row),
            "" if verdict.delay_rows is None else f"{verdict.delay_rows:+d} ({verdict.delay_seconds:+.0f} s)",
            verdict.tripped_rule or "",
            _then(verdict),
            style=_style(verdict),
        )
    return table


def labels_table(verdicts: Sequence[Verdict]) -> Table:
    """Tripped of all, by label."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("label")
    table.add_column("runs", justify="right")
    table.add_column("tripped", justify="right")
    for label, (tripped, runs) in by_label(verdicts).items():
        table.add_row(label, str(runs), str(tripped))
    return table


def score_line(found: Score) -> str:
    """The figures that decide."""
    delay = "none" if found.median_delay_rows is None else f"{found.median_delay_rows:g} rows"
    return (
        f"healthy and kl_spike tripped {found.spared[0]} of {found.spared[1]}, "
        f"noisy but fine {found.noisy[0]} of {found.noisy[1]}, "
        f"bad caught {found.caught[0]} of {found.caught[1]} ({found.early} too early), median delay {delay}"
    )


def sweep_table(key: str, points: Sequence[Point]) -> Table:
    """The trade-off of one number."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    outcomes = ("healthy tripped", "noisy tripped", "bad caught", "too early", "median delay of the others (rows)")
    for name in (key, *outcomes):
        table.add_column(name, justify="right")
    for point in points:
        if point.score is None:
            tripped = sum(verdict.tripped_row is not None for verdict in point.verdicts)
            table.add_row(point.value, f"{tripped} of {len(point.verdicts)} (no labels)", "", "", "", "")
            continue
        found = point.score
        table.add_row(
            point.value,
            f"{found.spared[0]} of {found.spared[1]}",
            f"{found.noisy[0]} of {found.noisy[1]}",
            f"{found.caught[0]} of {found.caught[1]}",
            str(found.early),
            _number(found.in_time_delay_rows),
        )
    return table


def document(verdicts: Sequence[Verdict], errors: Sequence[LogError], *, clock: str, pack: Pack) -> dict[str, Any]:
    """The JSON document of a backtest."""
    found = score(verdicts)
    return {
        "time": clock,
        "rules": [str(path) for path in pack.files],
        "runs": [verdict.to_json() for verdict in verdicts],
        "errors": [str(error) for error in errors],
        "score": None if found is None else found.to_json(),
    }


def sweep_document(
    key: str, points: Sequence[Point], errors: Sequence[LogError], *, clock: str, pack: Pack
) -> dict[str, Any]:
    """The JSON document of a sweep."""
    return {
        "time": clock,
        "rules": [str(path) for path in pack.files],
        "sweep": key,
        "points": [
            {
                "value": point.value,
                "score": None if point.score is None else point.score.to_json(),
                "tripped_rows": {verdict.log.id: verdict.tripped_row for verdict in point.verdicts},
            }
            for point in points
        ],
        "errors": [str(error) for error in errors],
    }


def left_out_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Which rules could not judge how many of the runs, those that judged none first."""
    counts = Counter(alert for verdict in verdicts for alert in verdict.left_out)
    return [
        f"{alert} judged {len(verdicts) - count} of {len(verdicts)} runs; the others show no series that it needs"
        for alert, count in counts.most_common()
    ]


def _pending(verdict: Verdict) -> str:
    rows = verdict.pending_rows
    return f"{len(rows)} from {rows[0]}" if rows else ""


def _then(verdict: Verdict) -> str:
    if verdict.breaker is None:
        return ""
    row = verdict.breaker.rollback_row
    origin = "from scratch" if row is None else f"from row {row}"
    return f"again {origin}, lr × {verdict.breaker.lr_scale:g}"


def _style(verdict: Verdict) -> str:
    tripped = verdict.tripped_row is not None
    if not verdict.log.label or verdict.log.label == "unclear":
        return "yellow" if tripped else ""
    return "green" if tripped and verdict.log.is_bad else "red" if tripped != verdict.log.is_bad else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
