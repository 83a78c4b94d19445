"""Writes postmortems while the webhook serves, beside the breaker and never in its way.

The engine's listener only notes what is wanted; one child process after another does the work, at low priority.
Whatever goes wrong there is logged and counted, and nothing else happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from fusewire_webhook.breaker.events import (
    AttemptStarted,
    Event,
    RolledBack,
    StepsWatched,
    StopConfirmed,
    WouldHaveActed,
)
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.postmortem import postmortem_path
from fusewire_webhook.postmortem.__main__ import NOT_TRIPPED
from fusewire_webhook.postmortem.serving import Asked, announced
from fusewire_webhook.settings.runs_folder import RunsFolder

log = logging.getLogger(__name__)

CHILD_SECONDS = 60.0
"""Then the child is killed."""
DRAIN_SECONDS = 20.0
"""How long the end of the webhook waits for what is still wanted: a lockout ends ``fusewire run`` at once."""

Task = dict[str, Any]
Worker = Callable[[Task], Awaitable[tuple[int, str]]]
"""Does one task of ``python -m fusewire_webhook.postmortem``; answers its exit code and what it said."""


class PostmortemWriter:
    """Writes a postmortem once a tripped attempt is stopped and rolled back, and at lockout.

    The restart may wait long after that. It is written again at the restart, and once the next attempt was watched.

    Args:
        views: every guarded run, as the engine sees it.
        registry: takes ``fusewire_postmortems_total`` and ``fusewire_postmortem_failures_total``.
        worker: does one task.
        drain_seconds: bound on what the end of the webhook waits.
    """

    def __init__(
        self,
        folder: RunsFolder,
        asked: Asked,
        *,
        views: Callable[[], Iterable[RunView]],
        registry: CollectorRegistry,
        worker: Worker | None = None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self._folder = folder
        self._asked = asked
        self._views = views
        self._worker = worker or run_child
        self._drain_seconds = drain_seconds
        self._wanted: dict[tuple[str, int], None] = {}
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unwatched: dict[str, int] = {}
        self._phases: dict[str, str] = {}
        self._written = Counter("fusewire_postmortems_total", "Postmortems that were begun.", registry=registry)
        self._failures = Counter(
            "fusewire_postmortem_failures_total", "Postmortems that could not be written.", registry=registry
        )

    def stored(self, run: str, _seq: int, event: Event, state: RunState) -> None:
        """The engine's listener: notes what is wanted, nothing else."""
        before, self._phases[run] = self._phases.get(run, ""), state.phase
        if isinstance(event, StopConfirmed) and state.phase == "open":
            self._want(run, event.attempt)
        elif isinstance(event, RolledBack) and state.phase == "open" and state.attempt > 0:
            self._want(run, state.attempt - 1)  # the state names the attempt that is to start
        elif isinstance(event, AttemptStarted) and event.attempt > 0:
            self._unwatched[run] = event.attempt
            self._want(run, event.attempt - 1)
        elif isinstance(event, StepsWatched) and event.watched and self._unwatched.get(run) == event.attempt:
            del self._unwatched[run]
            self._want(run, event.attempt - 1)
        elif isinstance(event, WouldHaveActed) or (state.phase == "locked" and before != "locked"):
            self._want(run, max(state.attempt, 0))

    async def serving(self, _app: object = None) -> AsyncIterator[None]:
        """For the life of the application; at its end what is still wanted is written, within a bound."""
        with announced(self._folder, self._asked):
            for run, attempt in await asyncio.to_thread(self._missing, list(self._views())):
                self._want(run, attempt)
            task = asyncio.create_task(self._work(), name="postmortems")
            try:
                yield
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), self._drain_seconds)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _missing(self, views: Sequence[RunView]) -> list[tuple[str, int]]:
        """What a webhook that was killed did not come to."""
        found = []
        for view in views:
            if not (sum(view.trips.values()) or view.lockouts):
                continue
            before, now = view.attempt - 1, view.attempt  # while open it is either, and the child tells
            attempts = {"locked": (now,), "open": (before, now)}.get(view.state, (before,))
            run_dir = self._folder.root / view.run
            found += [(view.run, a) for a in attempts if a >= 0 and not postmortem_path(run_dir, a).exists()]
        return found

    def _want(self, run: str, attempt: int) -> None:
        self._wanted[run, attempt] = None
        self._idle.clear()
        self._news.set()

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                run, attempt = next(iter(self._wanted))
                del self._wanted[run, attempt]
                await self._write(run, attempt)
            self._idle.set()

    async def _write(self, run: str, attempt: int) -> None:
        task = {
            "runs_dir": str(self._folder.root),
            "run": run,
            "attempt": attempt,
            "prometheus_url": self._asked.prometheus_url,
            "scrape_interval": self._asked.scrape_interval,
        }
        try:
            code, said = await self._worker(task)
        except Exception as error:
            log.exception("the postmortem of attempt %d of run %s was not written", attempt, run)
            code, said = 1, str(error)
        if code == NOT_TRIPPED:
            return
        self._written.inc()
        if code == 0:
            path = postmortem_path(self._folder.root / run, attempt)
            log.info("run %s: postmortem of attempt %d: %s", run, attempt, path)
        else:
            self._failures.inc()
            last = said.strip().splitlines()[-1:] or ["no word"]
            log.error("run %s: the postmortem of attempt %d failed (exit code %d): %s", run, attempt, code, last[0])


async def run_child(task: Task, *, seconds: float = CHILD_SECONDS) -> tuple[int, str]:
    """One task in a process of its own; it does not outlive ``seconds``, nor this call."""
    cache = str(RunsFolder(Path(task["runs_dir"])).state / "matplotlib")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fusewire_webhook.postmortem",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        cwd=Path("/"), start_new_session=True, env={"MPLCONFIGDIR": cache, **os.environ},
    )  # fmt: skip
    try:
        _, said = await asyncio.wait_for(child.communicate(json.dumps(task).encode()), seconds)
    except TimeoutError:
        return 1, f"it took longer than {seconds:g} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, said.decode(errors="replace")[-4000:]
