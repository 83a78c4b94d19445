"""One run's part of the journal, and the state that it folds to: what is durable is folded at once, in order."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from fusewire_webhook.breaker import transition as breaker
from fusewire_webhook.breaker.events import AlertReported, Command, Event, StepsWatched
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.words import QUIET
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.engine.seen_steps import SeenSteps
from fusewire_webhook.engine.sight import Sight

log = logging.getLogger(__name__)

Listener = Callable[[str, int, Event, RunState], None]
"""Called with an event that is durable and folded: run, its number, the event, the new state."""


class FoldedRun:
    """See the module's docstring.

    Args:
        announce: called with each event that is durable and folded; ``then`` after that.
        clock: Unix seconds, for people only.
        monotonic: seconds.
        checkpoint: see :class:`~fusewire_webhook.engine.engine.Engine`.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        *,
        announce: Listener,
        then: Callable[[Event], None],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        checkpoint: Callable[[str], None],
    ) -> None:
        self.name = name
        self.state = RunState()
        self.seq = 0
        """Journal entry up to which the state is folded."""
        self.changed = asyncio.Event()
        """Set whenever the state has changed."""
        self.closing = False
        """Its trainer is being stopped for good: nobody decides anything any more."""
        self._journal = journal
        self._announce = announce
        self._then = then
        self._clock = clock
        self._monotonic = monotonic
        self._checkpoint = checkpoint
        self._waiters: set[asyncio.Event] = set()
        self._refused: dict[int, str] = {}
        self._steps = SeenSteps()
        self._sight = Sight()

    def fold(self, seq: int, event: Event) -> None:
        """The next event of the journal. A fault of the breaker is loud, and the event counts as recorded only."""
        try:
            self.state = breaker.step(self.state, event)
        except Exception:
            log.critical(
                "run %s: %s is a fault of fusewire; it is recorded only", self.name, event.kind, exc_info=True
            )
        self.seq = seq

    async def append(self, event: Event) -> int:
        """Journal and fold; durable when it returns. Cancelling the caller does not cancel it.

        Raises:
            JournalError: it is not stored; nothing is done about it.
        """
        if event.at == 0.0:
            event = dataclasses.replace(event, at=self._clock())
        now = self._monotonic()
        if isinstance(event, AlertReported) and event.attempt == self.state.attempt and event.step is None:
            event = dataclasses.replace(event, step=self._steps.fresh(event.attempt, now))
        if not isinstance(event, QUIET) and (steps := self._steps.take(self.state, now)) is not None:
            self._put(dataclasses.replace(steps, at=event.at))  # durable before it, and with the same fsync
        seq = await asyncio.shield(self._put(event))
        self._checkpoint(f"journal:after:{event.kind}")
        return seq

    async def decide(self, command: Command) -> str | None:
        """Journal a person's decision; why it is refused, where something had come before it.

        Raises:
            JournalError: it is not stored; nothing is done about it.
        """
        if self.closing:
            return breaker.NOT_GUARDED
        return self._refused.pop(await self.append(command), None)

    def _put(self, event: Event) -> asyncio.Future[int]:
        self._checkpoint(f"journal:before:{event.kind}")
        future = self._journal.put(self.name, event)
        future.add_done_callback(lambda done: self._durable(event, done))
        return future

    def _durable(self, event: Event, done: asyncio.Future[int]) -> None:
        if done.cancelled() or done.exception() is not None:
            if isinstance(event, StepsWatched):
                self._steps.give_back(event)
            return
        seq, before = done.result(), self.state
        if isinstance(event, Command) and (refused := breaker.refusal(before, event)) is not None:
            self._refused[seq] = refused
        self.fold(seq, event)
        self._announce(self.name, seq, event, self.state)
        if self.state is not before:
            self.changed.set()
            for waiter in self._waiters:
                waiter.set()
        self._then(event)

    async def finished(self) -> None:
        """Return once the run is locked, completed or shut down."""
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            while not self.state.finished:
                changed.clear()
                await changed.wait()
        finally:
            self._waiters.discard(changed)

    # Watched steps ------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The furthest step that is known of the present attempt, journaled or not."""
        return self._steps.furthest(self.state)

    def looked(self, attempt: int, updates: float | None, *, scrape_interval: float) -> None:
        """The watch looked for the attempt; see :meth:`~fusewire_webhook.engine.sight.Sight.look`."""
        self._sight.look(attempt, updates, self._clock(), scrape_interval=scrape_interval)

    def watch(self, attached: float | None) -> dict[str, Any] | None:
        """Whether the rules see the present attempt; None: none lives, or nobody has looked yet."""
        return self._sight.told(self.state.attempt, attached) if self.state.live else None

    def saw(self, look: StepsWatched) -> bool:
        """Keep what one look saw; true where it is time to journal it."""
        now = self._monotonic()
        self._steps.look(look, now)
        return self._steps.due(self.state, now)

    async def journal_steps(self) -> None:
        """Journal what was seen and is only kept in memory.

        Raises:
            JournalError: it is not stored; it is kept.
        """
        if (steps := self._steps.take(self.state, self._monotonic())) is not None:
            await self.append(steps)
