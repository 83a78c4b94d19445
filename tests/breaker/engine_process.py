"""A whole webhook without servers, as a process to kill: real journal, real trainers, commands on stdin.

``python engine_process.py FOLDER``; each line of stdin is ``trip ATTEMPT`` or ``shutdown``, and is answered by
``ok`` once it is durable.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from breaker.doubles import RUN, SetEvidence, trip
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import RetryConfig, RunConfig, StopConfig

TRAINER = (
    "import os, pathlib, time\n"
    "folder = pathlib.Path(os.environ['FUSEWIRE_RUN_DIR']) / 'pids'\n"
    "folder.mkdir(exist_ok=True)\n"
    "(folder / os.environ['FUSEWIRE_ATTEMPT']).open('a').write(f'{os.getpid()} ')\n"
    "time.sleep(600)\n"
)


async def main(folder: Path) -> None:
    config = RunConfig(
        command=(sys.executable, "-S", "-c", TRAINER),
        retry=RetryConfig(settle_seconds=0.0, backoff_seconds=0.0),
        stop=StopConfig(grace_seconds=5.0),
    )
    journal = Journal(folder / "journal.db")
    engine = Engine(
        runs_dir=folder / "runs",
        runs={RUN: config},
        journal=journal,
        actuator=LocalActuator(),
        evidence=SetEvidence(),
    )
    await engine.start()
    print("started", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).split():
        if line[0] == "shutdown":
            break
        await engine.submit(RUN, trip(int(line[1])))
        print("ok", flush=True)
    await engine.close(stop_runs=True)
    journal.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
