"""A reader of what is journaled: an async iterator that ends when it is closed or falls too far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fusewire_webhook.breaker.events import Event

Item = tuple[str, int, Event]

BACKLOG = 10_000
"""Events that a slow reader may lie behind before its subscription ends."""


class Subscription:
    """``async for run, seq, event in subscription``; also an async context manager."""

    def __init__(self, *, on_close: Callable[[Subscription], object], backlog: int = BACKLOG) -> None:
        self._on_close = on_close
        self._backlog = backlog
        self._queue: asyncio.Queue[Item | None] = asyncio.Queue()
        self._closed = False

    def put(self, item: Item) -> None:
        """Hand an event to the reader."""
        if self._queue.qsize() >= self._backlog:
            self.close()
        elif not self._closed:
            self._queue.put_nowait(item)

    def close(self) -> None:
        """End the iteration after what is queued. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(None)
            self._on_close(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Item:
        item = await self._queue.get()
        if item is None:
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
