"""The purge hook: a command of the user's that removes from the replay store what the bad policy produced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

from fusewire_webhook.breaker.events import PurgeFinished

OUTPUT_CHARACTERS = 2000
"""The end of its output that is journaled."""


async def run_hook(
    argv: tuple[str, ...], *, cwd: str | None, environment: Mapping[str, str], timeout_seconds: float
) -> PurgeFinished:
    """Run the hook in a session of its own and bound it in time; nothing of it is left afterwards.

    Exit code 124 says that it was not done in time, 127 that it could not be started. After a crash of the webhook
    it runs again: hooks must bear that.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        return PurgeFinished(exit_code=127, output=str(error))
    output: bytes | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await process.wait()
    if output is None:
        return PurgeFinished(exit_code=124, output=f"not done in {timeout_seconds:g} s")
    return PurgeFinished(exit_code=code, output=output.decode(errors="replace")[-OUTPUT_CHARACTERS:])
