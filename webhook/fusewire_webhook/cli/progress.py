"""What ``fusewire run`` and ``serve`` show: a line for each event and decision, and in a terminal the runs."""

from __future__ import annotations

import asyncio
import itertools
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fusewire_webhook.breaker.events import AlertReported, AttemptStarted, Event, ProcessExited, WouldHaveActed
from fusewire_webhook.breaker.transition import NEVER_JUDGED, fold
from fusewire_webhook.breaker.view import RunView, view_of
from fusewire_webhook.breaker.words import OLDER, QUIET, Repeats, describe, plain, verdict
from fusewire_webhook.cli.common import counted
from fusewire_webhook.cli.outlet import Outlet
from fusewire_webhook.cli.status import COLOURS, table
from fusewire_webhook.engine.output import last_line
from fusewire_webhook.engine.sight import not_watched
from fusewire_webhook.postmortem import postmortem_path

if TYPE_CHECKING:
    from fusewire_webhook.service import Service

_REFRESH_SECONDS = 0.5
_WATCH_SECONDS = 2.0


class Progress:
    """Prints to the console for the time of its context.

    Args:
        warnings: sentences about the configuration, shown first.
        service: as the log of a service that goes on for days: lines with the date, and no table below them.
    """

    def __init__(
        self, *, console: Console | None = None, warnings: Sequence[str] = (), service: bool = False
    ) -> None:
        self._stamp = "%Y-%m-%d %H:%M:%S" if service else "%H:%M:%S"
        self._service = service
        self._outlet = Outlet(sys.stdout) if console is None else None
        if console is None:
            console = Console(file=cast("IO[str]", self._outlet), highlight=False, soft_wrap=True)
        self._console = console
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._decisions: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        """Number of each run's newest attempt as of the event that is shown; the view may be further."""
        self._repeats: dict[str, Repeats] = {}
        self._events = itertools.count()
        for warning in warnings:
            print(f"fusewire: warning: {warning}", file=sys.stderr)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._service:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._outlet is not None:
            self._outlet.drain()

    def say(self, line: str) -> None:
        """One line with the time."""
        self._console.print(Text(f"{time.strftime(self._stamp)}  {line}"))

    async def follow(self, service: Service, *, runs_dir: Path) -> None:
        """Show what happens until cancelled."""
        for view in service.engine.views():
            self._decide(view)
        beside = [asyncio.ensure_future(work) for work in (self._refresh(service), self._mind_the_watch(service))]
        try:
            async with service.engine.subscribe() as changes:
                self._attempts = {view.run: view.attempt for view in service.engine.views()}
                states = {run: service.engine.state(run) for run in self._attempts}
                async for run, seq, event in changes:
                    states[run] = fold([event], states[run])  # as of the event: the engine may be further
                    view = view_of(run, seq, states[run])
                    self.show(view, event)
                    if isinstance(event, ProcessExited) and not event.completed:
                        self.last_words(runs_dir / run, event.attempt)
                    self._decide(view)
        finally:
            for task in beside:
                task.cancel()

    def result(self, view: RunView, *, runs_dir: str, verdicts: Sequence[Mapping[str, Any]] = ()) -> None:
        """How a run ended, and what to do about it: commands that work as they are printed.

        Args:
            verdicts: those of the gate on what is still a candidate, as :meth:`Promoter.latest` gives them.
        """
        where = f"{view.run} --runs {shlex.quote(runs_dir)}"
        line = Text(f"{view.run}: ").append(view.state.upper(), style=COLOURS.get(view.state, ""))
        if view.state == "locked":
            report = postmortem_path(Path(runs_dir) / view.run, max(view.attempt, 0))
            line.append(f": {view.reason}\n  can it wait, what did it cost: {report}\n")
            line.append(f"  what happened: fusewire log {where}\n")
            line.append(f"  to start it again: fusewire reset {where} --why '…', then the command again, corrected")
            if steps := ", ".join(str(one["step"]) for one in view.promoted):
                line.append(
                    f"\n  to choose from where (stable: {steps}): fusewire reset {where} --to STEP --why '…'"
                )
        elif view.shut_down:
            line.append(f", stopped at step {view.step}; the same command {view.next_start or 'goes on'}")
        elif not view.finished:
            line.append(", its end is not journaled; the same command ends what is left of it and goes on")
        else:
            line.append(f", attempt {view.attempt}, {counted(sum(view.trips.values()), 'trip')}")
            if NEVER_JUDGED in view.decision:
                line.append(f", but {NEVER_JUDGED}", style="yellow")
            line.append("".join(f"\n  {plain(words)}" for words in last_snapshot(view, verdicts)))
        self._console.print(line)

    def show(self, view: RunView, event: Event) -> None:
        """A line about an event, unless it is bookkeeping or an alert that reports again what led to nothing."""
        if isinstance(event, AttemptStarted):
            self._attempts[view.run] = event.attempt
        number = next(self._events)
        first, _ = self._repeats.setdefault(view.run, Repeats()).of(number, event)
        decided = view.decision and self._decisions.get(view.run) != view.decision
        told = first != number and not decided
        told |= isinstance(event, WouldHaveActed) and self._decisions.get(view.run) == event.words
        if not told and not isinstance(event, QUIET):
            self.say(f"{view.run}: {describe(event)}{self._unanswered(view, event)}")

    def last_words(self, run_dir: Path, attempt: int) -> None:
        """The last line that an attempt printed: of a trainer that fails at its start, most often the reason."""
        line = last_line(run_dir, attempt)
        if line:
            self._under(Text(f"it printed last: {plain(line)}"))

    def _unanswered(self, view: RunView, event: Event) -> str:
        """Why a trip alert stops nothing, in brackets."""
        if not isinstance(event, AlertReported) or (event.action, event.status) != ("trip", "firing"):
            return ""
        newest = self._attempts.get(view.run, view.attempt)
        if event.attempt is not None and event.attempt < newest:
            return OLDER
        if view.paused and view.live and not view.tripped and event.attempt == newest:
            return " (held: the run is paused)"
        return ""

    def _decide(self, view: RunView) -> None:
        if view.decision and self._decisions.get(view.run) != view.decision:
            self._decisions[view.run] = view.decision
            line = Text(f"{view.run} ").append(f"→ {view.state.upper()}", style=COLOURS.get(view.state, ""))
            self._under(line.append(verdict(view.state, view.decision).removeprefix(view.state)))

    def _under(self, line: Text) -> None:
        """What belongs to the line above: in the log of a service it has its own time, for whoever searches it."""
        before = time.strftime(self._stamp) if self._service else " " * 8
        self._console.print(Text(f"{before}  ").append(line))

    async def _mind_the_watch(self, service: Service) -> None:
        """A line when no rule sees a run any more, and one when it is seen again."""
        told: dict[str, str] = {}
        while True:
            for run, watch in service.engine.watches().items():
                words = not_watched(watch, time.time())
                if words and run not in told:
                    told[run] = words
                    self.say(f"{run}: {words}")
                elif not words and told.pop(run, "") and watch is not None and watch["state"] == "watched":
                    self.say(f"{run}: watched again")
            await asyncio.sleep(_WATCH_SECONDS)

    async def _refresh(self, service: Service) -> None:
        while self._live.is_started:
            views = [view.to_json() for view in service.engine.views()]
            self._live.update(table(views, decisions=False), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)


def last_snapshot(view: RunView, verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which snapshot is stable, and what became of the last one, where that is another. Empty: there was none."""
    known = [*view.promoted, *view.unpromoted]
    if not known:
        return []
    last = max(known, key=lambda one: (one["attempt"], one["step"]))
    lines = [f"stable snapshot: {view.promoted[-1]['name'] if view.promoted else 'none'}"]
    if last in view.unpromoted:
        reasons = next((one["reasons"] for one in verdicts if one["name"] == last["name"]), last["reasons"])
        fate = "rejected" if last["rejected"] else "not stable"
        lines.append(f"{last['name']} is {fate}: {'; '.join(reasons) or 'not judged'}")
    return lines
