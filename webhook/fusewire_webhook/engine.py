"""The engine: journals what happened, lets the breaker decide, carries out what is owed, journals the outcome.

Level-triggered: for each run one task does whatever its folded state owes until it owes nothing. An action is
begun only in a state that is on the disk, so a webhook that was killed at any instant finds the same action owed
and does it again. Runs share nothing but the journal: a slow stop of one never delays another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError
from fusewire.snapshots import SnapshotInfo, SnapshotStore
from fusewire_webhook import breaker
from fusewire_webhook.actions import Action, NoteWouldHave, PromoteSnapshot, WaitAndClassify, WaitBackoff, owed
from fusewire_webhook.actuators import Actuator
from fusewire_webhook.config import RunConfig
from fusewire_webhook.effects import Effects
from fusewire_webhook.errors import (
    ActuatorError,
    CommandError,
    JournalError,
    UnknownRunError,
)
from fusewire_webhook.events import (
    Command,
    Event,
    RunDeclared,
    SnapshotPromoted,
    SnapshotSeen,
    SnapshotsRemoved,
)
from fusewire_webhook.evidence_protocol import Evidence
from fusewire_webhook.journal import Journal
from fusewire_webhook.launching import ATTEMPTS
from fusewire_webhook.policy import Policy
from fusewire_webhook.ports import PortAllocator
from fusewire_webhook.state import RunState
from fusewire_webhook.subscription import Subscription
from fusewire_webhook.view import RunView, Target, view_of

log = logging.getLogger(__name__)

Listener = Callable[[str, int, Event, RunState], None]

RETRY_SECONDS = 1.0
"""Before an action is tried again whose outcome could not be journaled (disk full)."""
RETRY_MAX_SECONDS = 30.0
ENDPOINT_SECONDS = 0.5
"""How often the exporters' own words on where they listen are read."""
STORE_THREADS = 32
WAITS = (WaitAndClassify, WaitBackoff)
"""Actions that end at once when a person decides otherwise."""
BESIDE = (PromoteSnapshot, NoteWouldHave)
"""Actions that neither wait for the procedure nor delay it."""


class _Run:
    """What the engine holds of one run."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.state = RunState()
        self.seq = 0
        self.changed = asyncio.Event()
        self.waiters: set[asyncio.Event] = set()
        self.lanes: dict[str, asyncio.Task[None]] = {}
        self.watched_attempt = -1
        self.refused: dict[int, str] = {}


class Engine:
    """Guards the runs. See the module's docstring.

    Args:
        runs_dir: parent of the run directories.
        runs: what to guard; a run's directory is ``runs_dir / name``.
        journal: open for writing; stays the caller's to close.
        stores: makes the snapshot store of a run directory.
        listeners: called after each event that is durable and folded, with run, number, event and new state.
        clock: Unix seconds, for people only.
        sleep: as ``asyncio.sleep``; back-off and settle periods pass through it.
        checkpoint: called before and after each journal write and each action; a test that raises there finds
            the engine as a killed one.
    """

    def __init__(
        self,
        *,
        runs_dir: Path,
        runs: Mapping[str, RunConfig],
        journal: Journal,
        actuator: Actuator,
        evidence: Evidence,
        stores: Callable[[Path], SnapshotStore] = SnapshotStore,
        ports: PortAllocator | None = None,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        checkpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._runs_dir = runs_dir.absolute()
        self._configs = dict(runs)
        self._journal = journal
        self._actuator = actuator
        self._evidence = evidence
        self._stores = stores
        self._ports = PortAllocator() if ports is None else ports
        self._listeners = tuple(listeners)
        self._clock = clock
        self._sleep = sleep
        self._checkpoint = _pass if checkpoint is None else checkpoint
        self._executor = ThreadPoolExecutor(max_workers=STORE_THREADS, thread_name_prefix="fusewire-store")
        self._runs: dict[str, _Run] = {}
        self._subscriptions: set[Subscription] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False

    # Life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fold the journal, go on with what it owes, declare new runs and start them.

        Raises:
            JournalError: the journal cannot be read or written.
        """
        for name, config in self._configs.items():
            run_dir = self._runs_dir / name
            self._runs[name] = _Run(
                Effects(
                    name,
                    config,
                    run_dir,
                    store=self._stores(run_dir),
                    actuator=self._actuator,
                    evidence=self._evidence,
                    ports=self._ports,
                    executor=self._executor,
                    sleep=self._sleep,
                )
            )
        await self._blocking(self._replay)
        self._started = True
        await asyncio.gather(*(self._take_up(name, run) for name, run in self._runs.items()))
        self._spawn(self._follow_exporters(), "exporters")

    async def close(self, *, stop_runs: bool, who: str = "operator", why: str = "shutdown") -> None:
        """End the engine. With ``stop_runs`` every trainer is stopped first, and its run can be continued.

        Without it, trainers go on; the next engine takes them up where this one left them.
        """
        if stop_runs and self._started:
            command = Command(verb="shutdown", who=who, why=why, source="signal")
            active = [name for name, run in self._runs.items() if not run.state.finished]
            answers = await asyncio.gather(*(self.submit(name, command) for name in active), return_exceptions=True)
            for name, answer in zip(active, answers, strict=True):
                if isinstance(answer, BaseException):
                    log.error("run %s goes on: its shutdown could not be journaled: %s", name, answer)
                else:
                    await self.wait_finished(name)
        self._started = False
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in tuple(self._subscriptions):
            subscription.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # What others report and ask -----------------------------------------------------------------------

    async def submit(self, run: str, event: Event) -> int:
        """Journal an event and let the breaker decide; durable when it returns. The journal's number.

        Raises:
            UnknownRunError: no such run is guarded.
            JournalError: it is not stored; nothing is done about it.
        """
        return await self._append(self._run(run), event)

    async def promote(
        self,
        run: str,
        name: str,
        *,
        by: str,
        why: str = "",
        evidence: dict[str, Any],
        baselines: dict[str, Any],
        verified: bool = False,
    ) -> None:
        """Promote a snapshot: check its bytes (unless ``verified`` just now), promote it on disk, journal it.

        Raises:
            UnknownRunError: no such run is guarded.
            CommandError: it must not be promoted, in one sentence.
            FusewireError, OSError: the disk refused.
            JournalError: promoted on disk, but not journaled yet; the next start of the engine does.
        """
        guarded = self._run(run)
        effects = guarded.effects
        info: SnapshotInfo | None
        if verified:
            problems: tuple[str, ...] = ()
            info = await effects.blocking(effects.store.get, name)
        else:
            problems, info = await effects.examine(name)
        if info is None or problems:
            raise CommandError(f"{name} cannot be promoted: {'; '.join(problems)}")
        refused = _not_promotable(guarded.state, info)
        if refused is not None:
            raise CommandError(f"{name} cannot be promoted: {refused}")
        told = {**evidence, "why": why} if why else evidence
        await effects.promote(name, by=by, evidence=told, baselines=baselines)
        await self._append(
            guarded, SnapshotPromoted(name=name, step=info.step, attempt=info.attempt, by=by, evidence=told)
        )

    async def command(self, run: str, command: Command) -> RunView:
        """Journal a person's decision; it wins over what is in flight.

        A snapshot may be named by its step; the newest usable one of that step is meant.

        Raises:
            UnknownRunError: no such run is guarded.
            CommandError: it makes no sense now, in one sentence.
            JournalError: it is not stored; nothing is done about it.
        """
        guarded = self._run(run)
        if command.snapshot is not None:
            command = dataclasses.replace(command, snapshot=await self._resolve(guarded, command.snapshot))
        refused = breaker.refusal(guarded.state, command)
        if refused is None:
            seq = await self._append(guarded, command)
            refused = guarded.refused.pop(seq, None)
        if refused is not None:
            raise CommandError(f"{command.verb} {run}: {refused}")
        return self.view(run)

    def view(self, run: str) -> RunView:
        """The run's present picture.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        guarded = self._run(run)
        return view_of(run, guarded.seq, guarded.state, algorithm=guarded.effects.config.algorithm)

    def views(self) -> list[RunView]:
        """Every guarded run."""
        return [self.view(name) for name in self._runs]

    def state(self, run: str) -> RunState:
        """The folded state.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        return self._run(run).state

    def targets(self) -> list[Target]:
        """The exporters to scrape: listed before an attempt starts and until its end is confirmed."""
        targets: list[Target] = []
        for name, run in self._runs.items():
            endpoint, state = run.effects.endpoint, run.state
            if endpoint is None or endpoint[0] != state.attempt or not (state.live or state.stage == "start"):
                continue
            attempt, host, port = endpoint
            config = run.effects.config
            targets.append(
                Target(
                    run=name,
                    attempt=attempt,
                    algorithm=config.algorithm,
                    host=host,
                    port=port,
                    window_seconds=config.window_seconds,
                )
            )
        return targets

    def subscribe(self) -> Subscription:
        """Everything that is journaled from now on: an async iterator of ``(run, number, event)``; close it."""
        subscription = Subscription(on_close=self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    async def wait_finished(self, run: str) -> RunView:
        """Return once the run is locked, completed or shut down.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        guarded = self._run(run)
        changed = asyncio.Event()
        guarded.waiters.add(changed)
        try:
            while not guarded.state.finished:
                changed.clear()
                await changed.wait()
        finally:
            guarded.waiters.discard(changed)
        return self.view(run)

    # Taking up ----------------------------------------------------------------------------------------

    def _replay(self) -> None:
        """Fold the whole journal. Blocks on the disk."""
        for entry in self._journal.read():
            run = self._runs.get(entry.run)
            if run is not None:
                run.state, run.seq = self._next(entry.run, run.state, entry.event), entry.seq

    async def _take_up(self, name: str, run: _Run) -> None:
        policy = Policy.of(run.effects.config)
        if run.state.declared:
            await self._reconcile_disk(run)
        if not run.state.declared:
            await run.effects.blocking(run.effects.run_dir.mkdir, parents=True, exist_ok=True)
            first = await run.effects.blocking(_first_free_attempt, run.effects.run_dir)
            await self._append(run, RunDeclared(policy=policy.to_json(), first_attempt=first))
        elif run.state.shut_down or run.state.policy != policy:
            await self._append(run, RunDeclared(policy=policy.to_json()))
        if run.state.live or run.state.stage == "start":
            endpoint = await run.effects.blocking(run.effects.endpoint_on_disk, run.state.attempt)
            if endpoint is not None:
                run.effects.listen_at(endpoint)
        self._look_after(name, run)

    async def _reconcile_disk(self, run: _Run) -> None:
        """Journal what happened to promoted snapshots on disk just before the engine was killed."""
        on_disk = {info.name: info for info in await run.effects.blocking(run.effects.store.promoted)}
        known = {snapshot.name for snapshot in run.state.promoted}
        for name, info in on_disk.items():
            if name not in known and _not_promotable(run.state, info) is None:
                await self._append(
                    run, SnapshotPromoted(name=name, step=info.step, attempt=info.attempt, by=info.why or "gate")
                )
        gone = tuple(sorted(known - on_disk.keys()))
        if gone and run.state.stage not in {"rollback", "resume"}:
            await self._append(run, SnapshotsRemoved(names=gone))

    # Journal and fold ---------------------------------------------------------------------------------

    async def _append(self, run: _Run, event: Event) -> int:
        """Journal and fold. The fold happens when the event is durable, even if the caller is cancelled."""
        if event.at == 0.0:
            event = dataclasses.replace(event, at=self._clock())
        name = run.effects.run
        self._checkpoint(f"journal:before:{event.kind}")
        future = self._journal.put(name, event)
        future.add_done_callback(lambda done: self._durable(name, run, event, done))
        seq = await asyncio.shield(future)
        self._checkpoint(f"journal:after:{event.kind}")
        return seq

    def _durable(self, name: str, run: _Run, event: Event, done: asyncio.Future[int]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        seq = done.result()
        if isinstance(event, Command) and (refused := breaker.refusal(run.state, event)) is not None:
            run.refused[seq] = refused
        before = run.state
        run.state, run.seq = self._next(name, before, event), seq
        for listener in self._listeners:
            try:
                listener(name, seq, event, run.state)
            except Exception:
                log.exception("a listener failed on %s of run %s", event.kind, name)
        for subscription in tuple(self._subscriptions):
            subscription.put((name, seq, event))
        if run.state is not before:
            run.changed.set()
            for waiter in run.waiters:
                waiter.set()
        if self._started:
            self._look_after(name, run)
            if isinstance(event, (SnapshotSeen, SnapshotPromoted)):
                self._lane(run, "retention", self._retain)

    def _next(self, name: str, state: RunState, event: Event) -> RunState:
        try:
            return breaker.step(state, event)
        except Exception:
            log.critical(
                "run %s: %s is a fault of fusewire; the event is recorded only", name, event.kind, exc_info=True
            )
            return state

    # Doing --------------------------------------------------------------------------------------------

    def _look_after(self, name: str, run: _Run) -> None:
        """Make sure that somebody works on what is owed, and watches the living process."""
        due = owed(run.state)
        if any(isinstance(action, BESIDE) for action in due):
            self._lane(run, "beside", self._work_beside)
        if any(not isinstance(action, BESIDE) for action in due):
            self._lane(run, "procedure", self._work)
        state = run.state
        if state.live and state.handle is not None and run.watched_attempt != state.attempt:
            run.watched_attempt = state.attempt
            self._spawn(self._watch(run, state.attempt, state.handle), f"{name}-watch-{state.attempt}")

    def _lane(self, run: _Run, lane: str, work: Callable[[_Run], Any]) -> None:
        present = run.lanes.get(lane)
        if present is None or present.done():
            run.lanes[lane] = self._spawn(work(run), f"{run.effects.run}-{lane}")

    async def _work(self, run: _Run) -> None:
        await self._until_nothing(run, lambda action: not isinstance(action, BESIDE))

    async def _work_beside(self, run: _Run) -> None:
        await self._until_nothing(run, lambda action: isinstance(action, BESIDE))

    async def _until_nothing(self, run: _Run, mine: Callable[[Action], bool]) -> None:
        delay = RETRY_SECONDS
        while (action := next(filter(mine, owed(run.state)), None)) is not None:
            try:
                outcome = await self._carry_out(run, action)
                if outcome is not None:
                    await self._append(run, outcome)
            except JournalError as error:
                log.error(
                    "run %s: the outcome of %s is not journaled, it is repeated: %s", run.effects.run, action, error
                )
            except Exception:
                log.exception("run %s: %s failed, it is repeated", run.effects.run, action)
            else:
                delay = RETRY_SECONDS
                continue
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_MAX_SECONDS)

    async def _carry_out(self, run: _Run, action: Action) -> Event | None:
        """The outcome; None: it was a wait, and nobody waits for it any more."""
        kind = type(action).__name__
        self._checkpoint(f"act:before:{kind}")
        performing = run.effects.perform(action, run.state, seq=run.seq)
        outcome = await (self._while_owed(run, action, performing) if isinstance(action, WAITS) else performing)
        if outcome is not None:
            self._checkpoint(f"act:after:{kind}")
        return outcome

    async def _while_owed(self, run: _Run, action: Action, performing: Coroutine[Any, Any, Event]) -> Event | None:
        task = asyncio.ensure_future(performing)
        try:
            while not task.done():
                run.changed.clear()
                changed = asyncio.ensure_future(run.changed.wait())
                try:
                    await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if not task.done() and action not in owed(run.state):
                    return None
            return task.result()
        finally:
            task.cancel()

    async def _watch(self, run: _Run, attempt: int, handle: dict[str, Any]) -> None:
        """Journal the end of a process that nobody here asked for."""
        delay = RETRY_SECONDS
        while run.state.attempt == attempt and run.state.live:
            try:
                exited = await run.effects.watch(attempt, handle)
                if run.state.attempt == attempt and run.state.live and run.state.stage != "stop":
                    await self._append(run, exited)
                return
            except (ActuatorError, JournalError, OSError) as error:
                log.error("run %s: attempt %d cannot be watched now: %s", run.effects.run, attempt, error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_MAX_SECONDS)

    async def _retain(self, run: _Run) -> None:
        try:
            removed = await run.effects.retain(run.state.attempt if run.state.live else None)
            if removed:
                await self._append(run, SnapshotsRemoved(names=removed))
        except (FusewireError, JournalError, OSError) as error:
            log.error("run %s: old snapshots could not be removed: %s", run.effects.run, error)

    async def _follow_exporters(self) -> None:
        """An exporter whose assigned port was busy listens elsewhere, and says so in its file."""
        while True:
            await asyncio.sleep(ENDPOINT_SECONDS)
            live = [run for run in self._runs.values() if run.state.live]
            looks = [(run.effects, run.state.attempt) for run in live]
            found = await self._blocking(lambda: [effects.exporter_news(attempt) for effects, attempt in looks])  # noqa: B023 - awaited at once
            for run, endpoint in zip(live, found, strict=True):
                if endpoint is not None and run.state.live and endpoint[0] == run.state.attempt:
                    run.effects.listen_at(endpoint)

    async def _resolve(self, run: _Run, snapshot: str) -> str:
        """The name of a usable snapshot that a person named by name or step."""
        try:
            infos = [i for i in await run.effects.blocking(run.effects.store.list) if i.state != "quarantined"]
        except (FusewireError, OSError) as error:
            raise CommandError(f"the snapshots of {run.effects.run} cannot be read: {error}") from error
        named = [i for i in infos if i.name == snapshot or (snapshot.isdecimal() and i.step == int(snapshot))]
        if not named:
            steps = ", ".join(str(info.step) for info in infos) or "none"
            raise CommandError(f"{run.effects.run} has no usable snapshot {snapshot}; steps that it has: {steps}")
        return named[-1].name

    # Helpers ------------------------------------------------------------------------------------------

    def _run(self, name: str) -> _Run:
        try:
            return self._runs[name]
        except KeyError:
            raise UnknownRunError(f"no run {name!r} is guarded here") from None

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("task %s of the engine has died", task.get_name(), exc_info=error)

    async def _blocking(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)


def _not_promotable(state: RunState, info: SnapshotInfo) -> str | None:
    """Why a snapshot must not become stable in this state; None: it may."""
    if state.phase in {"open", "locked"}:
        return f"the run is {state.phase}"
    if info.attempt == state.attempt and state.tripped:
        return f"its attempt has tripped ({state.decision})"
    if info.attempt < state.attempt and info.step > state.resumed_step:
        return f"attempt {state.attempt} went on from step {state.resumed_step}"
    return None


def _first_free_attempt(run_dir: Path) -> int:
    try:
        numbers = [int(path.name) for path in (run_dir / ATTEMPTS).iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        numbers = []
    return max(numbers, default=-1) + 1


def _pass(label: str) -> None:
    """The checkpoint of everyday life."""
