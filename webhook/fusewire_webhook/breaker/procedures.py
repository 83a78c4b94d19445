"""The responses of the breaker: what a failure or a person's word sets in motion, stage by stage.

Every procedure that may meet a living process begins with ``stop``, and ``start`` comes last: two trainers of a
run never live at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusewire_webhook.breaker.state import Incident, Phase, Procedure, RunState, Snapshot, Stage


def begin(state: RunState, procedure: Procedure, *, phase: Phase = "open", **changes: Any) -> RunState:
    """Set a procedure in motion: its first stage is owed now. It takes the place of any other."""
    return _enter(state.to(phase, procedure=procedure, **{"suspended": None, **changes}))


def advance(state: RunState) -> RunState:
    """The present stage is done."""
    assert state.procedure is not None
    return _enter(state.but(procedure=replace(state.procedure, stages=state.procedure.stages[1:])))


def _enter(state: RunState) -> RunState:
    procedure = state.procedure
    assert procedure is not None
    if procedure.stages and procedure.stages[0] != "start":
        return state
    if procedure.stages:
        return _next_attempt(state, procedure)
    match procedure.ending:
        case "locked":
            return lock(state, procedure.reason)
        case "completed":
            return state.to("completed", procedure=None, decision=f"completed: {procedure.reason}")
        case "shut_down":
            return state.but(procedure=None, shut_down=True, decision=f"shut down: {procedure.reason}")
        case "running":
            raise AssertionError("a procedure that ends with a running attempt has a start stage")


def _next_attempt(state: RunState, procedure: Procedure) -> RunState:
    """Number the next attempt and fix its parameters.

    An infrastructure restart repeats the attempt's randomness: the generator states of a newer snapshot, or
    where there is none, the very parameters that the attempt itself was started with.
    """
    attempt = state.attempt + 1
    if procedure.reseed:
        seed, rng = state.policy.attempt_seed(attempt), "reseed"
    else:
        seed, rng = state.seed, state.rng if state.active == state.resumed_from else "restore"
    return state.but(
        attempt=attempt,
        live=False,
        handle=None,
        tripped=False,
        noted=(),
        dirty=False,
        early_trip=None,
        held_trip="",
        held=(),
        dismissed=(),
        step=state.active_step,
        lr_scale=procedure.lr_scale,
        raise_lr=False,
        seed=seed,
        rng=rng,
        resumed_from=state.active,
        resumed_step=state.active_step,
        incident=None if state.incident is None else replace(state.incident, watched=0),
    )


def lock(state: RunState, reason: str, **changes: Any) -> RunState:
    """Nothing happens any more without a person."""
    return state.to(
        "locked",
        procedure=None,
        suspended=None,
        reason=reason,
        decision=f"locked: {reason}",
        lockouts=state.lockouts + 1,
        **changes,
    )


def stop_and_lock(state: RunState, reason: str, **changes: Any) -> RunState:
    """Stop what is left of the attempt, then lock."""
    procedure = Procedure(cause="finish", reason=reason, stages=_stop_first(state), ending="locked")
    return begin(state, procedure, decision=f"stopping, then locked: {reason}", **changes)


def next_lr_scale(state: RunState) -> float:
    """Learning-rate scale of a start that is no answer to a divergence."""
    return min(1.0, state.lr_scale * 2) if state.raise_lr else state.lr_scale


def diverged(state: RunState, words: str, *, step: int, alert: str = "", person: bool = False) -> RunState:
    """Stop → roll back, quarantine → purge → restart with a smaller learning rate; or lock.

    A budget of n is used up by the n-th divergence. ``alert`` names what told of it; empty: no alert.
    """
    policy = state.policy
    if policy.mode == "observe" and not person:
        would_have = f"stopped attempt {state.attempt} and rolled back to {_name(_target(state, ()))}"
        return _observe(state, would_have, words, alert)
    incident = state.incident or Incident(number=state.incidents + 1)
    failed = incident.failed
    if incident.divergences and state.promoted and state.promoted[-1].name == state.resumed_from:
        failed = (*failed, state.promoted[-1].name)
    incident = replace(incident, divergences=incident.divergences + 1, failed=failed)
    divergences_run = state.divergences_run + 1
    counted = state.but(
        tripped=True,
        dirty=True,
        held_trip="",
        held=(),
        incident=incident,
        incidents=incident.number,
        furthest_trip=max(state.furthest_trip, step),
        divergences_run=divergences_run,
        trips_divergence=state.trips_divergence + 1,
    )
    for count, allowed, of in (
        (incident.divergences, policy.divergences_per_incident, "one incident"),
        (divergences_run, policy.divergences_per_run, "the run"),
    ):
        if count >= allowed:
            return stop_and_lock(counted, f"divergence {count} of {of}, of {allowed} allowed: {words}")
    if incident.divergences > 1 and policy.at_floor(state.lr_scale):
        words = f"the learning-rate scale is at its floor, {policy.lr_scale_floor:g}: {words}"
        return stop_and_lock(counted, words)
    target = _target(state, failed)
    if target is None and state.promoted:
        return stop_and_lock(counted, f"no older stable snapshot: {', '.join(failed)} failed already: {words}")
    if target is None and policy.without_stable == "lock":
        return stop_and_lock(counted, f"no snapshot is stable yet: {words}")
    lr_scale = policy.lowered(state.lr_scale)
    procedure = Procedure(
        cause="divergence",
        reason=words,
        stages=(*_stop_first(state), *_rollback(state), "start"),
        target=target.name if target else None,
        lr_scale=lr_scale,
        reseed=policy.new_seed,
        person=person,
    )
    return begin(
        counted,
        procedure,
        decision=f"divergence: {words}; rolling back to {_name(target)}, learning-rate scale {lr_scale:g}",
    )


def broke(state: RunState, words: str, *, step: int, alert: str = "", free: bool = False) -> RunState:
    """Stop what is left → newest clean verified snapshot → back-off → the same again; or lock."""
    policy = state.policy
    if policy.mode == "observe":
        return _observe(state, f"restarted attempt {state.attempt} from its newest snapshot", words, alert)
    failures = state.infrastructure_failures + (0 if free else 1)
    in_a_row = state.restarts_in_a_row + 1
    counted = state.but(
        tripped=state.tripped or state.live,
        held_trip="",
        held=(),
        infrastructure_failures=failures,
        infrastructure_step=max(state.infrastructure_step, step),
        restarts_in_a_row=in_a_row,
        trips_infrastructure=state.trips_infrastructure + (0 if free else 1),
    )
    if not free and failures >= policy.infrastructure_failures:
        return stop_and_lock(
            counted,
            f"infrastructure failure {failures} in a row, of {policy.infrastructure_failures} allowed: {words}",
        )
    seconds = policy.backoff(in_a_row)
    procedure = Procedure(
        cause="infrastructure",
        reason=words,
        stages=(*_stop_first(state), "resume", "backoff", "start"),
        lr_scale=next_lr_scale(state),
        backoff_seconds=seconds,
        free=free,
    )
    return begin(
        counted,
        procedure,
        decision=f"infrastructure: {words}; restarting from the newest snapshot in {seconds:g} s",
    )


def reset(state: RunState, words: str, *, target: str | None, scratch: bool) -> RunState:
    """A person's reset of a locked run: every budget is restored, an open incident stays on probation."""
    named = target is not None or scratch
    newest = state.promoted[-1].name if state.promoted else None
    condemned = state.dirty and state.policy.mode == "act"
    middle: tuple[Stage, ...] = _rollback(state) if condemned or named else ("resume",)
    target = target if named else newest
    origin = (
        f"going back to {target or 'the start'}" if "rollback" in middle else "resuming from its newest snapshot"
    )
    procedure = Procedure(
        cause="reset",
        reason=words,
        stages=("stop", *middle, "start"),
        target=target,
        lr_scale=state.lr_scale if state.dirty else next_lr_scale(state),
        reseed=state.dirty and state.policy.new_seed,
        person=True,
    )
    incident = state.incident
    return begin(
        state,
        procedure,
        reason="",
        decision=f"{words}; {origin}",
        incident=None if incident is None else replace(incident, divergences=0, failed=(), watched=0),
        divergences_run=0,
        infrastructure_failures=0,
        infrastructure_step=0,
        restarts_in_a_row=0,
    )


def roll_back(state: RunState, words: str, *, target: str | None) -> RunState:
    """A person's rollback; it takes the place of whatever was in flight and costs no budget."""
    procedure = Procedure(
        cause="person",
        reason=words,
        stages=(*_stop_first(state), *_rollback(state), "start"),
        target=target,
        lr_scale=next_lr_scale(state),
        reseed=state.policy.new_seed,
        person=True,
    )
    return begin(
        state,
        procedure,
        dirty=True,
        tripped=True,
        held_trip="",
        held=(),
        decision=f"rolling back to {target or 'the start'}: {words}",
    )


def reopen(state: RunState, words: str) -> RunState:
    """A person's word that a completed run goes on; budgets and an open incident stay as they are."""
    phase: Phase = "closed" if state.incident is None else "half_open"
    return begin(state, _restart(state, words), phase=phase, decision=f"{words}; resuming from its newest snapshot")


def _restart(state: RunState, words: str) -> Procedure:
    """From the newest clean verified snapshot, by a person's word: nothing has failed."""
    return Procedure(
        cause="restart", reason=words, stages=("resume", "start"), lr_scale=next_lr_scale(state), person=True
    )


def shut_down(state: RunState, by: str) -> RunState:
    """Stop the trainer and remember what to go on with; no budget is used. ``by``: what stopped it."""
    present = state.procedure
    if present is not None and present.cause == "finish":
        return state.but(procedure=replace(present, person=True))
    if present is not None and present.cause == "shutdown":
        return state
    if present is None:
        suspended = _restart(state, f"stopped by {by}")
    else:
        suspended = replace(present, stages=tuple(stage for stage in present.stages if stage != "stop"))
    procedure = Procedure(cause="shutdown", reason=by, stages=_stop_first(state), ending="shut_down", person=True)
    return begin(state, procedure, phase=state.phase, suspended=suspended, decision=f"shutting down: {by}")


def go_on(state: RunState) -> RunState:
    """The webhook starts again after a shutdown; of one that was cut short, what still lives is ended first."""
    assert state.suspended is not None
    suspended = replace(state.suspended, stages=(*_stop_first(state), *state.suspended.stages))
    seen, origin = [alert for alert in state.noted if alert], "its newest snapshot"
    if suspended.cause == "restart" and state.policy.mode == "act" and seen:
        words = f"{suspended.reason}; the mode is act now, and {', '.join(seen)} was only observed"
        suspended, origin = replace(suspended, reason=words), "the newest snapshot that no alert speaks against"
    nothing_failed = suspended.cause in {"first", "restart"}
    return begin(
        state,
        suspended,
        phase=state.phase if nothing_failed else "open",
        suspended=None,
        shut_down=False,
        decision=f"{suspended.reason}; resuming from {origin}"
        if suspended.cause == "restart"
        else f"it goes on where it was stopped: {suspended.reason}",
    )


def only_observe(state: RunState) -> RunState:
    """The mode has become observe: a rollback that an alert began is not done, the newest snapshot is resumed from.

    One that is done stays, with the purge and the start that belong to it; a pause holds the restart as it held the
    rollback.
    """
    pending = state.suspended if state.suspended is not None else state.procedure
    if pending is None or pending.cause != "divergence" or pending.person or "rollback" not in pending.stages:
        return state
    words = f"{pending.reason}: the mode is observe now, so nothing is rolled back for it"
    restart = replace(_restart(state, words), person=False)
    if state.suspended is not None:
        return state.but(suspended=restart)
    restart = replace(restart, stages=(*_stop_first(state), *restart.stages))
    return begin(state, restart, phase=state.phase, decision=f"{words}; resuming from its newest snapshot")


def next_start(state: RunState) -> str:  # noqa: PLR0911 - one return per kind of start
    """What the next start of the webhook does with a run that was shut down, in words; empty: nothing."""
    pending = state.suspended
    if pending is None:
        return ""
    if pending.cause == "first":
        return "starts it"
    if "rollback" in pending.stages:
        return f"first rolls back to {pending.target or 'the start'} ({pending.reason})"
    if "resume" not in pending.stages:
        return f"goes on from {state.active or 'scratch'}"
    newest, clean = "goes on from its newest verified snapshot", "that no alert speaks against"
    if not (state.promoted or state.unpromoted):
        return f"{newest} (none is known yet: from scratch)"
    if state.policy.mode == "observe":
        return f"{newest}; with `mode: act` it would be the newest one {clean}" if state.noted else newest
    written = [(one.attempt, one.step) for one in state.unpromoted if not one.rejected]
    last = max([*written, *(stable.order for stable in state.promoted)], default=(-1, -1))
    rejected = sum(one.rejected and (one.attempt, one.step) > last for one in state.unpromoted)
    aside = f"; {rejected} that the gate rejected after it will go to quarantine" if rejected else ""
    return f"{newest} {clean}{aside}"


def next_target(state: RunState) -> Snapshot | None:
    """Last promoted snapshot that did not fail in the open incident and was not passed over in this procedure."""
    failed = state.incident.failed if state.incident else ()
    return _target(state, (*failed, *(state.procedure.passed_over if state.procedure else ())))


def _target(state: RunState, failed: tuple[str, ...]) -> Snapshot | None:
    return next((s for s in reversed(state.promoted) if s.name not in failed), None)


def _name(target: Snapshot | None) -> str:
    return "the start" if target is None else target.name


def _stop_first(state: RunState) -> tuple[Stage, ...]:
    """``stop``, unless it is certain that no process of the attempt exists.

    It is not certain in the middle of a start, nor while a stop is owed that has not been confirmed.
    """
    return ("stop",) if state.live or state.stage in {"start", "stop"} else ()


def _rollback(state: RunState) -> tuple[Stage, ...]:
    return ("rollback", "purge") if state.policy.purge else ("rollback",)


def _observe(state: RunState, would_have: str, words: str, alert: str) -> RunState:
    """One note per alert and attempt; the attempt keeps its trip, for the day on which the mode is ``act``."""
    if state.live and alert in state.noted:
        return state
    note = f"would have {would_have}: {words}"
    times = dict(state.observed)
    if alert:
        times[alert] = times.get(alert, 0) + 1
    noted = state.but(
        observed=tuple(times.items()),
        noted=(*state.noted, alert),
        held_trip="",
        held=(),
        would_have=(*state.would_have, note),
        decision=note,
    )
    return noted if state.live else lock(noted, f"observe mode restarts nothing: {words}")
