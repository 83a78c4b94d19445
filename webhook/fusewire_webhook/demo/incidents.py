"""What became of each failure, step by step with the moment of each: from the journal, Prometheus, and the files
that keeper and trainer leave. A moment that nobody recorded stays unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.demo.guarded import GuardedRun, read_json
from fusewire_webhook.engine.journal import Entry
from fusewire_webhook.watch.prometheus import matchers

RESOLUTION_SECONDS = 0.05
"""Grid on which Prometheus is asked for the first moment of something."""
LOOKBACK_SECONDS = 120


@dataclass(kw_only=True)
class Failure:
    """One attempt that failed. Times are Unix seconds; None: not known (yet)."""

    attempt: int
    cause: str
    """Name of the alert, or how the process ended."""
    failure_class: str
    alert: float | None = None
    """The trip alert was in the journal."""
    exited: float | None = None
    """The process had ended."""
    classified: float | None = None
    """After a self-inflicted exit: the evidence was in."""
    stopped: float | None = None
    """Every process was gone."""
    killed: int = 0
    rolled_back: float | None = None
    resumed_step: int | None = None
    """Update that the next attempt went on from; 0: from scratch."""
    next_started: float | None = None
    strike: float | None = None
    """The fault struck."""
    violation: float | None = None
    """The alert's expression was true for the first time."""
    sigterm: float | None = None
    first_step: float | None = None
    """The next attempt had made its first update."""
    last_step: int | None = None
    """Furthest update of the failed attempt."""

    @property
    def steps_lost(self) -> int | None:
        """Updates that were undone."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return self.last_step - self.resumed_step


def failures(entries: Iterable[Entry]) -> list[Failure]:
    """The failures that the journal tells of, oldest first."""
    found: dict[int, Failure] = {}
    last = -1
    for entry in entries:
        event = entry.event
        match event:
            case ev.AlertReported(action="trip", status="firing", attempt=int(attempt)) if attempt not in found:
                found[attempt] = Failure(
                    attempt=attempt, cause=event.alertname, failure_class=event.failure_class, alert=event.at
                )
            case ev.ProcessExited(completed=False):
                cause = f"exit code {event.exit_code}"
                failed = Failure(attempt=event.attempt, cause=cause, failure_class="")
                found.setdefault(event.attempt, failed).exited = event.at
            case ev.ExitClassified() if event.attempt in found:
                found[event.attempt].failure_class = event.failure_class
                found[event.attempt].classified = event.at
            case ev.StopConfirmed() if event.attempt in found:
                found[event.attempt].stopped = event.at
                found[event.attempt].killed = event.killed
            case ev.RolledBack() if last in found:
                found[last].rolled_back = event.at
                found[last].resumed_step = event.step if event.target else 0
            case ev.AttemptStarted():
                if last in found:
                    found[last].next_started = event.at
                    if found[last].resumed_step is None:
                        found[last].resumed_step = _step_of(event.resume_from)
                last = event.attempt
            case _:
                pass
    return list(found.values())


def _step_of(snapshot: str | None) -> int:
    return int(snapshot.split("-")[1]) if snapshot else 0


class Observer:
    """Completes the failures of a living run by what only Prometheus and the attempt's files know.

    It has to be called while Prometheus lives: what it has seen once it keeps.
    """

    def __init__(self, guarded: GuardedRun) -> None:
        self._guarded = guarded
        self._strikes: dict[int, float] = {}
        self._violations: dict[int, float] = {}
        self._first_steps: dict[int, float] = {}
        self._last_steps: dict[int, int] = {}
        self._expressions: dict[str, str] = {}

    async def failures(self) -> list[Failure]:
        """Every failure so far, as complete as it can be."""
        found = failures(self._guarded.entries)
        for failure in found:
            await self._complete(failure)
        return found

    async def _complete(self, failure: Failure) -> None:
        guarded, attempt = self._guarded, failure.attempt
        failure.sigterm = guarded.attempt_file(attempt, "stop.json").get("at")
        failure.exited = guarded.attempt_file(attempt, "exit.json").get("at", failure.exited)
        self._see_strikes()
        failure.strike = self._strikes.get(attempt)
        if failure.alert is not None and attempt not in self._violations:
            await self._find_violation(failure)
        if failure.next_started is not None and attempt + 1 not in self._first_steps:
            labels = matchers(run=guarded.run, attempt=attempt + 1)
            await self._find_first(self._first_steps, attempt + 1, f"rl_updates_total{labels} > 0")
        await self._find_last_step(attempt)
        failure.violation = self._violations.get(attempt)
        failure.first_step = self._first_steps.get(attempt + 1)
        failure.last_step = self._last_steps.get(attempt)

    def _see_strikes(self) -> None:
        """The last fault that struck in each attempt; a later attempt's overwrites the file."""
        for memory in self._guarded.run_dir.glob("fault-*.json"):
            struck = read_json(memory)
            if struck:
                attempt, at = int(struck["attempt"]), float(struck["at"])
                self._strikes[attempt] = max(at, self._strikes.get(attempt, at))

    async def _find_violation(self, failure: Failure) -> None:
        if failure.cause not in self._expressions and self._guarded.prometheus is not None:
            groups = await self._guarded.prometheus.rules()
            self._expressions |= {rule.name: rule.query for group in groups for rule in group.rules}
        if expr := self._expressions.get(failure.cause):
            await self._find_first(self._violations, failure.attempt, f"({expr})")

    async def _find_first(self, into: dict[int, float], attempt: int, expr: str) -> None:
        """The first moment at which ``expr`` was true of the attempt, if it was, to the millisecond.

        Looked for coarsely, then within the step before what was found: an alert may follow in less than one.
        """
        step = f"{round(RESOLUTION_SECONDS * 1000)}ms"
        coarse = await self._first(attempt, expr, f"[{LOOKBACK_SECONDS}s:{step}]")
        if coarse is None:
            return
        fine = await self._first(attempt, expr, f"[{step}:1ms] @ {coarse:.3f}")
        into[attempt] = min(coarse if fine is None else fine, into.get(attempt, coarse))

    async def _first(self, attempt: int, expr: str, window: str) -> float | None:
        found = await self._guarded.query(f"min_over_time(timestamp({expr}){window})")
        moments = [sample.value for sample in found if sample.labels.get("attempt") == str(attempt)]
        return min(moments, default=None)

    async def _find_last_step(self, attempt: int) -> None:
        labels = matchers(run=self._guarded.run, attempt=attempt)
        seen = [int(s.value) for s in await self._guarded.query(f"max_over_time(rl_step{labels}[10m])")]
        seen.append(int(self._guarded.attempt_file(attempt, "last-values.json").get("step") or 0))
        self._last_steps[attempt] = max([*seen, self._last_steps.get(attempt, 0)])
