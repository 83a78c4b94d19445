"""Events in words, for the log, the progress of ``fusewire run`` and whoever reads them later."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.events import Event

QUIET = (ev.StepsWatched, ev.SnapshotSeen, ev.SnapshotJudged, ev.RunDeclared, ev.SnapshotsRemoved)
"""Events that are bookkeeping: shown on request only."""


OLDER = " (older attempt: recorded only)"
"""Behind a trip alert of an attempt that has been replaced: it stops nothing."""


class Repeats:
    """Which reports of alerts tell nothing new, in a journal that is read forwards.

    An alert fires on for minutes after its attempt is gone (``keep_firing_for``), and Alertmanager repeats it. A
    person's command makes news of the present attempt's again: what a pause has held may act then.
    """

    def __init__(self) -> None:
        self._attempt = -1
        self._first: dict[tuple[str, int | None, str, str], int] = {}

    def of(self, number: int, event: Event) -> tuple[int, bool]:
        """The number of the entry that first told what this one tells, and whether it is of an older attempt.

        Args:
            number: of the entry; it is the answer for all that is no repeated alert.
        """
        match event:
            case ev.AttemptStarted():
                self._attempt = max(self._attempt, event.attempt)
            case ev.Command():
                self._first = {key: at for key, at in self._first.items() if key[1] not in (None, self._attempt)}
            case ev.AlertReported():
                key = event.alertname, event.attempt, event.status, event.starts_at[:19]
                firing = (event.action, event.status) == ("trip", "firing")
                older = firing and event.attempt is not None and event.attempt < self._attempt
                return self._first.setdefault(key, number), older
        return number, False


def verdict(phase: str, decision: str) -> str:
    """A decision with the state that it led to, said once."""
    return plain(decision if decision.lower().startswith(f"{phase}:") else f"{phase}: {decision}")


def plain(text: str) -> str:
    """One line that does nothing to a terminal: words of alerts and exit reasons come from outside."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def observing(would_have_tripped: Mapping[str, int]) -> str:
    """What a run in observe mode has to tell of itself."""
    alerts = ", ".join(f"{alert} {times}×" for alert, times in would_have_tripped.items())
    return plain(f"observing; would have tripped: {alerts}") if alerts else "observing"


def to_quarantine(newer: int, stable: int) -> str:
    """What going back sets aside."""
    return f"{newer} {'snapshot' if newer == 1 else 'snapshots'} ({stable} stable) to quarantine"


def describe(event: Event) -> str:
    """One line about an event."""
    return plain(_describe(event))


def _describe(event: Event) -> str:  # noqa: PLR0911, PLR0912 - one sentence per kind of event
    match event:
        case ev.RunDeclared():
            return "guarded from now on"
        case ev.AlertReported():
            what = "trip alert" if event.action == "trip" else "alert"
            attempt = "" if event.attempt is None else f" (attempt {event.attempt})"
            found = ", found by reconciliation" if event.source == "reconcile" else ""
            summary = f": {event.summary}" if event.summary else ""
            return f"{what} {event.alertname} {event.status}{attempt}{found}{summary}"
        case ev.SnapshotSeen():
            return f"snapshot {event.name} is complete"
        case ev.SnapshotJudged():
            return f"snapshot {event.name} is not promoted, {event.answer}: {'; '.join(event.reasons)}"
        case ev.SnapshotPromoted():
            return f"snapshot {event.name} promoted by {event.by}"
        case ev.SnapshotRejected():
            return f"snapshot {event.name} rejected: {'; '.join(event.reasons)}"
        case ev.SnapshotsRemoved():
            return f"retention removed {', '.join(event.names)}"
        case ev.StepsWatched():
            return f"{event.watched} steps watched, up to step {event.step}"
        case ev.AttemptStarted():
            origin = event.resume_from or "scratch"
            return f"attempt {event.attempt} runs, from {origin}, learning-rate scale {event.lr_scale:g}"
        case ev.StartFailed():
            return f"attempt {event.attempt} did not start: {event.reason}"
        case ev.ProcessExited():
            code = "an unknown code" if event.exit_code is None else f"code {event.exit_code}"
            done = ", completed" if event.completed else ""
            if event.exit_code == 0 and event.attached and not event.completed:
                done = " without run.complete(), which would have said that it is finished"
            why = f" ({event.reason})" if event.reason else ""
            output = "" if event.completed else f"; its output: attempts/{event.attempt:03d}/output.log"
            return f"attempt {event.attempt} exited with {code}{done}{why}{output}"
        case ev.ExitClassified():
            why = f": {'; '.join(event.evidence)}" if event.evidence else ""
            return f"the end of attempt {event.attempt} counts as {event.failure_class}{why}"
        case ev.StopConfirmed():
            killed = f", {event.killed} killed" if event.killed else ""
            return f"attempt {event.attempt} is gone after {event.seconds:.1f} s{killed}, GPU memory {event.gpu}"
        case ev.StopUnconfirmed():
            return f"attempt {event.attempt} could not be stopped: {event.reason}"
        case ev.RolledBack():
            count = len(event.quarantined)
            aside = f", {count} {'snapshot' if count == 1 else 'snapshots'} to quarantine" if count else ""
            how = "rolled back to" if event.target and aside else "goes on from"
            return f"{how} {event.target or 'scratch'}{aside}"
        case ev.RollbackFailed():
            where = f" to {event.target}" if event.target else ""
            return f"rollback{where} failed: {event.reason}"
        case ev.PurgeFinished():
            return f"purge command ended with code {event.exit_code}"
        case ev.TimerElapsed():
            return "the wait before the next attempt is over"
        case ev.WouldHaveActed():
            return f"observing: {event.words}"
        case ev.Command():
            target = f" {event.snapshot}" if event.snapshot else " from scratch" if event.scratch else ""
            dismissing = ", dismissing what the pause held" if event.dismiss else ""
            return f"{event.who}: {event.verb}{target}{dismissing}: {event.why}"
        case ev.MonitoringChanged():
            if event.degraded:
                return f"the watch is degraded: {'; '.join((*event.reasons, *event.remarks))}"
            return f"the watch goes on: {'; '.join(event.remarks)}" if event.remarks else "the watch is whole again"
        case _:
            return event.kind
