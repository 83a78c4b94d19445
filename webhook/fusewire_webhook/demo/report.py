"""Timeline and table of a demonstration, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.table import Table

from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.breaker.words import QUIET, describe
from fusewire_webhook.demo.incidents import Failure
from fusewire_webhook.engine.journal import Entry

MOMENTS = (
    ("fault strikes", "strike"),
    ("violation in Prometheus", "violation"),
    ("alert in the journal", "alert"),
    ("SIGTERM", "sigterm"),
    ("exit", "exited"),
    ("all processes gone", "stopped"),
    ("classified", "classified"),
    ("rollback", "rolled_back"),
    ("next attempt runs", "next_started"),
    ("its first update seen", "first_step"),
)
"""Rows of the table: words, and the field of :class:`Failure`."""


def timeline(entries: Sequence[Entry]) -> Iterator[str]:
    """One line an event, with the seconds since the first, and below it the decision that it led to."""
    state = fold(())
    for entry in entries:
        before, state = state, fold([entry.event], state)
        decided = state.decision if state.decision != before.decision else ""
        if decided or not isinstance(entry.event, QUIET):
            yield f"{entry.event.at - entries[0].event.at:7.2f} s  {describe(entry.event)}"
        if decided:
            yield f"{'':9}  → {state.phase.upper()}: {decided}"


def table(found: Sequence[Failure], final_return: float | None) -> Table:
    """One column a failure: every moment as a clock time and as seconds after the moment before it."""
    shown = Table(title="What happened, and when", title_justify="left")
    shown.add_column("")
    for failure in found:
        shown.add_column(f"attempt {failure.attempt}", justify="right")
    shown.add_row("failure", *(f"{f.cause} ({f.failure_class})" for f in found))
    for name, field in MOMENTS:
        if any(getattr(failure, field) is not None for failure in found):
            shown.add_row(name, *(_moment(failure, field) for failure in found))
    shown.add_section()
    shown.add_row("detection (violation → exit)", *(_between(f.violation, f.exited) for f in found))
    shown.add_row("back at work (exit → first update)", *(_between(f.exited, f.first_step) for f in found))
    shown.add_row("processes that needed SIGKILL", *(str(f.killed) for f in found))
    shown.add_row("rolled back to step", *(_target(f.resumed_step) for f in found))
    shown.add_row("steps lost", *("–" if f.steps_lost is None else str(f.steps_lost) for f in found))
    if final_return is not None:
        shown.add_row("mean return in the end", *([""] * (len(found) - 1)), f"{final_return:.0f}")
    return shown


def _moment(failure: Failure, field: str) -> str:
    at: float | None = getattr(failure, field)
    if at is None:
        return "–"
    clock = time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 100) % 100:02d}"
    fields = [name for _, name in MOMENTS]
    known = [getattr(failure, name) for name in fields[: fields.index(field)]]
    before = [moment for moment in known if moment is not None]
    return f"{clock}  {at - before[-1]:+6.2f} s" if before else clock


def _target(step: int | None) -> str:
    return "–" if step is None else str(step) if step else "from scratch"


def _between(start: float | None, end: float | None) -> str:
    return "–" if start is None or end is None else f"{end - start:.2f} s"
