"""The breaker: one pure function from a run's state and an event to its next state and the actions now due.

No clock, no I/O: what depends on time arrives as an event. An event that cannot matter any more (of an older
attempt, a late outcome, a resolved alert) leaves the state as it was: it is recorded, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fusewire_webhook.breaker import procedures
from fusewire_webhook.breaker.actions import Action, owed
from fusewire_webhook.breaker.events import (
    AlertReported,
    AttemptStarted,
    Command,
    Event,
    ExitClassified,
    ProcessExited,
    PurgeFinished,
    RollbackFailed,
    RolledBack,
    RunDeclared,
    SnapshotJudged,
    SnapshotPromoted,
    SnapshotRejected,
    SnapshotSeen,
    SnapshotsRemoved,
    StartFailed,
    StepsWatched,
    StopConfirmed,
    StopUnconfirmed,
    TimerElapsed,
    WouldHaveActed,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.procedures import advance
from fusewire_webhook.breaker.state import (
    Dismissed,
    EarlyTrip,
    Pause,
    Procedure,
    Promotion,
    RunState,
    Snapshot,
    Unpromoted,
)

KEPT_PROMOTIONS = 512
"""Promoted snapshots that the state remembers; retention keeps far fewer on disk."""
KEPT_UNPROMOTED = 128
"""Likewise of those that are not promoted; the newest ones."""

SIGTERM_EXIT = 143
FAILS_AT_START_SECONDS = 10.0
"""A run's first attempt that fails sooner, without having attached, is a command that fails at its start."""
NEVER_JUDGED = "nothing ever judged it: the trainer never called fusewire.attach()"
"""What a command that is done without having attached is to be told of."""
NOT_GUARDED = "it is not guarded now: start it again with the same `fusewire run …` (or `fusewire serve`)"


def transition(state: RunState, event: Event) -> tuple[RunState, tuple[Action, ...]]:
    """The state after the event, and the actions that are owed now and were not before.

    Raises:
        IllegalTransitionError: a fault of fusewire itself.
    """
    after = step(state, event)
    if after is state:
        return state, ()
    before = owed(state)
    return after, tuple(action for action in owed(after) if action not in before)


def step(state: RunState, event: Event) -> RunState:
    """The state after the event."""
    handler = _HANDLERS.get(type(event))
    return state if handler is None else handler(state, event)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after all events, from nothing or from ``state``."""
    state = RunState() if state is None else state
    for event in events:
        state = step(state, event)
    return state


def refusal(state: RunState, command: Command) -> str | None:  # noqa: PLR0911 - one return per reason
    """Why a person's command makes no sense now, in one sentence; None: it does."""
    if command.verb == "shutdown":
        return None
    if not state.declared or state.shut_down:
        return NOT_GUARDED
    match command.verb:
        case "reopen":
            able = state.phase == "completed"
            return None if able else f"it is {state.phase}: only a completed run can be reopened"
        case "reset":
            return _no_reset(state, command)
        case "promote":
            if command.snapshot is None:
                return "promote needs the name of a snapshot"
            known = any(snapshot.name == command.snapshot for snapshot in state.promoted)
            return f"{command.snapshot} is promoted already" if known else None
        case "resume":
            return None if state.pauses else "it is not paused"
    if state.phase == "locked":
        to = (
            " to that snapshot: `fusewire reset … --to STEP`, or --scratch"
            if command.verb == "rollback"
            else " first"
        )
        return f"it is locked ({state.reason}): reset it{to}"
    if state.phase == "completed":
        return "it is completed: reopen it first"
    if command.verb == "trip" and (state.procedure is not None or not state.live):
        return f"nothing is running that could be tripped now ({state.decision})"
    if command.verb == "rollback" and command.snapshot is None and not command.scratch:
        return "rollback needs a snapshot, or scratch"
    return None


def _no_reset(state: RunState, command: Command) -> str | None:
    """What it goes on from is chosen with the reset: not while a person's word on that is still carried out."""
    if state.phase != "locked":
        return f"it is {state.phase}: only a locked run can be reset"
    if state.promotions and command.snapshot is None and not command.scratch:
        names = ", ".join(promotion.name for promotion in state.promotions)
        return f"{names} is being promoted: name it with --to, or say this again once that is done"
    return None


def _declared(state: RunState, event: RunDeclared) -> RunState:
    policy = Policy.from_json(event.policy)
    if state.declared:
        observing = policy.mode == "observe" and state.policy.mode == "act"
        state = state.but(policy=policy)
        state = procedures.only_observe(state) if observing else state
        return procedures.go_on(state) if state.suspended is not None else state
    fresh = state.but(policy=policy, declared=True, attempt=event.first_attempt - 1, seed=policy.seed)
    first = Procedure(cause="first", reason="first start", stages=("resume", "start"))
    return procedures.begin(fresh, first, phase="closed", decision="first start")


def _alert(state: RunState, event: AlertReported) -> RunState:
    if event.status != "firing" or event.action != "trip" or event.attempt is None:
        return state
    if event.attempt != state.attempt or state.tripped or state.finished:
        return state
    starts_at = event.began
    if _is_dismissed(state, event.alertname, starts_at):
        return state
    at = state.step if event.step is None else max(event.step, state.step)
    hedge = "" if at == event.step else " or later"
    words = f"{event.alertname} on attempt {event.attempt} at step {at}{hedge}"
    trip = EarlyTrip(
        divergence=event.failure_class != "infrastructure",
        words=words,
        step=at,
        alert=event.alertname,
        starts_at=starts_at,
    )
    if state.stage is None:
        return _trip(state, trip) if state.live else state
    if state.stage == "start":
        return state if state.early_trip is not None else state.but(early_trip=trip)
    return _explain_exit(state, trip) if trip.divergence else state


def _is_dismissed(state: RunState, alert: str, starts_at: float | None) -> bool:
    """One whose beginning nobody knows is another occurrence: it acts."""
    return starts_at is not None and any(one.alert == alert and starts_at <= one.until for one in state.dismissed)


def _explain_exit(state: RunState, trip: EarlyTrip) -> RunState:
    """A divergence alert of an attempt that has ended, or is being shut down: it is answered by the next start."""
    procedure = state.procedure
    assert procedure is not None
    if procedure.cause == "exit":
        return procedures.diverged(state, trip.words, step=trip.step, alert=trip.alert)
    if procedure.cause == "shutdown" and state.live and not state.pauses:
        free = state.but(procedure=None, suspended=None)
        tripped = procedures.diverged(free, trip.words, step=trip.step, alert=trip.alert)
        return procedures.shut_down(tripped, procedure.reason)
    if procedure.cause != "infrastructure":
        return state
    refund = 0 if procedure.free else 1
    state = state.but(
        infrastructure_failures=max(0, state.infrastructure_failures - refund),
        restarts_in_a_row=max(0, state.restarts_in_a_row - 1),
    )
    return procedures.diverged(state, trip.words, step=trip.step, alert=trip.alert)


def _trip(state: RunState, trip: EarlyTrip) -> RunState:
    if state.pauses:
        held = (*(one for one in state.held if one.alert != trip.alert), trip)
        return state if held == state.held else state.but(held=held, held_trip=trip.words)
    if trip.divergence:
        return procedures.diverged(state, trip.words, step=trip.step, alert=trip.alert)
    return procedures.broke(state, trip.words, step=trip.step, alert=trip.alert)


def _snapshot_seen(state: RunState, event: SnapshotSeen) -> RunState:
    state = _seen(state, event)
    known = {*(one.name for one in state.unpromoted), *(snapshot.name for snapshot in state.promoted)}
    if event.name in known:
        return state
    new = Unpromoted(name=event.name, step=event.step, attempt=event.attempt, rules=event.rules)
    return state.but(unpromoted=(*state.unpromoted, new)[-KEPT_UNPROMOTED:])


def _snapshot_judged(state: RunState, event: SnapshotJudged) -> RunState:
    return _remember(state, event.name, reasons=event.reasons, final=event.final)


def _remember(state: RunState, name: str, **changes: Any) -> RunState:
    """With changes to what is known of a snapshot that is not promoted."""
    known = tuple(replace(one, **changes) if one.name == name else one for one in state.unpromoted)
    return state if known == state.unpromoted else state.but(unpromoted=known)


def _forget(state: RunState, names: Iterable[str]) -> RunState:
    """Without these among the snapshots that are not promoted."""
    gone = set(names)
    left = tuple(one for one in state.unpromoted if one.name not in gone)
    return state if len(left) == len(state.unpromoted) else state.but(unpromoted=left)


def _seen(state: RunState, event: SnapshotSeen | SnapshotPromoted) -> RunState:
    """A snapshot says how far its attempt has come."""
    if event.attempt != state.attempt or event.step <= state.step:
        return state
    return state.but(step=event.step)


def _snapshot_promoted(state: RunState, event: SnapshotPromoted) -> RunState:
    state = _forget(_promotion_done(state, event.name), (event.name,))
    left_behind = event.attempt < state.attempt and event.step > state.resumed_step
    if left_behind or any(snapshot.name == event.name for snapshot in state.promoted):
        return state
    new = Snapshot(name=event.name, step=event.step, attempt=event.attempt, sequence=event.sequence)
    promoted = (*state.promoted, new)
    if state.promoted and new.promotion_order < state.promoted[-1].promotion_order:
        promoted = tuple(sorted(promoted, key=lambda snapshot: snapshot.promotion_order))
    state = _seen(state.but(promoted=promoted[-KEPT_PROMOTIONS:]), event)
    if event.step > state.infrastructure_step:
        state = state.but(infrastructure_failures=0, infrastructure_step=0, restarts_in_a_row=0)
    if (
        state.incident is None
        or state.phase not in {"half_open", "completed"}
        or event.step < state.furthest_trip + state.policy.watch_steps
    ):
        return state
    return state.to(
        "closed" if state.phase == "half_open" else state.phase,
        incident=None,
        raise_lr=state.lr_scale < 1,
        decision=f"the incident is over: {event.name} lies past step {state.furthest_trip}, where it tripped last",
    )


def _snapshot_rejected(state: RunState, event: SnapshotRejected) -> RunState:
    if event.by == "gate":
        state = _remember(state, event.name, rejected=True, reasons=event.reasons)
    asked = _promotion_done(state, event.name)
    if asked is state:
        return state
    return asked.but(decision=f"{event.name} was not promoted: {'; '.join(event.reasons)}")


def _promotion_done(state: RunState, name: str) -> RunState:
    left = tuple(promotion for promotion in state.promotions if promotion.name != name)
    return state if len(left) == len(state.promotions) else state.but(promotions=left)


def _snapshots_removed(state: RunState, event: SnapshotsRemoved) -> RunState:
    state = _forget(state, event.names)
    return state.but(promoted=tuple(s for s in state.promoted if s.name not in event.names))


def _steps_watched(state: RunState, event: StepsWatched) -> RunState:
    if event.attempt != state.attempt:
        return state
    state = state.but(step=max(state.step, event.step))
    incident = state.incident
    if incident is None or state.phase != "half_open" or state.procedure or state.pauses or state.tripped:
        return state
    watched = incident.watched + event.watched
    state = state.but(incident=replace(incident, watched=watched))
    allowance = state.policy.probation_steps + max(0, state.furthest_trip - state.resumed_step)
    if watched <= allowance:
        return state
    words = f"attempt {state.attempt} did not end the incident within {allowance} watched steps"
    return procedures.broke(state, words, step=state.step)


def _attempt_started(state: RunState, event: AttemptStarted) -> RunState:
    if event.attempt != state.attempt or state.live:
        return state
    state = state.but(live=True, handle=event.handle, lr_scale=event.lr_scale)
    procedure = state.procedure
    if procedure is None or procedure.stages[0] != "start":
        return state
    counted = {
        "divergence": {"restarts_divergence": state.restarts_divergence + 1},
        "infrastructure": {"restarts_infrastructure": state.restarts_infrastructure + 1},
    }.get(procedure.cause, {})
    origin = state.resumed_from or "scratch"
    words = f"attempt {state.attempt} started from {origin}"
    if procedure.cause == "restart" and state.resumed_from is not None:
        words = f"{procedure.reason}; resumed from {origin}: attempt {state.attempt}"
    started = state.to(
        "closed" if state.incident is None else "half_open",
        procedure=None,
        early_trip=None,
        decision=f"{words}, learning-rate scale {state.lr_scale:g}",
        **counted,
    )
    return started if state.early_trip is None else _trip(started, state.early_trip)


def _start_failed(state: RunState, event: StartFailed) -> RunState:
    procedure = state.procedure
    if event.attempt != state.attempt or procedure is None or procedure.stages[0] != "start":
        return state
    words = f"attempt {event.attempt} could not be started: {event.reason}"
    if procedure.cause == "first":
        return procedures.stop_and_lock(state, words)
    return procedures.broke(state, words, step=state.step)


def _process_exited(state: RunState, event: ProcessExited) -> RunState:  # noqa: PLR0911 - one return per kind of exit
    if event.attempt != state.attempt or not state.live:
        return state
    if state.phase in {"locked", "completed"}:
        return state.but(live=False)
    if state.procedure is not None:
        return state
    policy, code = state.policy, event.exit_code
    words = f"attempt {event.attempt} exited with code {'unknown' if code is None else code}"
    if event.reason:
        words = f"{words} ({event.reason})"
    if code == 0 and event.attached and not event.completed:
        words = f"{words} without run.complete()"
    if (code == 0 and (event.completed or not event.attached)) or code in policy.success_exit_codes:
        if not event.attached:
            words = f"{words}; {NEVER_JUDGED}"
        finish = Procedure(cause="finish", reason=words, stages=("stop",), ending="completed", person=True)
        return procedures.begin(state, finish, phase=state.phase, decision=words)
    if policy.mode == "observe":
        return procedures.broke(state.but(live=False), words, step=state.step)
    if code in policy.fatal_exit_codes:
        return procedures.stop_and_lock(state, f"{words}, which means: do not restart")
    if _fails_at_its_start(event):
        said = f"; it printed last: {event.last_line}" if event.last_line else ""
        return procedures.stop_and_lock(state, f"the command fails at its start: {words}{said}")
    free = event.reason == "preempted" or (code == SIGTERM_EXIT and event.reason in {"", "signal"})
    settle = Procedure(cause="exit", reason=words, stages=("stop", "settle"), free=free)
    return procedures.begin(state, settle, decision=f"{words}; looking for the cause")


def _fails_at_its_start(event: ProcessExited) -> bool:
    """Nothing was trained and nothing is likely to change by itself, such as a wrong path or an import error."""
    return (
        event.attempt == 0
        and not event.attached
        and event.exit_code not in {None, 0}
        and not event.reason
        and event.seconds is not None
        and event.seconds < FAILS_AT_START_SECONDS
    )


def _exit_classified(state: RunState, event: ExitClassified) -> RunState:
    procedure = state.procedure
    if event.attempt != state.attempt or procedure is None or procedure.stages[0] != "settle":
        return state
    at = state.step if event.step is None else max(event.step, state.step)
    words = "; ".join((procedure.reason, *event.evidence))
    if event.failure_class == "divergence":
        return procedures.diverged(state, words, step=at)
    return procedures.broke(state, words, step=at, free=procedure.free)


def _stop_confirmed(state: RunState, event: StopConfirmed) -> RunState:
    if event.attempt != state.attempt:
        return state
    state = state.but(live=False)
    if event.step is not None and event.step > state.step:
        state = state.but(step=event.step)
        if state.dirty and state.procedure and state.procedure.cause in {"divergence", "finish"}:
            state = state.but(furthest_trip=max(state.furthest_trip, event.step))
    return advance(state) if state.stage == "stop" else state


def _stop_unconfirmed(state: RunState, event: StopUnconfirmed) -> RunState:
    if event.attempt != state.attempt or state.stage != "stop":
        return state
    return procedures.lock(state, f"host needs attention: {event.reason}")


def _rolled_back(state: RunState, event: RolledBack) -> RunState:
    procedure = state.procedure
    wanted = state.stage == "rollback" and procedure is not None and procedure.target == event.target
    aside = {*event.quarantined, *(procedure.passed_over if wanted and procedure else ())}
    last = (-1, -1) if event.target is None else (event.attempt, event.step)
    kept = tuple(s for s in state.promoted if s.order <= last and s.name not in aside)
    state = _forget(state, event.quarantined)
    if event.target is not None and event.sequence and event.target not in {s.name for s in kept}:
        back = Snapshot(name=event.target, step=event.step, attempt=event.attempt, sequence=event.sequence)
        kept = tuple(sorted((*kept, back), key=lambda snapshot: snapshot.promotion_order))
    state = state.but(active=event.target, active_step=event.step, promoted=kept)
    if state.stage == "resume" and event.none_usable and state.policy.without_stable == "lock":
        return procedures.lock(state, f"no snapshot can be resumed from: {', '.join(event.quarantined)}")
    return advance(state) if wanted or state.stage == "resume" else state


def _rollback_failed(state: RunState, event: RollbackFailed) -> RunState:
    procedure = state.procedure
    if procedure is None or procedure.stages[0] not in {"rollback", "resume"}:
        return state
    words = "no snapshot could be made active"
    if procedure.stages[0] == "rollback" and event.target is not None:
        if event.target != procedure.target:
            return state
        if event.unreadable:
            procedure = replace(procedure, passed_over=(*procedure.passed_over, event.target))
            state = state.but(procedure=procedure)
        else:
            state = state.but(promoted=tuple(s for s in state.promoted if s.name != event.target))
        older = procedures.next_target(state)
        if procedure.cause == "divergence" and older is not None:
            cannot = "cannot be read now" if event.unreadable else "cannot be used"
            return state.but(
                procedure=replace(procedure, target=older.name),
                decision=f"{event.target} {cannot} ({event.reason}); rolling back to {older.name}",
            )
        if procedure.passed_over:
            words = f"{words}, and {', '.join(procedure.passed_over)} cannot be read now"
    return procedures.lock(state, f"{words}: {event.reason}")


def _purge_finished(state: RunState, event: PurgeFinished) -> RunState:
    if state.stage != "purge":
        return state
    if event.exit_code == 0:
        return advance(state)
    words = f"the purge hook ended with exit code {event.exit_code}"
    return procedures.lock(state, f"{words}: {event.output.strip()}" if event.output.strip() else words)


def _timer_elapsed(state: RunState, event: TimerElapsed) -> RunState:
    return advance(state) if state.stage == "backoff" and event.name == f"backoff-{state.attempt}" else state


def _would_have_acted(state: RunState, event: WouldHaveActed) -> RunState:
    left = tuple(words for words in state.would_have if words != event.words)
    return state.but(would_have=left, tripped=state.tripped or (event.trip_used and state.noted != ()))


def _command(state: RunState, event: Command) -> RunState:  # noqa: PLR0911 - one return per verb
    if refusal(state, event) is not None:
        return state
    words = f"{event.verb} by {event.who}: {event.why}" if event.why else f"{event.verb} by {event.who}"
    match event.verb:
        case "pause":
            pause = Pause(source=event.source, who=event.who, why=event.why, silence=event.silence)
            return state if pause in state.pauses else state.but(pauses=(*state.pauses, pause), decision=words)
        case "resume":
            return _resume(state, event, words)
        case "trip":
            return procedures.diverged(state, words, step=state.step, person=True)
        case "reopen":
            return procedures.reopen(state, words)
        case "reset":
            return procedures.reset(state, words, target=event.snapshot, scratch=event.scratch)
        case "rollback":
            return procedures.roll_back(state, words, target=None if event.scratch else event.snapshot)
        case "promote":
            assert event.snapshot is not None
            promotion = Promotion(name=event.snapshot, who=event.who, why=event.why)
            return state.but(promotions=(*state.promotions, promotion), decision=words)
        case "shutdown":
            return state if state.finished or not state.declared else procedures.shut_down(state, event.why)


def _resume(state: RunState, event: Command, words: str) -> RunState:
    """A person ends every pause; the end of a silence only the one that it made."""
    if event.source == "silence":
        left = tuple(p for p in state.pauses if (p.source, p.silence) != ("silence", event.silence))
        if left:
            return state.but(pauses=left, decision=words)
        return state.but(pauses=(), held_trip="", held=(), decision=f"{words}{_held(state)}")
    lifted = dict.fromkeys((*state.lifted, *(p.silence for p in state.pauses if p.source == "silence")))
    resumed = state.but(pauses=(), lifted=tuple(lifted), held_trip="", held=())
    if not event.dismiss:
        return resumed.but(decision=f"{words}{_held(state)}")
    # the alert's own clock too, where the webhook's is behind it
    dismissed = tuple(
        Dismissed(alert=one.alert, until=max(event.at, one.starts_at or 0.0), began=one.starts_at)
        for one in state.held
    )
    names = ", ".join(one.alert for one in dismissed)
    told = f"dismissed: {names}; {_UNTIL_RESOLVED}" if dismissed else "dismissed: nothing was held"
    earlier = (one for one in state.dismissed if one.alert not in {other.alert for other in dismissed})
    return resumed.but(dismissed=(*earlier, *dismissed), decision=f"{words}; {told}")


_UNTIL_RESOLVED = (
    "until it has resolved, its keep_firing_for after the last violation, no new violation of that rule stops this "
    "attempt or lets a snapshot become stable; the other rules act"
)


def _held(state: RunState) -> str:
    """What a resume must tell of what its pause held; empty: nothing."""
    if not state.held:
        return ""
    return (
        f"; the pause held {', '.join(one.words for one in state.held)}: it acts as soon as it is reported again, "
        "which its rule's keep_firing_for (10 minutes in the packs) allows even after its values are fine; "
        "if it must not, pause again now, then `fusewire resume --dismiss` once it is held"
    )


_HANDLERS: dict[type[Event], Callable[[RunState, Any], RunState]] = {
    RunDeclared: _declared,
    AlertReported: _alert,
    SnapshotSeen: _snapshot_seen,
    SnapshotJudged: _snapshot_judged,
    SnapshotPromoted: _snapshot_promoted,
    SnapshotRejected: _snapshot_rejected,
    SnapshotsRemoved: _snapshots_removed,
    StepsWatched: _steps_watched,
    AttemptStarted: _attempt_started,
    StartFailed: _start_failed,
    ProcessExited: _process_exited,
    ExitClassified: _exit_classified,
    StopConfirmed: _stop_confirmed,
    StopUnconfirmed: _stop_unconfirmed,
    RolledBack: _rolled_back,
    RollbackFailed: _rollback_failed,
    PurgeFinished: _purge_finished,
    TimerElapsed: _timer_elapsed,
    WouldHaveActed: _would_have_acted,
    Command: _command,
}
"""``MonitoringChanged`` is not here: it is recorded only."""
