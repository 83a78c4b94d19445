"""The engine: guards all runs. It and what it holds are the only parts with effects.

It folds the journal, hands every event to its run, and tells others what happened. Runs share nothing but the
journal and the threads that touch the disk: a slow stop of one never delays another (``guarded_run.py`` has what
is done for each).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fusewire.snapshots import SnapshotStore
from fusewire_webhook.actuators import Actuator
from fusewire_webhook.breaker.events import Command, Event, StepsWatched
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import RunView, Target, view_of
from fusewire_webhook.engine.blocking import Blocking
from fusewire_webhook.engine.effects import Effects
from fusewire_webhook.engine.endpoint import Endpoint
from fusewire_webhook.engine.evidence_protocol import Evidence
from fusewire_webhook.engine.folded_run import Listener
from fusewire_webhook.engine.guarded_run import GuardedRun
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.engine.ports import PortAllocator
from fusewire_webhook.engine.subscription import Subscription
from fusewire_webhook.errors import UnknownRunError
from fusewire_webhook.settings.config import RunConfig

log = logging.getLogger(__name__)

ENDPOINT_SECONDS = 0.5
"""How often the exporters' own words on where they listen are read."""
TEND_SECONDS = 60.0
"""How often the snapshots of each run are seen to when nothing happens: what grew old, what was left half done."""
STORE_THREADS = 32


class Engine:
    """Guards the runs.

    Args:
        runs_dir: parent of the run directories.
        runs: what to guard; a run's directory is ``runs_dir / name``.
        journal: open for writing; stays the caller's to close.
        stores: makes the snapshot store of a run directory.
        listeners: called after each event that is durable and folded, with run, number, event and new state.
        clock: Unix seconds, for people only.
        monotonic: seconds; how often watched steps are journaled goes by it.
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
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        checkpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._journal = journal
        self._listeners = tuple(listeners)
        self._blocking = Blocking(ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="fusewire-store"))
        self._subscriptions: set[Subscription] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        ports = PortAllocator() if ports is None else ports
        self._runs = {
            name: GuardedRun(
                Effects(
                    name,
                    config,
                    runs_dir.absolute() / name,
                    store=stores(runs_dir.absolute() / name),
                    actuator=actuator,
                    evidence=evidence,
                    ports=ports,
                    blocking=self._blocking,
                    sleep=sleep,
                ),
                journal=journal,
                spawn=self._spawn,
                announce=self._announce,
                clock=clock,
                monotonic=monotonic,
                checkpoint=_pass if checkpoint is None else checkpoint,
            )
            for name, config in runs.items()
        }

    # Life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fold the journal, go on with what it owes, declare new runs and start them.

        Raises:
            JournalError, OSError: see :meth:`take_up`.
        """
        await self.take_up()
        self.begin()

    async def take_up(self) -> None:
        """Fold the journal and declare new runs. Nothing is begun yet: where it fails, all is as it was.

        Raises:
            JournalError: the journal cannot be read or written.
            OSError: a new run's folder cannot be made.
        """
        await self._blocking(self._replay)
        outcomes = await asyncio.gather(*(run.take_up() for run in self._runs.values()), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def begin(self) -> None:
        """Go on with what the journal owes, and start new runs: all of them are taken up. Cannot fail half way."""
        for run in self._runs.values():
            run.begin()
        self._spawn(self._follow_exporters(), "exporters")
        self._spawn(self._tend(), "snapshots")

    async def close(self, *, stop_runs: bool, who: str = "operator", why: str = "shutdown") -> None:
        """End the engine. With ``stop_runs`` every trainer is stopped first, and its run can be continued.

        Without it, trainers go on; the next engine takes them up where this one left them.
        """
        if stop_runs:
            await self._shut_down(Command(verb="shutdown", who=who, why=why, source="signal"))
        for run in self._runs.values():
            run.at_work = False
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in tuple(self._subscriptions):
            subscription.close()
        self._blocking.close()

    async def _shut_down(self, command: Command) -> None:
        for run in self._runs.values():
            run.folded.closing = True  # a decision would start a run again that this waits for
        active = [run for run in self._runs.values() if run.at_work and not run.state.finished]
        answers = await asyncio.gather(*(run.folded.append(command) for run in active), return_exceptions=True)
        for run, answer in zip(active, answers, strict=True):
            if isinstance(answer, BaseException):
                log.error("run %s goes on: its shutdown could not be journaled: %s", run.name, answer)
            else:
                await run.folded.finished()

    def _replay(self) -> None:
        """Fold the whole journal. Blocks on the disk."""
        for entry in self._journal.read():
            run = self._runs.get(entry.run)
            if run is not None:
                run.folded.fold(entry.seq, entry.event)

    # What others report and ask -----------------------------------------------------------------------

    async def submit(self, run: str, event: Event) -> int:
        """Journal an event and let the breaker decide; durable when it returns. The journal's number.

        Raises:
            UnknownRunError: no such run is guarded.
            JournalError: it is not stored; nothing is done about it.
        """
        return await self._run(run).folded.append(event)

    def saw(self, run: str, look: StepsWatched) -> bool:
        """Keep what one look of the watch saw: how far the attempt is, and the steps watched since the last look.

        It is shown at once, and journaled with the next event that rests on it. True: ``journal_steps`` is due.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        return self._run(run).folded.saw(look)

    def looked(self, run: str, attempt: int, updates: float | None, *, scrape_interval: float) -> None:
        """The watch looked for an attempt: the updates that it has reported; None: it was not scraped lately.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        self._run(run).folded.looked(attempt, updates, scrape_interval=scrape_interval)

    async def journal_steps(self, run: str) -> None:
        """Journal the watched steps that are only kept in memory.

        Raises:
            UnknownRunError: no such run is guarded.
            JournalError: they are not stored, and kept.
        """
        await self._run(run).folded.journal_steps()

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
        told = {**evidence, "why": why} if why else evidence
        await self._run(run).promote(name, by=by, evidence=told, baselines=baselines, verified=verified)

    async def command(self, run: str, command: Command, *, confirmed: bool = True) -> RunView:
        """Journal a person's decision; it wins over what is in flight.

        A snapshot may be named by its step (see ``SnapshotStore.find``).

        Args:
            confirmed: the person knows which stable snapshots it passes over.

        Raises:
            UnknownRunError: no such run is guarded.
            UnconfirmedError: it passes over newer stable snapshots, and is not ``confirmed``.
            CommandError: it makes no sense now, in one sentence.
            JournalError: it is not stored; nothing is done about it.
        """
        await self._run(run).command(command, confirmed=confirmed)
        return self.view(run)

    def view(self, run: str) -> RunView:
        """The run's present picture.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        guarded = self._run(run)
        folded = guarded.folded
        return view_of(
            run,
            folded.seq,
            guarded.state,
            algorithm=guarded.effects.config.algorithm,
            step=folded.step,
            watch=guarded.watch(),
        )

    def views(self) -> list[RunView]:
        """Every guarded run."""
        return [self.view(name) for name in self._runs]

    def steps(self) -> dict[str, int]:
        """The furthest step that is known of each run's present attempt: what its view says."""
        return {name: run.folded.step for name, run in self._runs.items()}

    def watches(self) -> dict[str, dict[str, Any] | None]:
        """Whether the rules see each run's present attempt: what its view says."""
        return {name: run.watch() for name, run in self._runs.items()}

    def state(self, run: str) -> RunState:
        """The folded state.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        return self._run(run).state

    def store(self, run: str) -> SnapshotStore:
        """The run's snapshots. Whoever verifies them through it keeps retention from deleting them meanwhile.

        Raises:
            UnknownRunError: no such run is guarded.
        """
        return self._run(run).effects.snapshots.store

    def targets(self) -> list[Target]:
        """The exporters to scrape: listed before an attempt starts and until its end is confirmed."""
        return [target for run in self._runs.values() if (target := run.target()) is not None]

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
        await self._run(run).folded.finished()
        return self.view(run)

    # ------------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> GuardedRun:
        try:
            return self._runs[name]
        except KeyError:
            raise UnknownRunError(f"no run {name!r} is guarded here") from None

    def _announce(self, run: str, seq: int, event: Event, state: RunState) -> None:
        for listener in self._listeners:
            try:
                listener(run, seq, event, state)
            except Exception:
                log.exception("a listener failed on %s of run %s", event.kind, run)
        for subscription in tuple(self._subscriptions):
            subscription.put((run, seq, event))

    async def _follow_exporters(self) -> None:
        """An exporter whose assigned port was busy listens elsewhere, and says so in its file."""
        while True:
            await asyncio.sleep(ENDPOINT_SECONDS)
            looks = [(run, run.state.attempt) for run in self._runs.values() if run.state.live]
            news = await self._blocking(_news, looks)
            for (run, attempt), endpoint in zip(looks, news, strict=True):
                if endpoint is not None and run.state.live and run.state.attempt == attempt:
                    run.effects.processes.endpoint.listen_at(endpoint)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_SECONDS)
            for run in self._runs.values():
                run.tend()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("task %s of the engine has died", task.get_name(), exc_info=error)


def _news(looks: Sequence[tuple[GuardedRun, int]]) -> list[Endpoint | None]:
    return [run.effects.processes.endpoint.news(attempt) for run, attempt in looks]


def _pass(label: str) -> None:
    """The checkpoint of everyday life."""
