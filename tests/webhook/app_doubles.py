"""Stand-ins for the engine and a builder of the application around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fusewire_webhook.breaker.events import Command, Event, StepsWatched
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.view import RunView, Target, view_of
from fusewire_webhook.engine.subscription import Subscription
from fusewire_webhook.errors import CommandError, JournalError, UnknownRunError
from fusewire_webhook.watch.deadman import WatchStatus
from fusewire_webhook.web.deps import Deps
from fusewire_webhook.web.metrics import Metrics
from fusewire_webhook.web.receiver import Receiver


class Engine:
    """Remembers what it was given; ``full`` makes every store fail."""

    def __init__(self, *runs: str) -> None:
        self._views = {run: view_of(run, 0, RunState(), algorithm="ppo") for run in runs}
        self.events: list[tuple[str, Event]] = []
        self.confirmed: list[bool] = []
        """Of each command, whether it was."""
        self.full = False
        self.followers: set[Subscription] = set()

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
        for follower in self.followers:
            follower.put((run, self._views[run].seq, StepsWatched(attempt=0, step=1, watched=1)))

    def steps(self) -> dict[str, int]:
        return {run: view.step for run, view in self._views.items()}

    def watches(self) -> dict[str, dict[str, Any] | None]:
        return {run: view.watch for run, view in self._views.items()}

    def targets(self) -> Iterable[Target]:
        return [
            Target(run=run, attempt=3, algorithm="ppo", host="127.0.0.1", port=9101, window_seconds=10.0)
            for run in self._views
        ]

    async def command(self, run: str, command: Command, *, confirmed: bool = True) -> RunView:
        self.confirmed.append(confirmed)
        await self.submit(run, command)
        if command.verb == "reset":
            raise CommandError(f"{run} is not locked: there is nothing to reset")
        return self.view(run)

    def subscribe(self) -> Subscription:
        subscription = Subscription(on_close=self.followers.discard)
        self.followers.add(subscription)
        return subscription


class Beats:
    """A dead man's switch that remembers its beats."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.state = WatchStatus()

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
        watch=lambda: beats.state,
        clock=lambda: 100.0,
        **changes,
    )
