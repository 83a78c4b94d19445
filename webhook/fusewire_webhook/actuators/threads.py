"""Blocking calls that may hang for ever: a driver, or a run's folder on a file server that is away.

Each runs in a thread of its own, so that one that hangs takes nothing from anybody else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def alone(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` returns or raises.

    A thread that hangs is left behind as a daemon: it must hold up neither the event loop nor its end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(set_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            set_answer(value)

    def work() -> None:
        set_answer: Callable[[Any], None] = answer.set_result
        try:
            value: Any = call(*args, **kwargs)
        except Exception as error:
            set_answer, value = answer.set_exception, error
        try:
            loop.call_soon_threadsafe(deliver, set_answer, value)
        except RuntimeError:  # the loop ended before the answer came
            return

    threading.Thread(target=work, name="fusewire-alone", daemon=True).start()
    return await answer


async def bounded(seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What ``call`` returns or raises; None where it takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await alone(call, *args, **kwargs)
    except TimeoutError:
        return None
