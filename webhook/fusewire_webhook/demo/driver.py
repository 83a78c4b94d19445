"""Runs one demonstration: starts it, shows it, judges it, and prints what happened."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.incidents import Failure, Observer
from fusewire_webhook.demo.report import table, timeline
from fusewire_webhook.demo.scenarios import TARGET_RETURN, Pace, Scenario, config
from fusewire_webhook.postmortem import FOLDER as POSTMORTEMS
from fusewire_webhook.watch.prometheus import matchers

FAILED = 1
LOCKED = 3
POLL_SECONDS = 0.25
QUIET_SECONDS = 5.0
"""Without a terminal a line of progress is printed this often."""


async def demonstrate(
    scenario: Scenario, folder: Path, *, console: Console, pace: Pace | None = None, seconds: float = 270.0
) -> int:
    """Show one scenario; returns 0 only if everything that it promises has happened.

    Args:
        folder: a fresh one; takes configuration, logs, and the run.
        seconds: the longest that it may take.
    """
    console.print(f"[bold]{scenario.name}[/bold]: {scenario.story}.\nFiles: {folder}", highlight=False)
    started = time.monotonic()
    async with GuardedRun(folder, config(scenario, pace or Pace())) as guarded:
        watcher = Watcher(guarded, scenario)
        with _Progress(console) as progress:
            while (answer := await watcher.look()) is None and time.monotonic() - started < seconds:
                progress.show(f"{time.monotonic() - started:5.0f} s  {watcher.words()}")
                await asyncio.sleep(POLL_SECONDS)
        found = await watcher.observer.failures()
        if guarded.exit_code is None and answer:
            console.print("Done; ending the run as Ctrl-C would.", highlight=False)
            await guarded.interrupt()
    guarded.refresh()
    for line in timeline(guarded.entries):
        console.print(line, highlight=False, markup=False)
    if found:
        console.print(table(found, watcher.final_return if guarded.state.phase == "closed" else None))
    left = guarded.processes()
    if left:
        console.print(f"FAILED: processes of the run are left: {left}", highlight=False, markup=False)
        return FAILED
    return conclude(guarded, scenario, answer, console, time.monotonic() - started)


def conclude(guarded: GuardedRun, scenario: Scenario, answer: bool | None, console: Console, seconds: float) -> int:
    """Say how it ended and where to look; the exit code, 0 where all that was promised has happened."""
    state = guarded.state
    runs = shlex.quote(os.path.relpath(guarded.run_dir.parent))
    console.print(f"Look into it: fusewire log {guarded.run} --runs {runs}", highlight=False, markup=False)
    written = sorted((guarded.run_dir / POSTMORTEMS).glob("attempt-*.md"))
    if written:
        console.print(f"Postmortem: {os.path.relpath(written[-1])}", highlight=False, markup=False)
    if state.phase == "locked":
        met = scenario.outcome == "locked" and answer
        told = f"OK after {seconds:.0f} s, as the scenario has it: LOCKED" if met else "LOCKED"
        console.print(f"{told}: {state.reason}", highlight=False, markup=False)
        return 0 if met else LOCKED
    if not answer:
        why = "it took too long" if guarded.exit_code is None else guarded.last_words()
        last = f"state {state.phase}, attempt {state.attempt}, last decision: {state.decision or 'none'}"
        console.print(f"FAILED after {seconds:.0f} s: {why} ({last}; log: {guarded.log})", markup=False)
        return FAILED
    recovered = scenario.outcome == "recovered"
    ended = "stopped, restarted, recovered" if recovered else f"{scenario.alert} fires, nothing was stopped"
    console.print(f"OK after {seconds:.0f} s: {ended}, state {state.phase.upper()}.", highlight=False)
    return 0


class Watcher:
    """Looks at a run until its scenario has ended."""

    def __init__(self, guarded: GuardedRun, scenario: Scenario, *, target: float | None = TARGET_RETURN) -> None:
        self.guarded = guarded
        self.observer = Observer(guarded)
        self.final_return: float | None = None
        """Last mean return that Prometheus has seen of the newest attempt."""
        self._scenario = scenario
        self._target = target
        self._step = 0

    async def look(self) -> bool | None:
        """True: all that the scenario promises has happened; False: it cannot any more; None: not yet."""
        self.guarded.refresh()
        labels = matchers(run=self.guarded.run, attempt=self.guarded.state.attempt)
        for sample in await self.guarded.query(f'{{__name__=~"rl_episode_return|rl_step",{labels[1:]}'):
            if sample.labels["__name__"] == "rl_step":
                self._step = int(sample.value)
            else:
                self.final_return = sample.value
        found = await self.observer.failures()
        if await self._fulfilled(found):
            return True
        return None if self.guarded.exit_code is None else False

    def words(self) -> str:
        """One line of progress."""
        state = self.guarded.state
        mean = "–" if self.final_return is None else f"{self.final_return:.0f}"
        what = f"{state.phase.upper():9}  attempt {max(state.attempt, 0)}  update {self._step}  return {mean}"
        return f"{what}  {state.decision}" if state.decision else what

    async def _fulfilled(self, found: Sequence[Failure]) -> bool:
        state = self.guarded.state
        match self._scenario.outcome:
            case "locked":
                return state.phase == "locked" and self.guarded.exit_code is not None
            case "notified":
                labels = matchers(run=self.guarded.run, alertname=self._scenario.alert, alertstate="firing")
                struck = any(self.guarded.run_dir.glob("fault-*.json"))
                return struck and not found and bool(await self.guarded.query(f"ALERTS{labels}"))
            case "recovered":
                reached = self._target is None or (self.final_return or 0.0) >= self._target
                failed = [failure for failure in found if failure.failure_class == self._scenario.failure_class]
                back = bool(failed) and failed[-1].first_step is not None
                return back and reached and state.phase == "closed" and state.live and state.incident is None


class _Progress:
    """A line that is rewritten on a terminal, and printed now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._printed = 0.0

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, text: str) -> None:
        if self._status:
            self._status.update(text)
        elif time.monotonic() - self._printed >= QUIET_SECONDS:
            self._printed = time.monotonic()
            self._console.print(text, highlight=False, markup=False)
