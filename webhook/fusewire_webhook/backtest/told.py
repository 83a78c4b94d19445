"""What ``fusewire backtest`` shows while it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from fusewire_webhook.backtest.session import Progress
from fusewire_webhook.backtest.verdict import Verdict


class Told(Progress):
    """Each verdict as it is known, and on a terminal a bar below them."""

    def __init__(self, console: Console, total: int) -> None:
        self._bar = Bar(
            TextColumn("runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("runs", total=total)
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        """See :class:`Progress`."""
        self._done += 1
        self._bar.advance(self._task)
        tripped = [v for v in verdicts if v.tripped_row is not None]
        if len(verdicts) > 1:
            what = f"tripped by {len(tripped)} of {len(verdicts)} values"
        else:
            what = f"tripped at row {tripped[0].tripped_row} by {tripped[0].tripped_rule}" if tripped else "no trip"
        self._say(f"{verdicts[0].log.id}: {what}")

    def waiting(self, runs: int) -> None:
        """See :class:`Progress`."""
        self._say(f"{runs} at work, after {time.monotonic() - self._began:.0f} s")

    def _say(self, words: str) -> None:
        self._bar.console.print(
            f"{self._done} of {self._total}  {words}", markup=False, highlight=False, soft_wrap=True
        )
