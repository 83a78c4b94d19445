"""The breaker's decisions, one situation a test, on a simulated machine."""

from __future__ import annotations

from typing import Any

import pytest

from fusewire_webhook.breaker.actions import PromoteSnapshot, Purge, StopAttempt, owed
from fusewire_webhook.breaker.events import (
    AttemptStarted,
    Command,
    ExitClassified,
    ProcessExited,
    RolledBack,
    RunDeclared,
    SnapshotPromoted,
    SnapshotsRemoved,
    StepsWatched,
    StopConfirmed,
    WouldHaveActed,
    decode,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import NEVER_JUDGED, refusal
from fusewire_webhook.errors import IllegalTransitionError

from .doubles import trip
from .world import World


def running(**policy: Any) -> World:
    """A run in its first attempt."""
    world = World(policy=Policy(**policy))
    world.settle()
    return world


def trained(*steps: int, **policy: Any) -> World:
    """A run whose first attempt had snapshots at these steps promoted."""
    world = running(**policy)
    for step in steps:
        world.train(step)
        world.snapshot(promoted=True)
    world.train((steps[-1] if steps else 0) + 50)
    return world


# Intake ------------------------------------------------------------------------------------------------


def test_resolved_never_acts() -> None:
    """A resolved alert is recorded and changes nothing (robusta#345)."""
    world = trained(100)
    before = world.state
    assert world.submit(trip(0, status="resolved")) == ()
    assert world.state is before


def test_of_a_mixed_group_only_the_firing_alert_acts() -> None:
    """Alert A resolved and alert B firing in one group: B alone acts, once."""
    world = trained(100)
    world.submit(trip(0, name="A", status="resolved"))
    world.submit(trip(0, name="B"))
    assert "B on attempt 0" in world.state.decision
    assert world.settle().divergences_run == 1


def test_an_attempt_trips_at_most_once_whatever_is_sent_again() -> None:
    """Peers' duplicates, retries and a new startsAt of the same incident cause one rollback (prometheus#15175)."""
    world = trained(100)
    world.submit(trip(0, starts_at="2026-01-01T00:00:00Z"))
    for starts_at in ("2026-01-01T00:00:00Z", "2026-01-01T00:07:00Z"):
        assert world.submit(trip(0, starts_at=starts_at)) == ()
    state = world.settle()
    assert world.submit(trip(0, starts_at="2026-01-01T00:09:00Z")) == ()
    assert (state.attempt, world.state.divergences_run) == (1, 1)


def test_alerts_of_older_attempts_are_recorded_only() -> None:
    """A late alert of attempt 0 does not speak for attempt 1."""
    world = trained(100)
    world.alert()
    before = world.state
    assert world.submit(trip(0, name="Other")) == ()
    assert world.state is before


@pytest.mark.parametrize("alert", [trip(None), trip(0, action="notify"), trip(0, action=""), trip(5)])
def test_only_a_trip_alert_of_the_present_attempt_acts(alert: Any) -> None:
    """No attempt label, another action or an attempt that does not exist: evidence, nothing else."""
    world = trained(100)
    before = world.state
    assert world.submit(alert) == ()
    assert world.state is before


def test_an_alert_of_unknown_class_counts_as_divergence() -> None:
    """A trip rule without a class label rolls back: the careful answer."""
    world = trained(100)
    world.alert(failure_class="")
    assert world.state.trips_divergence == 1


def test_a_trip_between_start_and_its_journal_entry_is_not_lost() -> None:
    """The webhook was killed after the start; the attempt's alert came before its AttemptStarted was stored."""
    world = trained(100)
    world.submit(trip(0))
    while world.state.stage != "start":
        world.submit(world.perform(owed(world.state)[0]))
    assert world.submit(trip(1)) == ()
    world.submit(world.perform(owed(world.state)[0]))
    assert owed(world.state) == (StopAttempt(attempt=1),)
    assert world.state.divergences_run == 2


# Divergence --------------------------------------------------------------------------------------------


def test_divergence_goes_back_to_the_last_promoted_snapshot() -> None:
    """Half the rate, a new seed from run seed and attempt, discarded generator states, HALF_OPEN."""
    world = trained(100, 200, seed=3)
    state = world.alert()
    assert (state.phase, state.attempt, state.resumed_step) == ("half_open", 1, 200)
    assert (state.lr_scale, state.rng, state.seed) == (0.5, "reseed", Policy(seed=3).attempt_seed(1))
    assert state.seed != Policy(seed=3).attempt_seed(2)


def test_everything_newer_than_the_target_is_forgotten() -> None:
    """Snapshots that the bad policy wrote, promoted ones too, are never a target again."""
    world = trained(100, 200)
    world.alert()
    state = world.alert()
    assert state.resumed_step == 100
    assert [snapshot.step for snapshot in state.promoted] == [100]


def test_a_snapshot_that_failed_once_is_passed_over() -> None:
    """A second divergence before a newer promotion goes one promoted snapshot further back (Megatron-LM#5281)."""
    world = trained(100, 200)
    assert world.alert().resumed_step == 200
    assert world.alert().resumed_step == 100


def test_what_a_person_went_back_to_has_not_failed_yet() -> None:
    """The first divergence after a person's rollback goes back to that snapshot; the next one goes further back."""
    world = trained(100, 200, 300)
    assert world.command("rollback", snapshot=world.disk[1].name)
    assert world.settle().resumed_step == 200
    assert world.alert().resumed_step == 200
    assert world.alert().resumed_step == 100


def test_a_newer_promotion_clears_its_origin() -> None:
    """An attempt that got a newer snapshot promoted before it diverged does not blame the one that it came from."""
    world = trained(100, divergences_per_incident=5)
    world.alert()
    world.train(140)
    world.snapshot(promoted=True)
    assert world.alert().resumed_step == 140
    assert world.alert().resumed_step == 100


def test_no_older_stable_snapshot_left_locks() -> None:
    """When the last promoted snapshot has failed, restarting has not helped."""
    world = trained(100)
    world.alert()
    state = world.alert()
    assert state.phase == "locked"
    assert "no older stable snapshot" in state.reason
    assert not world.alive


@pytest.mark.parametrize(("without_stable", "phase"), [("scratch", "half_open"), ("lock", "locked")])
def test_divergence_without_a_stable_snapshot_follows_the_policy(without_stable: str, phase: str) -> None:
    """Before the first promotion a divergence starts from scratch, or locks, as configured."""
    world = running(without_stable=without_stable)
    world.train(50)
    world.snapshot(promoted=False)
    state = world.alert()
    assert (state.phase, state.resumed_from) == (phase, None)


def test_the_incident_budget_locks() -> None:
    """The third divergence of an incident locks, stops the trainer and names the budget."""
    world = trained(100, 200, 300, 400)
    world.alert()
    world.alert()
    state = world.alert()
    assert state.phase == "locked"
    assert "divergence 3 of one incident, of 3 allowed" in state.reason
    assert (state.lockouts, state.attempt, world.alive) == (1, 2, set())


def test_the_learning_rate_stops_at_its_floor() -> None:
    """Halving for ever has a price: 1/8 is the smallest scale."""
    world = trained(*range(100, 900, 100), divergences_per_incident=9)
    assert [world.alert().lr_scale for _ in range(5)] == [0.5, 0.25, 0.125, 0.125, 0.125]


def test_without_new_seed_the_seed_stays() -> None:
    """``new_seed: false`` changes the rate only."""
    world = trained(100, new_seed=False, seed=5)
    state = world.alert()
    assert (state.seed, state.rng, state.lr_scale) == (5, "restore", 0.5)


# End of the incident -----------------------------------------------------------------------------------


def test_only_a_promotion_past_the_furthest_trip_ends_the_incident() -> None:
    """A mere promotion does not: a run that always breaks at X re-promotes a snapshot before X for ever."""
    world = trained(100, 200, watch_steps=100)  # trips at 250
    world.alert()
    world.train(349)
    world.snapshot(promoted=True)
    assert world.state.phase == "half_open"
    world.train(350)
    world.snapshot(promoted=True)
    state = world.state
    assert (state.phase, state.incident, state.lr_scale) == ("closed", None, 0.5)


def test_the_rate_doubles_back_at_the_next_start() -> None:
    """After the incident the next start that answers no divergence gets twice the scale, at most 1, once."""
    world = trained(100, 200, watch_steps=100)
    world.alert()
    world.train(400)
    world.snapshot(promoted=True)
    assert world.exit(1).lr_scale == 1.0
    assert world.exit(1).lr_scale == 1.0


def test_a_reset_doubles_the_rate_back_unless_a_divergence_had_locked() -> None:
    """The raise that was due outlives a lockout by crashes; after a divergence it would be the wrong answer."""
    for failure_class, lr_scale in (("infrastructure", 1.0), ("divergence", 0.5)):
        world = trained(100, 200, watch_steps=100)
        world.alert()
        world.train(400)
        world.snapshot(promoted=True)
        world.declare(Policy(infrastructure_failures=1, divergences_per_run=1))
        assert world.alert(failure_class=failure_class).phase == "locked"
        world.command("reset")
        assert world.settle().lr_scale == lr_scale


def test_the_scale_of_an_attempt_is_what_it_was_started_with() -> None:
    """The journal's word on an attempt that runs wins over what this fusewire would have asked for."""
    world = trained(100)
    world.die(1)
    while world.state.stage != "start":
        world.submit(world.perform(owed(world.state)[0]))
    world.submit(AttemptStarted(attempt=1, handle={}, lr_scale=0.25))
    assert world.state.lr_scale == 0.25


def test_a_divergence_after_the_incident_halves_what_had_just_failed() -> None:
    """The raise that was due is dropped: repeating the rate that has just diverged would change nothing."""
    world = trained(100, 200, watch_steps=100)
    world.alert()
    world.train(400)
    world.snapshot(promoted=True)
    state = world.alert()
    assert (state.lr_scale, state.incident.number if state.incident else 0) == (0.25, 2)


def test_a_further_divergence_at_the_floor_of_the_learning_rate_locks() -> None:
    """No smaller rate is left to try in the incident, so a person must look, whatever the budgets allow."""
    world = trained(100, 200, 300, watch_steps=100, lr_scale_floor=0.5, divergences_per_incident=6)
    assert (world.alert().phase, world.state.lr_scale) == ("half_open", 0.5)
    state = world.alert()
    assert state.phase == "locked"
    assert "the learning-rate scale is at its floor, 0.5" in state.reason


def test_a_rate_that_divergences_keep_has_no_floor() -> None:
    """With ``lr_factor`` 1 the scale says nothing about how often to try."""
    world = trained(100, 200, 300, watch_steps=100, lr_factor=1.0, lr_scale_floor=1.0, divergences_per_incident=6)
    world.alert()
    assert world.alert().phase == "half_open"


def test_a_run_that_always_diverges_at_the_same_step_locks() -> None:
    """However often a snapshot before X is promoted again, 10,000 restarts never happen."""
    world = trained(100, 200, watch_steps=100, divergences_per_run=10_000)
    restarts = 0
    while world.state.phase != "locked":
        restarts += 1
        assert restarts < 10, "restarting goes on"
        world.train(240)
        world.snapshot(promoted=True)
        world.train(250)
        world.alert()
    assert restarts == 3


def test_a_run_that_creeps_past_its_incidents_is_bound_by_the_run_budget() -> None:
    """A run that ends every incident and breaks a little later each time locks at its tenth divergence."""
    world = trained(100, watch_steps=10)
    for number in range(1, 11):
        assert world.state.phase in {"closed", "half_open"}, number
        world.train(world.state.furthest_trip + 200)
        world.snapshot(promoted=True)
        world.alert()
    assert world.state.phase == "locked"
    assert "divergence 10 of the run" in world.state.reason


def test_a_stop_tells_how_far_the_attempt_had_really_come() -> None:
    """The furthest step that tripped counts what the trainer still did between alert and stop."""
    world = trained(100)
    world.submit(trip(0, step=150))
    world.submit(StopConfirmed(attempt=0, step=180))
    assert world.state.furthest_trip == 180


def test_probation_ends_an_attempt_that_goes_nowhere() -> None:
    """No end of the incident within the watched allowance is an infrastructure trip; unwatched time never is."""
    world = trained(100, watch_steps=100, probation_steps=500)  # trips at 150, resumes at 100: 50 more
    world.alert()
    world.submit(StepsWatched(attempt=1, step=600, watched=550))
    assert world.state.phase == "half_open"
    world.submit(StepsWatched(attempt=1, step=601, watched=1))
    assert owed(world.state) == (StopAttempt(attempt=1),)
    state = world.settle()
    assert (state.trips_infrastructure, state.phase, state.lr_scale) == (1, "half_open", 0.5)


def test_paused_steps_do_not_count_against_probation() -> None:
    """The probation clock stands still while somebody holds the breaker."""
    world = trained(100, probation_steps=10)
    world.alert()
    world.command("pause")
    world.submit(StepsWatched(attempt=1, step=9000, watched=9000))
    assert owed(world.state) == ()
    assert world.state.incident is not None
    assert world.state.incident.watched == 0


# Infrastructure ----------------------------------------------------------------------------------------


def test_a_crash_touches_neither_rate_nor_seed() -> None:
    """A crash resumes the newest snapshot, a candidate too, with the same seed and generator states."""
    world = trained(100, seed=4)
    world.train(180)
    newest = world.snapshot(promoted=False)
    state = world.exit(1)
    assert (state.resumed_from, state.lr_scale, state.seed, state.rng) == (newest, 1.0, 4, "restore")
    assert (state.phase, state.infrastructure_failures) == ("closed", 1)


def test_a_crash_on_probation_stays_on_probation() -> None:
    """An infrastructure restart inside an incident comes back HALF_OPEN with the incident's rate."""
    world = trained(100)
    world.alert()
    state = world.exit(1)
    assert (state.phase, state.lr_scale, state.divergences_run) == ("half_open", 0.5, 1)


def test_a_crash_before_the_first_new_snapshot_repeats_the_reseeded_attempt() -> None:
    """Restoring the old generator states would replay the very trajectory that had diverged."""
    world = trained(100)
    first = world.alert()
    again = world.exit(1)
    assert (again.resumed_from, again.seed, again.rng) == (first.resumed_from, first.seed, "reseed")
    world.train(180)
    world.snapshot(promoted=False)
    assert world.exit(1).rng == "restore"


def test_a_hang_restarts_without_touching_the_rate() -> None:
    """An infrastructure trip alert stops the attempt and costs the infrastructure budget only."""
    world = trained(100)
    state = world.alert(failure_class="infrastructure", name="TrainerStalled")
    assert (state.lr_scale, state.divergences_run, state.infrastructure_failures) == (1.0, 0, 1)


def test_backoff_doubles_up_to_its_maximum() -> None:
    """1, 2, 4, 4 seconds with a maximum of 4."""
    world = trained(100, backoff_seconds=1.0, backoff_max_seconds=4.0, infrastructure_failures=9)
    seconds = []
    for _ in range(4):
        world.die(1)
        while world.state.stage != "backoff":
            world.submit(world.perform(owed(world.state)[0]))
        assert world.state.procedure is not None
        seconds.append(world.state.procedure.backoff_seconds)
        world.settle()
    assert seconds == [1.0, 2.0, 4.0, 4.0]


def test_a_run_that_always_crashes_at_the_same_step_locks() -> None:
    """Promoting a snapshot before the crash again does not restore the infrastructure budget."""
    world = trained(100)
    restarts = 0
    while world.state.phase != "locked":
        restarts += 1
        assert restarts < 20, "restarting goes on"
        world.train(140)
        world.snapshot(promoted=True)
        world.submit(StepsWatched(attempt=world.state.attempt, step=150, watched=0))
        world.exit(1)
    assert restarts == 5
    assert "infrastructure failure 5 in a row" in world.state.reason


def test_progress_restores_the_infrastructure_budget() -> None:
    """A promoted snapshot past the failing step ends the row."""
    world = trained(100)
    world.submit(StepsWatched(attempt=0, step=150, watched=0))
    world.exit(1)
    world.train(200)
    world.snapshot(promoted=True)
    assert world.state.infrastructure_failures == 0


@pytest.mark.parametrize(("code", "reason"), [(143, "signal"), (143, ""), (137, "preempted"), (None, "preempted")])
def test_a_sigterm_from_outside_costs_no_budget(code: int | None, reason: str) -> None:
    """Preemption and SIGTERM restart the attempt; however many, the budget stays whole."""
    world = trained(100)
    for _ in range(20):
        world.exit(code, reason=reason)
    assert (world.state.infrastructure_failures, world.state.phase) == (0, "closed")


def test_an_oom_kill_costs_the_infrastructure_budget() -> None:
    """The kernel's SIGKILL is a failure of the run, not a wish of its owner."""
    world = trained(100)
    assert world.exit(137, reason="oom_kill").infrastructure_failures == 1


def test_exits_are_told_apart() -> None:
    """Exit code 0 says finished only with complete(), or of a command that never attached, or by the run's list."""
    outcomes = {}
    for words, policy, exited in (
        ("complete() and 0", {}, ProcessExited(attempt=0, exit_code=0, completed=True)),
        ("never attached and 0", {}, ProcessExited(attempt=0, exit_code=0, attached=False)),
        ("on the list", {"success_exit_codes": (3,)}, ProcessExited(attempt=0, exit_code=3)),
        ("0 alone", {}, ProcessExited(attempt=0, exit_code=0)),
        ("complete() and 1", {}, ProcessExited(attempt=0, exit_code=1, completed=True)),
        ("fatal", {"fatal_exit_codes": (2,)}, ProcessExited(attempt=0, exit_code=2)),
        ("lost", {}, ProcessExited(attempt=0, exit_code=None)),
    ):
        world = trained(100, **policy)
        world.alive.clear()
        world.submit(exited)
        outcomes[words] = (world.settle().phase, world.state.attempt)
        assert (NEVER_JUDGED in world.state.decision) == (words == "never attached and 0")
    assert outcomes == {
        "complete() and 0": ("completed", 0),
        "never attached and 0": ("completed", 0),
        "on the list": ("completed", 0),
        "0 alone": ("closed", 1),
        "complete() and 1": ("closed", 1),
        "fatal": ("locked", 0),
        "lost": ("closed", 1),
    }


def test_a_lock_after_exits_with_0_says_what_was_missing() -> None:
    """A trainer that ends well but never says that it is finished: its owner reads why it was started again."""
    world = trained(100, infrastructure_failures=1)
    world.alive.clear()
    world.submit(ProcessExited(attempt=0, exit_code=0))
    state = world.settle()
    assert state.phase == "locked"
    assert "attempt 0 exited with code 0 without run.complete()" in state.reason


FAILS: dict[str, Any] = {"attempt": 0, "exit_code": 1, "attached": False, "seconds": 0.3}


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({}, ("locked", 0)),
        ({"attached": True}, ("closed", 1)),
        ({"seconds": 11.0}, ("closed", 1)),
        ({"seconds": None}, ("closed", 1)),
        ({"exit_code": 137, "reason": "signal"}, ("closed", 1)),
        ({"exit_code": 143, "reason": "preempted"}, ("closed", 1)),
        ({"exit_code": None}, ("closed", 1)),
    ],
)
def test_a_command_that_fails_at_its_start_is_not_tried_again(
    changed: dict[str, Any], end: tuple[str, int]
) -> None:
    """A first attempt that ends in seconds and never attached would only fail again; another end may be chance."""
    world = running()
    world.alive.clear()
    world.submit(ProcessExited(**(FAILS | changed), last_line="train.py: no such file"))
    assert (world.settle().phase, world.state.attempt) == end
    assert ("fails at its start" in world.state.reason) == (end[0] == "locked")
    assert world.state.reason.endswith("no such file") == (end[0] == "locked")


def test_a_later_attempt_that_fails_at_its_start_is_tried_again() -> None:
    """What has run before may run again: the disk or the GPU may be away for a while."""
    world = trained(100)
    world.exit(1)
    assert world.state.attempt == 1
    world.alive.clear()
    world.submit(ProcessExited(**(FAILS | {"attempt": 1})))
    assert (world.settle().phase, world.state.attempt) == ("closed", 2)


def test_exit_0_while_a_stop_is_in_flight_is_no_completion() -> None:
    """Some frameworks exit 0 on SIGTERM: the stop's own answer counts."""
    world = trained(100)
    world.submit(trip(0))
    world.submit(ProcessExited(attempt=0, exit_code=0, completed=True))
    assert world.settle().attempt == 1


def test_a_divergence_alert_in_the_settle_period_decides() -> None:
    """The alert on the NaN comes after the death by it: no need to wait for the rest of the evidence."""
    world = trained(100)
    world.train(150)
    world.die(1)
    world.submit(world.perform(owed(world.state)[0]))
    assert world.state.stage == "settle"
    world.submit(trip(0))
    state = world.settle()
    assert (state.divergences_run, state.infrastructure_failures, state.resumed_step) == (1, 0, 100)


def test_a_divergence_alert_before_the_restart_turns_a_crash_into_a_divergence() -> None:
    """The alert comes after the classification but before the start: the crash's budget is given back."""
    world = trained(100)
    world.die(1)
    while world.state.stage != "backoff":
        world.submit(world.perform(owed(world.state)[0]))
    assert world.state.infrastructure_failures == 1
    world.submit(trip(0))
    state = world.settle()
    assert (state.divergences_run, state.infrastructure_failures, state.lr_scale) == (1, 0, 0.5)
    assert state.restarts_in_a_row == 0


def test_a_crash_that_was_a_divergence_gives_back_no_more_than_it_took() -> None:
    """A promotion in between has restored the budget of crashes already."""
    world = trained(100)
    snapshot = world.snapshot(promoted=False)
    world.train(120)
    world.die(1)
    while world.state.stage != "backoff":
        world.submit(world.perform(owed(world.state)[0]))
    world.command("promote", snapshot=snapshot)
    world.submit(world.perform(owed(world.state)[0]))
    world.submit(trip(0))
    state = world.settle()
    assert (state.divergences_run, state.infrastructure_failures, state.restarts_in_a_row) == (1, 0, 0)


def test_an_alert_during_the_stop_of_a_hung_attempt_is_no_second_trip() -> None:
    """An attempt that lives when it trips has used its trip, whatever is found out while it is stopped."""
    world = trained(100)
    world.submit(trip(0, name="Hang", failure_class="infrastructure"))
    assert world.state.stage == "stop"
    state = world.alert()
    assert (state.trips_infrastructure, state.trips_divergence, state.restarts_in_a_row) == (1, 0, 1)


def test_a_late_classification_is_recorded_only() -> None:
    """Evidence that arrives after the decision changes nothing."""
    world = trained(100)
    world.alert()
    before = world.state
    world.submit(ExitClassified(attempt=0, failure_class="divergence"))
    assert world.state is before


def test_the_first_start_that_fails_locks_at_once() -> None:
    """A command that does not exist will not exist in two seconds either."""
    world = World()
    while world.state.stage != "start":
        world.submit(world.perform(owed(world.state)[0]))
    world.submit(world.perform(owed(world.state)[0], fails=True))
    state = world.settle()
    assert state.phase == "locked"
    assert "could not be started: no such file" in state.reason


# Stopping, rolling back --------------------------------------------------------------------------------


def test_an_unconfirmed_stop_locks_and_starts_nothing() -> None:
    """Two trainers on one GPU are worse than none (pytorch PR#185414)."""
    world = trained(100)
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0], fails=True))
    assert world.state.phase == "locked"
    assert world.state.reason.startswith("host needs attention")
    assert owed(world.state) == ()
    assert world.alive == {0}


def test_a_reset_after_an_unconfirmed_stop_stops_first() -> None:
    """A person's reset does not believe that the process is gone either, and still rolls back."""
    world = trained(100)
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0], fails=True))
    assert world.command("reset")
    assert owed(world.state) == (StopAttempt(attempt=0),)
    state = world.settle()
    assert (state.attempt, state.resumed_step, state.rng) == (1, 100, "reseed")


def test_a_damaged_target_gives_way_to_the_one_before_it() -> None:
    """The newest stable checkpoint does not hold: the one before it is used (transformers#35525)."""
    world = trained(100, 200)
    world.damaged.add(world.disk[-1].name)
    assert world.alert().resumed_step == 100


def test_no_readable_target_locks() -> None:
    """Where every stable snapshot is damaged nothing is started."""
    world = trained(100)
    world.damaged.add(world.disk[-1].name)
    assert world.alert().phase == "locked"


def test_a_target_that_cannot_be_read_gives_way_too_and_the_ladder_goes_on_below_it() -> None:
    """It is no rung any more once the run goes on below it: the next failure goes further back, never forward."""
    world = trained(100, 200, 300, divergences_per_incident=4)
    world.unreadable = {world.disk[-1].name}
    state = world.alert()
    assert (state.resumed_step, state.lr_scale) == (200, 0.5)
    assert [snapshot.step for snapshot in world.aside] == [300]
    world.unreadable = set()
    assert world.alert().resumed_step == 100
    state = world.alert()
    assert (state.phase, "no older stable snapshot" in state.reason) == ("locked", True)


def test_a_target_that_cannot_be_read_is_no_rung_whatever_the_order_of_promotion() -> None:
    """A person promoted an older one last: without it the one before it in that order is the last rung."""
    world = trained(100)
    world.train(200)
    older = world.snapshot(promoted=False)
    world.train(300)
    world.snapshot(promoted=True)
    assert world.command("promote", snapshot=older)
    world.settle()
    world.unreadable = {older}
    world.submit(trip(0))
    while not (world.state.procedure and world.state.procedure.passed_over):
        world.submit(world.perform(owed(world.state)[0]))
    world.perform(owed(world.state)[0])
    world.restart_webhook()  # killed with the snapshot set aside and nothing journaled
    assert world.settle().resumed_step == 300
    assert [snapshot.step for snapshot in world.state.promoted] == [100, 300]
    world.unreadable = set()
    assert world.alert().resumed_step == 100


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "divergence"])
def test_nothing_that_can_be_read_locks_and_keeps_every_rung(crash: bool) -> None:
    """From scratch is for runs without a stable snapshot, not for a file server that is away."""
    world = trained(100, 200, without_stable="scratch")
    world.unreadable = {snapshot.name for snapshot in world.disk}
    state = world.exit(1) if crash else world.alert()
    assert (state.phase, "cannot be read" in state.reason) == ("locked", True)
    world.unreadable = set()
    assert world.command("reset")
    assert world.settle().resumed_step == 200


def test_one_damaged_and_one_that_cannot_be_read_lock() -> None:
    """The reason names the one that may come back."""
    world = trained(100, 200)
    world.damaged, world.unreadable = {world.disk[0].name}, {world.disk[1].name}
    state = world.alert()
    assert state.phase == "locked"
    assert f"{world.disk[-1].name} cannot be read now: its bytes do not hold" in state.reason
    assert [snapshot.step for snapshot in state.promoted] == [200]


def test_a_crash_passes_over_what_cannot_be_read() -> None:
    """The newest that can be read is resumed; the one passed over stays within a person's reach."""
    world = trained(100, 200)
    world.unreadable = {world.disk[-1].name}
    assert world.exit(1).resumed_step == 100
    assert [snapshot.step for snapshot in world.aside] == [200]


def test_a_persons_target_that_cannot_be_read_is_not_replaced_by_another() -> None:
    """Who names a snapshot means that one."""
    world = trained(100, 200)
    world.unreadable = {world.disk[-1].name}
    assert world.command("rollback", snapshot=world.disk[-1].name)
    assert world.settle().phase == "locked"
    assert [snapshot.step for snapshot in world.state.promoted] == [100, 200]


@pytest.mark.parametrize(
    ("failure", "promoted", "reason"),
    [
        ({"target": None}, [100], "no snapshot could be made active: state.bin"),
        ({"target": "step-000000000100-a000"}, [], "no snapshot could be made active: state.bin"),
    ],
)
def test_a_failed_rollback_that_an_earlier_fusewire_journaled_still_stands(
    failure: dict[str, Any], promoted: list[int], reason: str
) -> None:
    """Old journals name a target only where it was damaged: they fold to what was decided then."""
    world = trained(100)
    world.submit(trip(0))
    while world.state.stage != "rollback":
        world.submit(world.perform(owed(world.state)[0]))
    world.submit(decode("rollback_failed", 0.0, {"reason": "state.bin", **failure}))
    assert (world.state.phase, world.state.reason) == ("locked", reason)
    assert [snapshot.step for snapshot in world.state.promoted] == promoted


@pytest.mark.parametrize(("without_stable", "phase"), [("scratch", "closed"), ("lock", "locked")])
def test_a_crash_that_finds_no_usable_snapshot_follows_the_policy(without_stable: str, phase: str) -> None:
    """From scratch after hours of training is what the configuration says, not what a damaged disk does."""
    world = trained(100, 200, without_stable=without_stable)
    world.damaged = {snapshot.name for snapshot in world.disk}
    state = world.exit(1)
    assert (state.phase, state.resumed_from) == (phase, None)
    assert ("no snapshot can be resumed from" in state.reason) == (phase == "locked")


def test_a_restart_from_scratch_that_an_earlier_fusewire_journaled_still_stands() -> None:
    """Old journals do not say whether there were snapshots: they fold to what was done then."""
    world = trained(100, without_stable="lock")
    world.die(1)
    while world.state.stage != "resume":
        world.submit(world.perform(owed(world.state)[0]))
    world.submit(decode("rolled_back", 0.0, {"target": None, "step": 0, "attempt": 0, "quarantined": ["x"]}))
    assert (world.state.stage, world.state.active) == ("backoff", None)


def test_a_failed_purge_locks() -> None:
    """Starting on data that the bad policy wrote would poison the next attempt."""
    world = trained(100, purge=True)
    world.submit(trip(0))
    while world.state.stage != "purge":
        world.submit(world.perform(owed(world.state)[0]))
    world.submit(world.perform(owed(world.state)[0], fails=True))
    assert world.state.phase == "locked"
    assert world.command("reset")
    assert world.state.procedure is not None
    assert "purge" in world.state.procedure.stages


def test_removed_snapshots_are_no_target() -> None:
    """What retention deleted is not aimed at."""
    world = trained(100, 200)
    gone = world.disk.pop()
    world.submit(SnapshotsRemoved(names=(gone.name,)))
    assert world.alert().resumed_step == 100


def test_a_promotion_of_an_abandoned_line_is_recorded_only() -> None:
    """A verdict on a snapshot that the rollback has left behind arrives late."""
    world = trained(100)
    world.alert()
    world.submit(SnapshotPromoted(name="step-000000000149-a000", step=149, attempt=0))
    assert [snapshot.step for snapshot in world.state.promoted] == [100]


# People ------------------------------------------------------------------------------------------------


def test_locked_is_left_by_a_reset_only_and_old_alerts_are_discarded() -> None:
    """After days of LOCKED only what fires for the new attempt counts (NVSentinel#450)."""
    world = trained(100)
    world.alert()
    world.alert()
    assert world.state.phase == "locked"
    for verb in ("trip", "resume", "pause"):
        assert not world.command(verb)
    assert not world.command("rollback", scratch=True)
    world.submit(trip(1))
    world.submit(ProcessExited(attempt=1, exit_code=0, completed=True))
    assert owed(world.state) == ()
    assert world.command("reset")
    state = world.settle()
    assert (state.phase, state.attempt, state.resumed_step) == ("half_open", 2, 100)
    assert (state.divergences_run, state.incident.divergences if state.incident else -1) == (0, 0)
    world.submit(trip(1))
    assert owed(world.state) == ()


def test_a_trip_while_paused_waits_until_it_fires_again() -> None:
    """A pause holds the trip; at the resume nothing happens before the alert is reported again."""
    world = trained(100)
    world.command("pause", source="silence")
    world.submit(trip(0))
    assert owed(world.state) == ()
    assert "KLSpike" in world.state.held_trip
    world.command("resume", source="silence")
    assert owed(world.state) == ()
    world.submit(trip(0))
    assert owed(world.state) == (StopAttempt(attempt=0),)


def test_a_resume_tells_which_alerts_the_pause_held_and_that_they_act() -> None:
    """Each held alert once, in words, and how to prevent what follows."""
    world = trained(100)
    world.command("pause")
    for name in ("KLSpike", "EntropyCollapse", "KLSpike"):
        world.submit(trip(0, name=name))
    assert [held.alert for held in world.state.held] == ["EntropyCollapse", "KLSpike"]
    world.command("resume")
    for words in ("KLSpike on attempt 0", "EntropyCollapse on attempt 0", "keep_firing_for", "--dismiss"):
        assert words in world.state.decision
    world.command("pause")
    world.command("resume")
    assert "held" not in world.state.decision


@pytest.mark.parametrize(
    ("report", "acts"),
    [
        ({"starts_at": "1970-01-01T00:00:05Z"}, False),
        ({"starts_at": "1970-01-01T00:00:20Z"}, False),
        ({"starts_at": "1970-01-01T00:00:10.123456789Z"}, False),
        ({"starts_at": "1970-01-01T00:00:21Z"}, True),
        ({"starts_at": "1970-01-01T00:00:05Z", "name": "EntropyCollapse"}, True),
        ({"starts_at": ""}, True),
    ],
)
def test_a_dismissed_alert_is_recorded_and_a_new_one_acts(report: dict[str, str], acts: bool) -> None:
    """What began before the resume does not act; another alert, or one whose beginning is unknown, does."""
    world = trained(100)
    world.command("pause")
    world.submit(trip(0, starts_at="1970-01-01T00:00:05Z"))
    world.command("resume", dismiss=True, at=20.0)
    assert world.state.held_trip == ""
    world.submit(trip(0, **report))
    assert bool(owed(world.state)) == acts


def test_a_dismissal_holds_where_the_alerts_clock_is_ahead() -> None:
    """The very occurrence that was held does not act, whatever the webhook's clock says."""
    world = trained(100)
    world.command("pause")
    world.submit(trip(0, starts_at="1970-01-01T01:00:00Z"))
    world.command("resume", dismiss=True, at=20.0)
    world.submit(trip(0, starts_at="1970-01-01T01:00:00Z"))
    assert owed(world.state) == ()


def test_a_dismissal_ends_with_its_attempt() -> None:
    """The next attempt is judged anew; without anything held, ``dismiss`` only resumes."""
    world = trained(100)
    world.command("pause")
    world.submit(trip(0, starts_at="1970-01-01T00:00:05Z"))
    world.command("resume", dismiss=True, at=20.0)
    world.exit(1)
    assert world.state.dismissed == ()
    world.command("pause")
    assert world.command("resume", dismiss=True)
    assert "nothing was held" in world.state.decision
    world.submit(trip(1, starts_at="1970-01-01T00:00:05Z"))
    assert owed(world.state) == (StopAttempt(attempt=1),)


def test_the_end_of_a_silence_does_not_lift_a_persons_pause() -> None:
    """Each hold is lifted by its own kind; a person lifts all."""
    world = trained(100)
    world.command("pause", source="cli")
    world.command("pause", source="silence")
    world.command("resume", source="silence")
    assert [pause.source for pause in world.state.pauses] == ["cli"]
    world.command("resume")
    assert world.state.pauses == ()


def test_each_silence_is_a_pause_of_its_own_and_a_person_overrules_them_all() -> None:
    """The end of one leaves the other; what a person lifts is remembered, so that it does not come back."""
    world = trained(100)
    world.command("pause", source="silence", silence="a")
    world.command("pause", source="silence", silence="b")
    world.command("resume", source="silence", silence="a")
    assert ([pause.silence for pause in world.state.pauses], world.state.lifted) == (["b"], ())
    world.command("resume")
    assert (world.state.pauses, world.state.lifted) == ((), ("b",))


def test_a_pause_holds_what_is_in_flight_and_a_resume_goes_on_there() -> None:
    """A crash during a pause is looked into after it."""
    world = trained(100)
    world.command("pause")
    world.die(1)
    assert owed(world.state) == ()
    world.command("resume")
    assert world.settle().attempt == 1


def test_a_clean_end_is_not_held_by_a_pause() -> None:
    """COMPLETED is a fact, not an action against the run."""
    world = trained(100)
    world.command("pause")
    assert world.exit(0, completed=True).phase == "completed"


def test_a_persons_trip_acts_during_a_pause() -> None:
    """Who says trip means it."""
    world = trained(100)
    world.command("pause")
    assert world.command("trip")
    state = world.settle()
    assert (state.attempt, state.divergences_run) == (1, 1)
    assert state.pauses != ()


def test_a_persons_rollback_wins_over_the_action_in_flight() -> None:
    """A rollback to 100 during an automatic one to 200 ends at 100, without costing a divergence."""
    world = trained(100, 200)
    target = world.disk[0].name
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0]))
    assert world.state.stage == "rollback"
    late = world.perform(owed(world.state)[0])
    assert world.command("rollback", snapshot=target)
    world.submit(late)
    state = world.settle()
    assert (state.resumed_from, state.attempt, state.divergences_run) == (target, 1, 1)
    assert not world.command("rollback")


def test_a_rollback_during_a_start_stops_what_may_have_started() -> None:
    """The start was begun and not journaled when the person decided: that attempt is stopped first."""
    world = trained(100, 200)
    world.submit(trip(0))
    while world.state.stage != "start":
        world.submit(world.perform(owed(world.state)[0]))
    late = world.perform(owed(world.state)[0])
    assert world.command("rollback", snapshot=world.disk[0].name)
    world.submit(late)
    assert isinstance(late, AttemptStarted)
    assert owed(world.state) == (StopAttempt(attempt=1),)
    state = world.settle()
    assert (state.attempt, state.resumed_step, world.alive) == (2, 100, {2})


def test_a_person_who_decides_twice_during_a_start_stops_what_may_have_started() -> None:
    """The stop that the first decision owes is not lost by the second one: two trainers never live."""
    world = trained(100, 200)
    world.submit(trip(0))
    while world.state.stage != "start":
        world.submit(world.perform(owed(world.state)[0]))
    world.perform(owed(world.state)[0])  # the webhook is killed before it journals the start
    assert world.command("rollback", scratch=True)
    assert world.command("rollback", snapshot=world.disk[0].name)
    assert owed(world.state) == (StopAttempt(attempt=1),)
    state = world.settle()
    assert (state.attempt, state.resumed_step, world.alive) == (2, 100, {2})


def test_a_persons_promotion_becomes_the_target() -> None:
    """A promoted candidate is what the next divergence goes back to."""
    world = trained(100)
    name = world.snapshot(promoted=False)
    assert world.command("promote", snapshot=name)
    world.settle()
    assert world.alert().resumed_from == name
    assert not world.command("promote", snapshot=name)


def test_the_last_word_on_what_is_stable_is_the_target_however_old_the_snapshot() -> None:
    """A person promotes an older candidate: the next divergence goes back to it, past the newer stable ones."""
    world = trained(100)
    world.train(150)
    older = world.snapshot(promoted=False)
    for step in (200, 300):
        world.train(step)
        world.snapshot(promoted=True)
    assert world.command("promote", snapshot=older)
    world.settle()
    assert [snapshot.step for snapshot in world.state.promoted] == [100, 200, 300, 150]
    assert world.alert().resumed_from == older
    assert [snapshot.step for snapshot in world.state.promoted] == [100, 150]


def test_a_journal_that_holds_no_order_of_promotion_folds_by_order_of_writing() -> None:
    """Promotions that an earlier fusewire journaled mean what they meant then, and come before all later ones."""
    world = running()
    for name, step, sequence in (("b", 200, 0), ("a", 100, 0), ("d", 400, 4), ("c", 300, 3)):
        world.submit(SnapshotPromoted(name=name, step=step, attempt=0, sequence=sequence))
    assert [snapshot.name for snapshot in world.state.promoted] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Command(verb="reset", who="ann", why=""), "only a locked run"),
        (Command(verb="resume", who="ann", why=""), "not paused"),
        (Command(verb="promote", who="ann", why=""), "name of a snapshot"),
        (Command(verb="rollback", who="ann", why=""), "needs a snapshot"),
    ],
)
def test_senseless_commands_are_refused_in_a_sentence(command: Command, words: str) -> None:
    """Each refusal says what is missing, and the event alone changes nothing."""
    world = trained(100)
    assert words in (refusal(world.state, command) or "")
    before = world.state
    world.submit(command)
    assert world.state is before


@pytest.mark.parametrize("dirty", [True, False])
def test_a_reset_that_would_pass_over_what_is_being_promoted_is_refused(dirty: bool) -> None:
    """Whoever promotes and then resets means that snapshot: it is not put into quarantine by an older default."""
    world = trained(100, divergences_per_incident=1, infrastructure_failures=1)
    name = world.snapshot(promoted=False)
    assert (world.alert() if dirty else world.exit(1)).phase == "locked"
    assert world.command("promote", snapshot=name)
    assert f"{name} is being promoted" in (refusal(world.state, Command(verb="reset", who="ann", why="")) or "")
    assert not world.command("reset")
    world.settle()
    assert world.command("reset")
    assert world.settle().resumed_from == name
    assert [snapshot.name for snapshot in world.disk][-1] == name


@pytest.mark.parametrize("promotion_first", [True, False])
def test_a_reset_to_what_is_being_promoted_starts_from_it(promotion_first: bool) -> None:
    """Whichever is done first, it ends up stable and is what the run goes on from."""
    world = trained(100, divergences_per_incident=1)
    name = world.snapshot(promoted=False)
    world.alert()
    assert world.command("promote", snapshot=name)
    assert world.command("reset", snapshot=name)
    while not promotion_first and len(due := owed(world.state)) > 1:
        world.submit(world.perform(due[1]))
    state = world.settle()
    assert (state.phase, state.resumed_from, state.promoted[-1].name) == ("half_open", name, name)


# Observe -----------------------------------------------------------------------------------------------


def test_observe_says_what_it_would_have_done_and_does_nothing() -> None:
    """A trip in observe mode is one note; the trainer goes on."""
    world = trained(100, mode="observe")
    name = world.disk[-1].name
    world.submit(trip(0, step=150))
    world.submit(trip(0, step=150))
    state = world.settle()
    assert notes(world) == [
        f"would have stopped attempt 0 and rolled back to {name}: KLSpike on attempt 0 at step 150"
    ]
    assert (state.phase, state.live, state.divergences_run, world.alive) == ("closed", True, 0, {0})


def notes(world: World) -> list[str]:
    return [event.words for event in world.journal if isinstance(event, WouldHaveActed)]


def test_observe_notes_each_alert_of_an_attempt_once() -> None:
    """A false alarm blinds it for no other rule, and a repeated delivery is no new note."""
    world = trained(100, mode="observe")
    for name in ("FalseAlarm", "KLSpike", "FalseAlarm"):
        world.alert(name=name)
    world.alert(name="Hang", failure_class="infrastructure")
    assert [note.rpartition(": ")[2].split()[0] for note in notes(world)] == ["FalseAlarm", "KLSpike", "Hang"]
    assert not world.state.tripped


@pytest.mark.parametrize("failure_class", ["divergence", "infrastructure"])
def test_an_attempt_that_was_observed_is_guarded_once_the_mode_is_act(failure_class: str) -> None:
    """What was noted only has not used the trip of the attempt that lives on."""
    world = trained(100, mode="observe")
    world.alert(failure_class=failure_class)
    world.declare(Policy())
    state = world.alert(failure_class=failure_class)
    assert (state.attempt, world.alive) == (1, {1})


def test_a_note_that_an_earlier_fusewire_journaled_still_stands() -> None:
    """Old journals fold to what held then: the attempt had used its trip."""
    world = trained(100, mode="observe")
    world.submit(trip(0, step=150))
    (words,) = world.state.would_have
    world.submit(decode("would_have_acted", 0.0, {"words": words}))
    assert (world.state.tripped, world.state.would_have) == (True, ())


def test_a_probation_that_is_over_is_noted_once_in_observe_mode() -> None:
    """Each further look at the steps would be a note otherwise."""
    world = trained(100)
    world.alert()
    world.declare(Policy(mode="observe", probation_steps=50))
    for step in (1000, 2000, 3000):
        world.submit(StepsWatched(attempt=1, step=step, watched=1000))
        world.settle()
    assert len(notes(world)) == 1


@pytest.mark.parametrize("shut_down", [True, False])
def test_a_pause_holds_what_becomes_of_a_rollback_in_observe_mode(shut_down: bool) -> None:
    """The change of the mode is no person's word that the run goes on."""
    world = trained(100)
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0]))
    assert world.command("pause")
    if shut_down:
        world.command("shutdown")
        world.settle()
    world.declare(Policy(mode="observe"))
    assert owed(world.state) == ()
    world.command("resume")
    assert world.settle().attempt == 1


@pytest.mark.parametrize("shut_down", [True, False])
def test_a_rollback_that_is_done_is_purged_in_observe_mode_too(shut_down: bool) -> None:
    """Rows of the policy that was rolled back do not stay behind, and nothing says that it was not."""
    world = trained(100, 200, purge=True)
    world.submit(trip(0))
    while world.state.stage != "purge":
        world.submit(world.perform(owed(world.state)[0]))
    if shut_down:
        world.command("shutdown")
        world.settle()
    world.declare(Policy(mode="observe", purge=True))
    assert owed(world.state) == (Purge(target=world.disk[-1].name),)
    assert "nothing is rolled back" not in world.state.decision
    state = world.settle()
    assert (state.attempt, state.resumed_step, state.lr_scale) == (1, 200, 0.5)


def test_observe_restarts_nothing() -> None:
    """A crash in observe mode ends the run with the reason, and a person may start it again."""
    world = trained(100, mode="observe")
    state = world.exit(1)
    assert (state.phase, world.alive) == ("locked", set())
    assert "observe" in state.reason
    assert world.command("reset")
    assert world.settle().attempt == 1


# Shutdown ----------------------------------------------------------------------------------------------


def test_shutdown_during_a_divergence_goes_on_with_it_at_the_next_start() -> None:
    """Ctrl-C between stop and rollback does not forget the rollback."""
    world = trained(100, 200)
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0]))
    world.command("shutdown")
    state = world.settle()
    assert state.shut_down
    assert not world.alive
    world.submit(RunDeclared(policy=world.policy.to_json()))
    state = world.settle()
    assert (state.attempt, state.resumed_step, state.lr_scale, state.shut_down) == (1, 200, 0.5, False)


def test_a_trip_during_a_shutdown_is_answered_by_the_next_start() -> None:
    """The alert that comes between Ctrl-C and the trainer's end is not lost: the next start rolls back."""
    world = trained(100)
    world.command("shutdown")
    world.submit(trip(0))
    state = world.settle()
    assert (state.shut_down, state.divergences_run, world.alive) == (True, 1, set())
    world.submit(RunDeclared(policy=world.policy.to_json()))
    state = world.settle()
    assert (state.attempt, state.resumed_step, state.lr_scale, state.phase) == (1, 100, 0.5, "half_open")


@pytest.mark.parametrize("tripped", [False, True])
def test_a_shutdown_that_was_cut_short_is_no_end_of_the_run(tripped: bool) -> None:
    """A second Ctrl-C or a killed webhook: the next start ends what still lives, then goes on as ever."""
    world = trained(100)
    if tripped:
        world.submit(trip(0))
    world.command("shutdown")
    world.restart_webhook()
    world.declare(world.policy)
    assert [type(action) for action in owed(world.state)] == [StopAttempt]
    state = world.settle()
    assert (state.attempt, state.resumed_step, state.shut_down) == (1, 100, False)
    assert (state.phase, state.lr_scale) == (("half_open", 0.5) if tripped else ("closed", 1.0))
    assert len(world.alive) == 1


def test_a_person_takes_a_shutdown_back_for_good() -> None:
    """What a rollback during a shutdown has started is left alone by the next webhook."""
    world = trained(100)
    world.command("shutdown")
    assert world.command("rollback", scratch=True)
    assert world.settle().attempt == 1
    world.restart_webhook()
    world.declare(world.policy)
    assert owed(world.state) == ()
    assert len(world.alive) == 1


@pytest.mark.parametrize("incident", [False, True])
def test_what_goes_on_after_a_shutdown_is_no_incident(incident: bool) -> None:
    """Its phase is what it was, and the words say who stopped it and what it was resumed from."""
    world = trained(100)
    if incident:
        world.alert()
    phase = "half_open" if incident else "closed"
    world.command("shutdown")
    assert world.settle().phase == phase
    world.submit(RunDeclared(policy=world.policy.to_json()))
    assert (world.state.phase, world.state.decision) == (
        phase,
        "stopped by because; resuming from its newest snapshot",
    )
    state = world.settle()
    assert state.phase == phase
    assert state.decision.startswith("stopped by because; resumed from step-000000000100-a000: attempt ")
    assert world.command("pause")


def test_a_completed_run_goes_on_when_a_person_reopens_it() -> None:
    """From its newest snapshot, as a new attempt, with the budgets that were left; nothing else opens it."""
    world = trained(100, 200)
    world.alert()
    world.train(300)
    world.snapshot(promoted=False)
    assert not world.command("reopen")
    assert world.exit(0, completed=True).phase == "completed"
    before = world.state
    for verb in ("reset", "pause", "trip"):
        assert not world.command(verb)
    assert world.command("reopen")
    assert world.state.phase == "half_open"
    state = world.settle()
    assert (state.phase, state.attempt, state.resumed_step) == ("half_open", before.attempt + 1, 300)
    assert (state.divergences_run, state.incident) == (1, before.incident)
    assert (state.lr_scale, state.seed) == (before.lr_scale, before.seed)
    assert "reopen by ann: because; resumed from" in state.decision


def test_a_reopening_waits_for_what_a_person_promotes() -> None:
    """It goes on from that snapshot; alone it would pass over one that nobody knows to be clean."""
    world = trained(100)
    world.train(300)
    name = world.snapshot(promoted=False)
    world.exit(0, completed=True)
    assert world.command("promote", snapshot=name)
    assert world.command("reopen")
    assert [type(action) for action in owed(world.state)] == [PromoteSnapshot]
    state = world.settle()
    assert (state.promoted[-1].name, state.resumed_from) == (name, name)


def test_shutdown_before_the_first_start_starts_at_the_next_one() -> None:
    """Nothing was running: the next webhook begins where this one did."""
    world = World()
    world.command("shutdown")
    assert world.settle().shut_down
    world.submit(RunDeclared(policy=world.policy.to_json()))
    assert world.settle().attempt == 0


def test_a_run_directory_with_attempts_but_no_journal_counts_on() -> None:
    """After a lost journal attempt numbers are not used again."""
    world = World(state=RunState(declared=True))
    world.state = RunState()
    world.submit(RunDeclared(policy=Policy().to_json(), first_attempt=4))
    assert world.settle().attempt == 4


def test_an_illegal_change_of_phase_fails_loudly() -> None:
    """A completed run cannot be opened by anything."""
    with pytest.raises(IllegalTransitionError, match="completed → open"):
        RunState(phase="completed").to("open")


def test_a_late_rollback_of_a_replaced_procedure_does_not_advance_it() -> None:
    """The outcome of another target is a fact about the disk, not about the procedure."""
    world = trained(100, 200)
    world.submit(trip(0))
    world.submit(world.perform(owed(world.state)[0]))
    world.submit(RolledBack(target="step-000000000100-a000", step=100))
    assert world.state.stage == "rollback"
