"""What ``fusewire backtest`` is given, as the command line names it: rules, options, and logs."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from yarl import URL

from fusewire.signals import by_name
from fusewire_webhook.backtest.clock import MOST_SCRAPES, parse_clock
from fusewire_webhook.backtest.engine import check
from fusewire_webhook.backtest.live import read_live
from fusewire_webhook.backtest.model import LogError, RunLog
from fusewire_webhook.backtest.pack import Pack, load, seconds
from fusewire_webhook.backtest.readers import find, labelled, read
from fusewire_webhook.backtest.session import Options
from fusewire_webhook.errors import ConfigError, PrometheusError
from fusewire_webhook.settings import rulefile
from fusewire_webhook.settings.packs import rule_files
from fusewire_webhook.settings.rulereads import unknown_problems
from fusewire_webhook.stack.binaries import resolve_rule_files


def pack_of(entries: Sequence[str]) -> Pack:
    """The rules of these files and packs, which promtool has read.

    Raises:
        ConfigError: it refuses them, or there are none.
    """
    pack = load([Path(path) for path in resolve_rule_files(rule_files(entries))])
    check(pack)
    return pack


def options_of(arguments: argparse.Namespace) -> Options:
    """How the backtest is done.

    Raises:
        ConfigError: a number makes no sense.
    """
    try:
        clock = parse_clock(arguments.time)
    except ValueError:
        raise ConfigError(f"--time {arguments.time}: take rows, log, or seconds such as 0.25") from None
    for name, least in (("scrape_interval", 0.001), ("window", 0.001), ("jobs", 1)):
        value = getattr(arguments, name)
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: must be a number and at least {least:g}")
    scrape: float | None = arguments.scrape_interval
    return Options(
        clock=clock,
        scrape_seconds=None if scrape is None else round(scrape, 3),  # promtool counts whole milliseconds
        window_seconds=arguments.window,
        jobs=arguments.jobs,
        limits=arguments.pictures is not None,
    )


def logs_of(
    arguments: argparse.Namespace, pack: Pack, *, scrape_seconds: float
) -> tuple[list[RunLog], list[LogError]]:
    """The runs of the files and of Prometheus, and what could not be read.

    Raises:
        ConfigError: an argument makes no sense.
    """
    mapping = _mapping(arguments.column)
    logs: list[RunLog] = []
    errors: list[LogError] = []
    if arguments.prometheus:
        try:
            logs.append(_live_log(arguments, pack, scrape_seconds=scrape_seconds))
        except (LogError, PrometheusError) as error:
            errors.append(LogError(str(error)))
    elif not arguments.logs:
        raise ConfigError("backtest: name a log, a folder of logs, or --prometheus URL --run NAME")
    found, lost = find(arguments.logs)
    errors += lost
    for path, facts in found:
        try:
            logs.append(labelled(read(path, mapping=mapping), facts))
        except LogError as error:
            errors.append(error)
    if arguments.algorithm:
        logs = [log if log.algorithm else dataclasses.replace(log, algorithm=arguments.algorithm) for log in logs]
    return logs, errors


def _live_log(arguments: argparse.Namespace, pack: Pack, *, scrape_seconds: float) -> RunLog:
    if not arguments.run:
        raise ConfigError("--prometheus needs --run NAME")
    try:
        URL(arguments.prometheus)
    except ValueError as error:
        raise ConfigError(f"--prometheus {arguments.prometheus}: {error}") from None
    try:
        span = seconds(arguments.range)
    except ValueError as error:
        raise ConfigError(f"--range: {error}") from None
    if not scrape_seconds <= span <= MOST_SCRAPES * scrape_seconds:
        raise ConfigError(
            f"--range {arguments.range}: take {scrape_seconds:g} s to {MOST_SCRAPES * scrape_seconds:,g} s, "
            f"which are {MOST_SCRAPES:,} scrapes"
        )
    return read_live(
        arguments.prometheus,
        run=arguments.run,
        attempt=arguments.attempt,
        range_seconds=span,
        scrape_seconds=scrape_seconds,
        names=pack.scraped,
    )


def _mapping(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (signal, equals, column), text in zip(pairs, texts, strict=True):
        if not equals or not column or signal not in by_name():
            raise ConfigError(f"--column {text}: write SIGNAL=COLUMN; signals are {', '.join(by_name())}")
    return {signal: column for signal, _, column in pairs}


def idle_overrides(pack: Pack, logs: Sequence[RunLog]) -> Iterator[str]:
    """Overrides for an algorithm that no run has."""
    algorithms = {log.algorithm for log in logs}
    for idle in sorted(pack.overridden_algorithms - algorithms):
        yield (
            f"note: no run has the algorithm {idle} that an override is for; theirs are "
            f"{', '.join(repr(algorithm) for algorithm in sorted(algorithms))}, and case and brackets count"
        )


def unknown_reads(pack: Pack) -> Iterator[str]:
    """What the rules read that nothing exports or records: such a rule is silent, whatever a run does."""
    rules: list[rulefile.Rule] = []
    for path in pack.files:
        try:
            rules += rulefile.read(path)
        except rulefile.Unreadable as error:
            yield f"note: {path}: {error.rule}: promtool takes it, but what it reads was not checked: {error}"
    yield from map(str, unknown_problems(rules, rulefile.recorded_by(rules)))
