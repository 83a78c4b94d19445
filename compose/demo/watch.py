"""Watches the demonstration in containers: prints what happens, ends with 0 once the run has recovered.

Runs beside the webhook, with the runs folder and Prometheus' address; starts and stops nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import aiohttp
from rich.console import Console

from fusewire_webhook.demo.driver import Watcher
from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.report import table, timeline
from fusewire_webhook.demo.scenarios import SCENARIOS
from fusewire_webhook.watch.prometheus import Prometheus

SECONDS = 420.0
POLL_SECONDS = 0.5
QUIET_SECONDS = 5.0


class Attached(GuardedRun):
    """A run that somebody else guards: only looked at."""

    async def __aenter__(self) -> Attached:
        self._http = aiohttp.ClientSession()
        self.prometheus = Prometheus("http://prometheus:9090", session=self._http)
        return self

    async def interrupt(self, seconds: float = 0.0) -> int:  # noqa: ARG002 - nobody is waited for
        """Nothing: whoever guards it goes on."""
        return 0


async def main() -> int:
    console = Console(width=120, soft_wrap=True, highlight=False, markup=False)
    scenario = SCENARIOS["lr-spike"]
    console.print(f"{scenario.name}: {scenario.story}.")
    started = time.monotonic()
    printed, told = 0.0, 0
    answer: bool | None = None
    async with Attached(Path("/"), {"runs": {"demo": {}}, "runs_dir": "runs"}) as run:
        watcher = Watcher(run, scenario)
        while answer is None and time.monotonic() - started < SECONDS:
            answer = await watcher.look()
            lines = list(timeline(run.entries))
            for line in lines[told:]:
                console.print(line)
            told = len(lines)
            if time.monotonic() - printed > QUIET_SECONDS:
                printed = time.monotonic()
                console.print(f"{printed - started:5.0f} s  {watcher.words()}")
            await asyncio.sleep(POLL_SECONDS)
        if found := await watcher.observer.failures():
            console.print(table(found, watcher.final_return))
    console.print("OK: stopped, restarted, recovered." if answer else f"FAILED: {watcher.words()}")
    return 0 if answer else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
