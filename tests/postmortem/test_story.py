"""What the journal tells of a failed attempt, and what it cost."""

from __future__ import annotations

import pytest

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.errors import CommandError
from fusewire_webhook.postmortem.costs import cost_of
from fusewire_webhook.postmortem.telling import MOST_LINES, tell

from .recorded import RUN, S20, S30, START, TRIP, alert, declared, entries, locked, recovered, started, until_trip


def test_restart_is_told_from_alert_to_next_attempt() -> None:
    """Cause, stop, target, quarantine and the next attempt of a divergence are all in the story."""
    story = tell(RUN, entries(recovered()))
    assert (story.outcome, story.failure_class) == ("restarted", "divergence")
    assert story.cause == "KLSpike on attempt 0 at step 33"
    assert story.tripped_at == TRIP
    assert isinstance(story.stop, ev.StopConfirmed)
    assert story.rolled_back is not None
    assert story.rolled_back.quarantined == (S30,)
    assert story.next is not None
    assert (story.next.number, story.next.lr_scale, story.next.resumed_step) == (1, 0.5, 20)
    assert story.attempt.last_step == 34
    assert (story.divergences, story.divergences_allowed) == (1, 3)


def test_lock_is_told_with_its_reason() -> None:
    """With the budget used the outcome is the lock, and there is no next attempt."""
    story = tell(RUN, entries(locked()))
    assert (story.outcome, story.next) == ("locked", None)
    assert (story.cause, story.by_alert) == ("KLSpike on attempt 0 at step 33", True)
    assert "divergence 1 of one incident, of 1 allowed" in story.lock_reason


def test_lock_stays_the_outcome_after_a_reset() -> None:
    """A person's reset starts another attempt; the attempt before it was locked all the same."""
    reset = ev.Command(at=TRIP + 60, verb="reset", who="ada", why="lower clip")
    gone = ev.StopConfirmed(at=TRIP + 61, attempt=0)
    again = [reset, gone, ev.RolledBack(at=TRIP + 62, target=S20, step=20, attempt=0)]
    story = tell(RUN, entries([*locked(), *again, started(1, at=TRIP + 63, resume_from=S20)]))
    assert story.outcome == "locked"
    assert story.next is not None


def test_stop_that_is_not_confirmed_is_told() -> None:
    """A trainer that cannot be stopped locks the run, and the story knows why."""
    stuck = ev.StopUnconfirmed(at=TRIP + 1, attempt=0, reason="process 4711 is in uninterruptible sleep")
    story = tell(RUN, entries(locked(stop=stuck)))
    assert story.stop == stuck
    assert "host needs attention" in story.lock_reason


def test_observed_trip_has_a_story() -> None:
    """A run that is only observed is not touched; what would have been done is the cause."""
    would = ev.WouldHaveActed(at=TRIP + 1, words="would have stopped attempt 0")
    story = tell(RUN, entries([*until_trip(mode="observe"), would]))
    assert (story.outcome, story.cause) == ("observed", "would have stopped attempt 0")


def test_attempt_that_has_not_tripped_is_refused() -> None:
    """The refusal names the attempts that have."""
    with pytest.raises(CommandError, match="attempt 1 of cartpole has not tripped; these have: 0"):
        tell(RUN, entries(recovered()), 1)
    with pytest.raises(CommandError, match="no attempt of cartpole has tripped"):
        tell(RUN, entries([declared(), started(0, at=START)]))
    with pytest.raises(CommandError, match="no run 'cartpole' was ever guarded in this folder"):
        tell(RUN, [])


def test_last_failed_attempt_is_the_default() -> None:
    """Without a number the story is that of the newest trip, and each attempt keeps its own alerts."""
    events = [*recovered(), alert("EntropyCollapse", attempt=1, at=TRIP + 20)]
    assert tell(RUN, entries(events)).attempt.number == 1
    assert [told.alertname for told in tell(RUN, entries(events), 0).alerts] == ["KLSpike"]


def test_lines_are_bounded() -> None:
    """Hundreds of alerts of one attempt leave a short postmortem that says how many lines are left out."""
    many = [alert(f"Alert{number}", at=TRIP + number / 1000) for number in range(300)]
    story = tell(RUN, entries([*until_trip(), *many]))
    assert len(story.lines) == MOST_LINES
    assert story.omitted > 200
    assert story.lines[0].words.startswith("attempt 0 runs")


def test_cost_counts_from_the_snapshot_that_was_gone_back_to() -> None:
    """Steps and training since the target, the time until the restart, and GPU hours of both."""
    cost = cost_of(tell(RUN, entries(recovered())), gpus=2)
    assert cost.steps == 14
    assert cost.discarded_seconds == pytest.approx(12)
    assert cost.down_seconds == pytest.approx(2)
    assert cost.gpu_hours == pytest.approx(2 * 14 / 3600)


def test_cost_from_scratch_is_the_whole_attempt() -> None:
    """Without a stable snapshot everything since the start is lost."""
    events = [declared(), ev.RolledBack(at=START - 0.5, target=None), started(0, at=START), alert()]
    events.append(ev.StopConfirmed(at=TRIP + 1, attempt=0, step=34))
    events += [ev.RolledBack(at=TRIP + 1.1, target=None), started(1, at=TRIP + 2)]
    cost = cost_of(tell(RUN, entries(events)))
    assert (cost.steps, cost.discarded_seconds, cost.gpu_hours) == (34, pytest.approx(40), None)


def test_alert_belongs_to_its_attempt_whenever_it_comes() -> None:
    """An alert that comes after the restart, or before the start is journaled, is evidence of its attempt."""
    late = alert("EntropyCollapse", at=TRIP + 5)
    early = alert("GradNormExplosion", attempt=1, at=TRIP + 1.5)
    events = [*recovered()[:9], early, *recovered()[9:], late]
    assert [told.alertname for told in tell(RUN, entries(events), 0).alerts] == ["KLSpike", "EntropyCollapse"]
    following = tell(RUN, entries(events), 1)
    assert [told.alertname for told in following.alerts] == ["GradNormExplosion"]
    assert following.by_alert


def test_alert_that_tripped_stands_first() -> None:
    """An alert that was held by a pause comes before; the one that tripped leads, and gives the moment."""
    pause = ev.Command(at=START + 1, verb="pause", who="ada", why="looking")
    go_on = ev.Command(at=START + 3, verb="resume", who="ada", why="done")
    held = alert("ValueLossExplosion", at=START + 2, starts_at="2026-11-30T11:40:48Z")
    events = recovered()
    story = tell(RUN, entries([*events[:3], pause, held, go_on, *events[3:]]))
    assert [told.alertname for told in story.alerts] == ["KLSpike", "ValueLossExplosion"]
    assert story.alert_at == TRIP


def test_trainer_that_ended_by_itself_tripped_when_it_ended() -> None:
    """The settle period is standstill: the cost counts from the exit, not from its explanation."""
    gone = ev.ProcessExited(at=TRIP, attempt=0, exit_code=1)
    why = ev.ExitClassified(at=TRIP + 6, attempt=0, failure_class="divergence", evidence=("value_loss was NaN",))
    confirmed = ev.StopConfirmed(at=TRIP + 1, attempt=0, gpu="none", step=34)
    rolled = ev.RolledBack(at=TRIP + 7, target=S20, step=20, attempt=0, quarantined=(S30,))
    restart = started(1, at=TRIP + 8, resume_from=S20, lr_scale=0.5)
    story = tell(RUN, entries([*until_trip()[:-1], gone, confirmed, why, rolled, restart]))
    assert (story.tripped_at, story.failure_class, story.alert_at) == (TRIP, "divergence", None)
    assert "value_loss was NaN" in story.cause
    assert cost_of(story).down_seconds == pytest.approx(8)
