"""A whole backtest: logs in, verdicts out; a log that cannot be used does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusewire_webhook.backtest import engine
from fusewire_webhook.backtest.clock import RowClock, times
from fusewire_webhook.backtest.engine import Plan, Setting
from fusewire_webhook.backtest.exposure import rows_seen
from fusewire_webhook.backtest.model import LogError, RunLog
from fusewire_webhook.backtest.pack import Pack
from fusewire_webhook.backtest.variants import changed
from fusewire_webhook.backtest.verdict import Score, Verdict, judge, score


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a backtest is done."""

    clock: RowClock = field(default_factory=RowClock)
    scrape_seconds: float | None = None
    """None: what the pack is written for."""
    window_seconds: float = 10.0
    jobs: int = 2
    limits: bool = False
    """Whether verdicts tell the levels at which rules would have tripped, for pictures."""
    promtool: str = "promtool"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of a sweep and how the pack does with it."""

    value: str
    score: Score | None
    verdicts: tuple[Verdict, ...]


class Progress:
    """What is told while it goes on. This one tells nobody."""

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        """A run was judged: the verdict of each pack."""

    def waiting(self, runs: int) -> None:
        """Nothing was judged for a while; so many runs are at work."""


def plan(logs: Sequence[RunLog], options: Options, *, scrape_seconds: float) -> tuple[list[Plan], list[LogError]]:
    """When the rows of each log happen, and the logs that cannot be played."""
    plans: list[Plan] = []
    errors: list[LogError] = []
    known: set[str] = set()
    for log in logs:
        try:
            if log.id in known:
                raise LogError(f"{log.id}: two logs have this name; rename one of the files")
            clock = RowClock(kind="log") if log.stored else options.clock
            seconds = times(log, clock, scrape_seconds=scrape_seconds)
        except LogError as error:
            errors.append(error)
            continue
        known.add(log.id)
        scrapes = log.stored.scrapes if log.stored else None
        plans.append(Plan(log=log, seconds=seconds, seen=rows_seen(seconds, scrape_seconds, scrapes=scrapes)))
    return plans, errors


def backtest(
    logs: Sequence[RunLog],
    pack: Pack,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[list[Verdict], list[LogError]]:
    """The verdict on each log, in their order, and the logs that could not be played.

    Raises:
        ConfigError: the rules cannot be evaluated, or promtool is not installed.
        BacktestError: a process was killed.
    """
    (verdicts,), errors = _backtest(logs, [pack], options or Options(), progress or Progress())
    return verdicts, errors


def sweep(
    logs: Sequence[RunLog],
    pack: Pack,
    options: Options | None = None,
    *,
    key: str,
    values: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
) -> tuple[list[Point], list[LogError]]:
    """How the pack does with each of these values of one number; copies of the rules are written to ``folder``.

    Raises:
        ConfigError: the pack has no such number.
        BacktestError: a process was killed.
    """
    packs = [changed(pack, key, value, folder / str(number)) for number, value in enumerate(values)]
    results, errors = _backtest(logs, packs, options or Options(), progress or Progress())
    points = [
        Point(value=value, score=score(verdicts), verdicts=tuple(verdicts))
        for value, verdicts in zip(values, results, strict=True)
    ]
    return points, errors


def _backtest(
    logs: Sequence[RunLog], packs: Sequence[Pack], options: Options, progress: Progress
) -> tuple[list[list[Verdict]], list[LogError]]:
    for pack in packs:
        engine.check(pack, promtool=options.promtool)
    scrape = options.scrape_seconds or packs[0].interval
    plans, errors = plan(logs, options, scrape_seconds=scrape)
    setting = Setting(
        scrape_seconds=scrape,
        window_seconds=options.window_seconds,
        limits=options.limits,
        promtool=options.promtool,
    )
    verdicts: dict[str, list[Verdict]] = {}
    if plans:
        for one, heard in engine.evaluate(plans, packs, setting, jobs=options.jobs, waiting=progress.waiting):
            verdicts[one.log.id] = [
                judge(one, said, pack.classes, scrape_seconds=scrape)
                for said, pack in zip(heard, packs, strict=True)
            ]
            progress.judged(verdicts[one.log.id])
    return [[verdicts[one.log.id][number] for one in plans] for number in range(len(packs))], errors
