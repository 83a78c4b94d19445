"""Stand-ins for the engine and a builder of the application around them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from fusewire_webhook.deps import Deps, Watch
from fusewire_webhook.errors import CommandError, JournalError, UnknownRunError
from fusewire_webhook.events import Command, Event
from fusewire_webhook.metrics import Metrics
from fusewire_webhook.receiver import Receiver
from fusewire_webhook.state import RunState
from fusewire_webhook.view import RunView, Target, view_of


class Engine:
    """Remembers what it was given; ``full`` makes every store fail."""

    def __init__(self, *runs: str) -> None:
        self._views = {run: view_of(run, 0, RunState(), algorithm="ppo") for run in runs}
        self.events: list[tuple[str, Event]] = []
        self.full = False
        self.followers: list[asyncio.Queue[RunView]] = []

    async def submit(self, run: str, event: Event) -> int:
        self.view(run)
        if self.full:
            raise JournalError("journal.db: no space left on device")
        self.events.append((run, event))
        return len(self.events)

    def view(self, run: str) -> RunView:
        if run not in self._views:
            raise UnknownRunError(f"no run {run!r} is guarded here")
        return self._views[run]

    def views(self) -> list[RunView]:
        return list(self._views.values())

    def change(self, run: str, **fields: Any) -> None:
        self._views[run] = replace(self._views[run], **fields)
        for queue in self.followers:
            queue.put_nowait(self._views[run])

    def targets(self) -> Iterable[Target]:
        return [
            Target(run=run, attempt=3, algorithm="ppo", host="127.0.0.1", port=9101, window_seconds=10.0)
            for run in self._views
        ]

    async def command(self, run: str, command: Command) -> RunView:
        await self.submit(run, command)
        if command.verb == "reset":
            raise CommandError(f"{run} is not locked: there is nothing to reset")
        return self.view(run)

    @contextlib.asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[RunView]]:
        queue: asyncio.Queue[RunView] = asyncio.Queue()

        async def follow() -> AsyncIterator[RunView]:
            while True:
                yield await queue.get()

        self.followers.append(queue)
        try:
            yield follow()
        finally:
            self.followers.remove(queue)


class Beats:
    """A dead man's switch that remembers its beats."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.state = Watch()

    def __call__(self, value: float) -> None:
        self.values.append(value)


def build(engine: Engine, beats: Beats, **changes: Any) -> Deps:
    """The dependencies of an application around stand-ins."""

    async def read_log(run: str, after: int, limit: int) -> list[dict[str, Any]]:
        entries = [
            {"seq": n + 1, "kind": event.kind} for n, (name, event) in enumerate(engine.events) if name == run
        ]
        return [entry for entry in entries if entry["seq"] > after][:limit]

    metrics = Metrics(views=engine.views)
    return Deps(
        engine=engine,
        receiver=Receiver(store=engine, metrics=metrics, beat=beats, clock=lambda: 100.0),
        metrics=metrics,
        read_log=read_log,
        changes=engine.changes,
        watch=lambda: beats.state,
        clock=lambda: 100.0,
        **changes,
    )
