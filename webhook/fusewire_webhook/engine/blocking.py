"""Calls that block on the disk run in threads: a file system that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Runs such calls in the threads of ``executor``."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``call`` returns or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *args, **kwargs))
