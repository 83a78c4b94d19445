"""``fusewire … | head``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from fusewire_webhook.breaker.events import TimerElapsed
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.runs_folder import RunsFolder


async def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """A closed pipe ends the output quietly: exit code 0 and nothing on stderr."""
    folder = RunsFolder(tmp_path)
    folder.prepare()
    journal = Journal(folder.journal)
    await asyncio.gather(*(journal.append("toy", TimerElapsed(name="x" * 100)) for _ in range(3000)))
    journal.close()
    command = [sys.executable, "-m", "fusewire_webhook", "log", "toy", "--runs", str(tmp_path)]

    def read_one_line() -> tuple[int, bytes]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            error = process.stderr.read()
            return process.wait(timeout=30), error

    assert await asyncio.to_thread(read_one_line) == (0, b"")
