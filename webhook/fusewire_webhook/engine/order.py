"""An action that is being carried out: it stands as long as the folded state owes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Order:
    """Lets the long parts of an action end at once when somebody decides otherwise."""

    stands: Callable[[], bool]
    """Is the action still owed? To be asked right before anything is changed."""
    changed: asyncio.Event
    """Set whenever the answer may have changed."""

    async def meanwhile(self, work: Awaitable[T]) -> T | None:
        """What ``work`` comes to; None: the action is owed no more. The work is cancelled then.

        A thread that it waits for goes on, so such work must not change what the next action relies on.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if not self.stands():
                    return None
                self.changed.clear()
                change = asyncio.ensure_future(self.changed.wait())
                try:
                    await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
            return task.result()
        finally:
            task.cancel()
