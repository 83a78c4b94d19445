"""One guarded run: carries out what its folded state owes, and journals the outcome.

Level-triggered: a task does whatever the folded state owes until it owes nothing. An action is begun only in a
state that is on the disk, so a webhook that was killed at any instant finds the same action owed and does it again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fusewire.errors import FusewireError
from fusewire.snapshots import SnapshotInfo
from fusewire_webhook.actuators import Handle
from fusewire_webhook.breaker import transition as breaker
from fusewire_webhook.breaker.actions import (
    Action,
    NoteWouldHave,
    PromoteSnapshot,
    owed,
)
from fusewire_webhook.breaker.events import (
    Command,
    Event,
    RunDeclared,
    SnapshotPromoted,
    SnapshotSeen,
    SnapshotsRemoved,
)
from fusewire_webhook.breaker.policy import Policy
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import Target
from fusewire_webhook.breaker.words import to_quarantine
from fusewire_webhook.engine.effects import Effects
from fusewire_webhook.engine.folded_run import FoldedRun, Listener
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.engine.order import Order
from fusewire_webhook.errors import ActuatorError, CommandError, JournalError, UnconfirmedError

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Before an action is tried again whose outcome could not be journaled (disk full); doubles up to the maximum."""
RETRY_MAX_SECONDS = 30.0
BESIDE = (PromoteSnapshot, NoteWouldHave)
"""Actions that neither wait for the procedure nor delay it."""

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class GuardedRun:
    """See the module's docstring.

    Args:
        spawn: starts a task of the engine, with a name.
        announce, clock, monotonic, checkpoint: see :class:`~fusewire_webhook.engine.folded_run.FoldedRun`.
    """

    def __init__(
        self,
        effects: Effects,
        *,
        journal: Journal,
        spawn: Spawn,
        announce: Listener,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        checkpoint: Callable[[str], None],
    ) -> None:
        self.effects = effects
        self.name = effects.run
        self.folded = FoldedRun(
            effects.run,
            journal,
            announce=announce,
            then=self._then,
            clock=clock,
            monotonic=monotonic,
            checkpoint=checkpoint,
        )
        self.at_work = False
        """Nothing is begun before every run is taken up, nor while the engine closes."""
        self._spawn = spawn
        self._checkpoint = checkpoint
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._watched_attempt = -1
        self._promoting = asyncio.Lock()

    @property
    def state(self) -> RunState:
        """The folded state."""
        return self.folded.state

    def watch(self) -> dict[str, Any] | None:
        """Whether the rules see the present attempt, as its view says it."""
        return self.folded.watch(self.effects.processes.endpoint.attached(self.state.attempt))

    def _then(self, event: Event) -> None:
        if self.at_work:
            self.look_after()
            if isinstance(event, (SnapshotSeen, SnapshotPromoted)):
                self.tend()

    # Taking up ----------------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Declare the run, or bring its journal up to what its disk and its configuration say.

        Raises:
            JournalError: the journal cannot be written.
            OSError: the folder of a new run cannot be made.
        """
        effects, policy = self.effects, Policy.of(self.effects.config)
        if not self.state.declared:
            first = await effects.blocking(effects.processes.first_free_attempt)
            await self.folded.append(RunDeclared(policy=policy.to_json(), first_attempt=first))
        else:
            try:
                await self._reconcile_disk()
            except (FusewireError, OSError) as error:
                log.error("run %s: its snapshots cannot be compared with the journal now: %s", self.name, error)
            if self.state.suspended is not None or self.state.policy != policy:
                await self.folded.append(RunDeclared(policy=policy.to_json()))
        if self.state.live or self.state.stage == "start":
            endpoint = await effects.blocking(effects.processes.endpoint.on_disk, self.state.attempt)
            if endpoint is not None:
                effects.processes.endpoint.listen_at(endpoint)

    def begin(self) -> None:
        """Go on with what the journal owes."""
        self.at_work = True
        self.look_after()

    async def _reconcile_disk(self) -> None:
        """Finish what was left half done on snapshots: renew the link, journal what happened on disk."""
        blocking, store = self.effects.blocking, self.effects.snapshots.store
        await blocking(store.publish_stable)
        on_disk = {info.name: info for info in await blocking(store.promoted)}
        known = {snapshot.name for snapshot in self.state.promoted}
        for name, info in on_disk.items():
            if name not in known and self.not_promotable(info) is None:
                by = info.why.removeprefix("by ")
                await self.folded.append(
                    SnapshotPromoted(name=name, step=info.step, attempt=info.attempt, by=by, sequence=info.sequence)
                )
        there = {info.name for info in await blocking(store.list)}
        deleted = {one.name for one in self.state.unpromoted} - there
        gone = tuple(sorted((known - on_disk.keys()) | deleted))
        if gone and self.state.stage not in {"rollback", "resume"}:
            await self.folded.append(SnapshotsRemoved(names=gone))

    def target(self) -> Target | None:
        """The exporter to scrape: from before an attempt starts until its end is confirmed."""
        endpoint, state, config = self.effects.processes.endpoint.reached, self.state, self.effects.config
        if endpoint is None or endpoint[0] != state.attempt or not (state.live or state.stage == "start"):
            return None
        attempt, host, port = endpoint
        return Target(
            run=self.name,
            attempt=attempt,
            algorithm=config.algorithm,
            host=host,
            port=port,
            window_seconds=config.window_seconds,
        )

    # Doing --------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Make sure that somebody works on what is owed, and watches the living process."""
        due = owed(self.state)
        if any(isinstance(action, BESIDE) for action in due):
            self._lane("beside", lambda: self._until_nothing(lambda action: isinstance(action, BESIDE)))
        if any(not isinstance(action, BESIDE) for action in due):
            self._lane("procedure", lambda: self._until_nothing(lambda action: not isinstance(action, BESIDE)))
        state = self.state
        if state.live and state.handle is not None and self._watched_attempt != state.attempt:
            self._watched_attempt = state.attempt
            self._spawn(self._watch(state.attempt, state.handle), f"{self.name}-watch-{state.attempt}")

    def _lane(self, lane: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        present = self._lanes.get(lane)
        if present is None or present.done():
            self._lanes[lane] = self._spawn(work(), f"{self.name}-{lane}")

    async def _until_nothing(self, mine: Callable[[Action], bool]) -> None:
        delay = RETRY_SECONDS
        while (action := next(filter(mine, owed(self.state)), None)) is not None:
            try:
                outcome = await self._carry_out(action)
                if outcome is not None:
                    await self.folded.append(outcome)
            except JournalError as error:
                log.error(
                    "run %s: the outcome of %s is not journaled, it is repeated: %s", self.name, action, error
                )
            except Exception:
                log.exception("run %s: %s failed, it is repeated", self.name, action)
            else:
                delay = RETRY_SECONDS
                continue
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_MAX_SECONDS)

    async def _carry_out(self, action: Action) -> Event | None:
        """The outcome; None: there is none, so look again at what is owed."""
        kind = type(action).__name__
        self._checkpoint(f"act:before:{kind}")
        order = Order(stands=lambda: action in owed(self.state), changed=self.folded.changed)
        outcome = await self.effects.perform(action, self.state, seq=self.folded.seq, order=order)
        if outcome is not None:
            self._checkpoint(f"act:after:{kind}")
        return outcome

    async def _watch(self, attempt: int, handle: Handle) -> None:
        """Journal the end of a process that nobody here asked for."""
        delay = RETRY_SECONDS
        while self.state.attempt == attempt and self.state.live:
            try:
                exited = await self.effects.processes.watch(attempt, handle)
                if self.state.attempt == attempt and self.state.live and self.state.stage != "stop":
                    await self.folded.append(exited)
                return
            except (ActuatorError, JournalError, OSError) as error:
                log.error("run %s: attempt %d cannot be watched now: %s", self.name, attempt, error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_MAX_SECONDS)

    def tend(self) -> None:
        """See to the snapshots on disk, in the background."""
        if self.at_work:
            self._lane("snapshots", self._tend)

    async def _tend(self) -> None:
        try:
            async with self._promoting:
                await self._reconcile_disk()
            removed = await self.effects.snapshots.retain(self.state.attempt)
            if removed:
                await self.folded.append(SnapshotsRemoved(names=removed))
        except (FusewireError, JournalError, OSError) as error:
            log.error("run %s: its snapshots could not be tidied up: %s", self.name, error)

    # People and the gate ------------------------------------------------------------------------------

    async def command(self, command: Command, *, confirmed: bool) -> None:
        """Journal a person's decision; it wins over what is in flight.

        Raises:
            UnconfirmedError: it passes over newer stable snapshots, and is not ``confirmed``.
            CommandError: it makes no sense now, in one sentence.
            JournalError: it is not stored.
        """
        if command.snapshot is not None:
            command = dataclasses.replace(command, snapshot=await self._resolve(command.snapshot, command.verb))
        refused = breaker.refusal(self.state, command)
        if refused is None:
            if command.snapshot is not None and command.verb in {"rollback", "reset"}:
                refused = await self._go_back(command, command.snapshot, confirmed=confirmed)
            else:
                if command.scratch and not confirmed:
                    await self._ask_first(command, None)
                refused = await self.folded.decide(command)
        if refused is not None:
            raise CommandError(f"{command.verb} {self.name}: {refused}")

    async def _go_back(self, command: Command, target: str, *, confirmed: bool) -> str | None:
        if (damage := await self.effects.snapshots.damage(target)) is not None:
            return damage
        async with self.effects.snapshots.changing:
            await self._resolve(target, command.verb)  # a rollback that was under way may have put it away
            if not confirmed:
                await self._ask_first(command, target)
            return await self.folded.decide(command)

    async def _ask_first(self, command: Command, target: str | None) -> None:
        """Return where going back to the target leaves every stable snapshot in place."""
        try:
            newer = await self.effects.blocking(self.effects.snapshots.store.after, target)
        except (FusewireError, OSError) as error:
            raise CommandError(f"{self.name}: {error}") from error
        stable = sum(info.state == "promoted" for info in newer)
        if stable:
            raise UnconfirmedError(
                f"{command.verb} {self.name}: going back to {target or 'the start'} moves "
                f'{to_quarantine(len(newer), stable)}: send "confirm": true if that is meant'
            )

    async def promote(
        self, name: str, *, by: str, evidence: dict[str, Any], baselines: dict[str, Any], verified: bool
    ) -> None:
        """Check, promote on disk, journal.

        Raises:
            CommandError: it must not be promoted, in one sentence.
            FusewireError, OSError: the disk refused.
            JournalError: promoted on disk, but not journaled yet; the next start of the engine does.
        """
        snapshots = self.effects.snapshots
        problems, info = await snapshots.examine(name, verify=not verified)
        refused = "; ".join(problems) or (self.not_promotable(info) if info is not None else None)
        if any(known.name == name and known.rejected for known in self.state.unpromoted):
            refused = "the gate has rejected it"
        if info is None or refused:
            raise CommandError(f"{name} cannot be promoted: {refused}")
        async with self._promoting:
            await self.folded.append(await snapshots.promote(name, by=by, evidence=evidence, baselines=baselines))

    def not_promotable(self, info: SnapshotInfo) -> str | None:
        """Why a snapshot must not become stable now; None: it may."""
        state = self.state
        if state.phase in {"open", "locked"}:
            return f"the run is {state.phase}"
        if state.stage in {"rollback", "resume"}:
            return "the run is going back to a snapshot"
        if info.attempt == state.attempt and state.tripped:
            return f"its attempt has tripped ({state.decision})"
        if info.attempt < state.attempt and info.step > state.resumed_step:
            return f"attempt {state.attempt} went on from step {state.resumed_step}"
        return None

    async def _resolve(self, snapshot: str, verb: str) -> str:
        back = verb in {"rollback", "reset"}
        try:
            return (await self.effects.blocking(self.effects.snapshots.store.find, snapshot, restorable=back)).name
        except (FusewireError, OSError) as error:
            raise CommandError(f"{self.name}: {error}") from error
