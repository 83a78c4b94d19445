"""Calls that block on the disk run in threads: a file system that hangs holds up nobody else.

After the engine's end there are none: whoever asks then is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from fusewire_webhook.errors import CommandError

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Runs such calls in the threads of ``executor``."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._closed = False

    def close(self) -> None:
        """No call begins after it; one that hangs holds up nobody."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``call`` returns or raises.

        Raises:
            CommandError: the engine has ended.
        """
        if self._closed:
            raise CommandError("this fusewire is ending: nothing more is done here")
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *args, **kwargs))
