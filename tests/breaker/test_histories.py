"""Thousands of random histories of one run: whatever happens in whatever order, what must hold holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fusewire_webhook.breaker.actions import owed
from fusewire_webhook.breaker.events import Event, MonitoringChanged, SnapshotsRemoved, StepsWatched
from fusewire_webhook.breaker.policy import Policy

from .doubles import trip
from .world import World

POLICIES = st.builds(
    Policy,
    mode=st.sampled_from(["act", "act", "act", "observe"]),
    without_stable=st.sampled_from(["scratch", "lock"]),
    purge=st.booleans(),
    new_seed=st.booleans(),
    watch_steps=st.sampled_from([10, 100]),
    probation_steps=st.sampled_from([50, 2000]),
    divergences_per_incident=st.integers(1, 4),
    divergences_per_run=st.integers(1, 6),
    infrastructure_failures=st.integers(1, 4),
    success_exit_codes=st.sampled_from([(), (3,)]),
    fatal_exit_codes=st.sampled_from([(), (2,)]),
)


class Histories(RuleBasedStateMachine):
    """Alerts, exits, people, failing actions and killed webhooks, in any order."""

    @initialize(policy=POLICIES)
    def declare(self, policy: Policy) -> None:
        self.world = World(policy=policy)
        self.late: list[Event] = []

    @rule(data=st.data())
    def alert(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from([None, *range(self.world.state.attempt + 2)]))
        self.world.submit(
            trip(
                attempt,
                status=data.draw(st.sampled_from(["firing", "firing", "resolved"])),
                failure_class=data.draw(st.sampled_from(["divergence", "infrastructure", ""])),
                action=data.draw(st.sampled_from(["trip", "trip", "notify"])),
                step=data.draw(st.sampled_from([None, self.world.step])),
                name=data.draw(st.sampled_from(["KLSpike", "KLSpike", "EntropyCollapse"])),
                starts_at=data.draw(st.sampled_from(["", *(f"1970-01-01T00:00:0{n}Z" for n in range(1, 9))])),
            )
        )

    @precondition(lambda self: self.world.alive)
    @rule(steps=st.integers(0, 400), watched=st.booleans())
    def train(self, steps: int, watched: bool) -> None:
        self.world.train(self.world.step + steps)
        if watched:
            attempt = self.world.state.attempt
            self.world.submit(StepsWatched(attempt=attempt, step=self.world.step, watched=steps))

    @precondition(lambda self: self.world.alive and self.world.state.stage is None)
    @rule(promoted=st.booleans())
    def snapshot(self, promoted: bool) -> None:
        self.world.snapshot(promoted=promoted)

    @precondition(lambda self: self.world.alive and self.world.state.live)
    @rule(code=st.sampled_from([0, 1, 2, 3, 137, 143, None]), completed=st.booleans(), attached=st.booleans())
    def exit(self, code: int | None, completed: bool, attached: bool) -> None:
        self.world.die(code, completed=completed, attached=attached)

    @rule(data=st.data(), fails=st.booleans(), divergence=st.booleans(), killed=st.booleans())
    def act(self, data: st.DataObject, fails: bool, divergence: bool, killed: bool) -> None:
        due = owed(self.world.state)
        if not due:
            return
        outcome = self.world.perform(data.draw(st.sampled_from(due)), fails=fails, divergence=divergence)
        if killed:
            self.world.restart_webhook()  # done, but not journaled: it is owed again
        else:
            self.world.submit(outcome)
            self.late.append(outcome)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_outcome(self, data: st.DataObject) -> None:
        """An outcome that was journaled before comes once more, such as a timer's."""
        event = data.draw(st.sampled_from(self.late))
        if event.kind in {"timer_elapsed", "exit_classified", "would_have_acted", "snapshot_promoted"}:
            self.world.submit(event)

    @rule(data=st.data())
    def person(self, data: st.DataObject) -> None:
        verb: Any = data.draw(
            st.sampled_from(["trip", "pause", "resume", "reset", "reopen", "promote", "rollback", "shutdown"])
        )
        more: dict[str, Any] = {}
        if verb in {"promote", "rollback", "reset"} and self.world.disk:
            there = [*self.world.disk, *(self.world.aside if verb == "rollback" else ())]
            more["snapshot"] = data.draw(st.sampled_from([None, *(s.name for s in there)]))
        if verb in {"rollback", "reset"} and more.get("snapshot") is None:
            more["scratch"] = data.draw(st.booleans())
        if verb in {"pause", "resume"}:
            more["source"] = data.draw(st.sampled_from(["cli", "silence"]))
        if verb == "resume":
            more |= {"dismiss": data.draw(st.booleans()), "at": data.draw(st.sampled_from([2.0, 5.0]))}
        self.world.command(verb, **more)

    @rule()
    def webhook_is_killed(self) -> None:
        self.world.restart_webhook()

    @precondition(lambda self: self.world.state.shut_down)
    @rule()
    def webhook_starts_again(self) -> None:
        self.world.declare(self.world.policy)

    @rule(policy=POLICIES)
    def configuration_changes(self, policy: Policy) -> None:
        self.world.declare(policy)

    @precondition(lambda self: self.world.disk and self.world.state.stage is None)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        self.world.damaged.add(data.draw(st.sampled_from(self.world.disk)).name)

    @precondition(lambda self: self.world.disk)
    @rule(data=st.data())
    def file_server(self, data: st.DataObject) -> None:
        """Some snapshots cannot be read from now on, all others can."""
        names = [snapshot.name for snapshot in self.world.disk]
        self.world.unreadable = data.draw(st.sets(st.sampled_from(names)))

    @precondition(lambda self: len(self.world.state.promoted) > 1 and self.world.state.stage is None)
    @rule()
    def retention(self) -> None:
        gone = self.world.state.promoted[0]
        self.world.disk = [s for s in self.world.disk if s.name != gone.name]
        self.world.submit(SnapshotsRemoved(names=(gone.name,)))

    @rule(degraded=st.booleans())
    def monitoring(self, degraded: bool) -> None:
        before = self.world.state
        self.world.submit(MonitoringChanged(degraded=degraded))
        assert self.world.state is before, "a fault of the watch touches no run"

    @invariant()
    def at_most_one_trainer_lives(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.alive) <= 1

    def teardown(self) -> None:
        """Left alone, every history comes to rest."""
        if hasattr(self, "world"):
            actions = 0
            while due := owed(self.world.state):
                actions += 1
                assert actions < 100, "it never comes to rest"
                self.world.submit(self.world.perform(due[0]))
            self.world.restart_webhook()


Histories.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = pytest.mark.timeout(600)(Histories.TestCase)
