"""``fusewire backtest``: recorded runs through the real rules."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire_webhook.errors import ConfigError, PrometheusError

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from fusewire_webhook.backtest.model import LogError, RunLog
    from fusewire_webhook.backtest.pack import Pack
    from fusewire_webhook.backtest.session import Options, Point


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "backtest",
        help="what the rules would have done to recorded runs",
        description="Play recorded runs through the exporter's own code and the real rules on the real rule engine "
        "(promtool), and tell when each run would have been pending and tripped, and what the breaker would have "
        "done. LOG is a CSV, a JSON export (trainer_state.json, W&B history), a TensorBoard event file, or a "
        "folder of them; index.csv in a folder gives id, algorithm, source, label and first_bad_row of each.",
        epilog="JSON: {time, rules, runs: [{id, tripped_row, tripped_rule, delay_rows, pending_rows, …}], errors, "
        "score}; rows count from 0, tripped_row is null where nothing tripped. Exit code 1 where a log could not "
        "be used.",
    )
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument(
        "--rules", action="append", metavar="FILE", help="rule file, or default, or preset:NAME (default: default)"
    )
    parser.add_argument(
        "--time", default="rows", metavar="HOW",
        help="rows: one row is one scrape (default); log: the log's own time; or the seconds that a row takes",
    )  # fmt: skip
    parser.add_argument(
        "--scrape-interval",
        type=float,
        metavar="S",
        help="seconds (default: the interval of the pack's trip rules)",
    )
    parser.add_argument(
        "--window", type=float, default=10.0, metavar="S", help="the exporter's window (default: 10)"
    )
    parser.add_argument(
        "--column", action="append", default=[], metavar="SIGNAL=COLUMN", help="a column that is not recognised"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="label algorithm of runs that no index names")
    parser.add_argument("--json", metavar="FILE", help="write the verdicts as JSON; - is standard output")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="a picture per run")
    parser.add_argument(
        "--sweep", metavar="NAME=V1,V2,…",
        help="the trade-off of one number: a threshold of the pack, Alert.threshold, or Alert.for",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 8), metavar="N", help="processes at once"
    )
    live = parser.add_argument_group("a live Prometheus, whose stored series are judged")
    live.add_argument("--prometheus", metavar="URL")
    live.add_argument("--run", metavar="NAME")
    live.add_argument("--attempt", type=int, metavar="N", help="default: the newest in the range")
    live.add_argument("--range", default="1h", metavar="DURATION", help="how far back (default: 1h)")
    parser.set_defaults(handler=_backtest)


def _backtest(arguments: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415

    from fusewire_webhook.backtest import report  # noqa: PLC0415
    from fusewire_webhook.backtest.session import backtest  # noqa: PLC0415
    from fusewire_webhook.backtest.verdict import score  # noqa: PLC0415

    _check_targets(arguments)
    console, out = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 160)
    pack = _pack(arguments.rules or ())
    options = _options(arguments)
    logs, errors = _logs(arguments, pack, scrape_seconds=options.scrape_seconds or pack.interval)
    print(f"time: {options.clock}, scraped every {options.scrape_seconds or pack.interval:g} s", file=sys.stderr)
    _print_lines(_unknown_reads(pack))
    _print_lines(_idle_overrides(pack, logs))
    if arguments.sweep:
        with _Progress(console, len(logs)) as advance:
            points, unplayed = _sweep(arguments.sweep, logs, pack, options, advance)
        errors += unplayed
        key = arguments.sweep.partition("=")[0]
        if arguments.json != "-":
            out.print(report.sweep_table(key, points))
        if arguments.json:
            _write(arguments.json, report.sweep_document(key, points, errors, clock=str(options.clock), pack=pack))
        return _say(errors)
    with _Progress(console, len(logs)) as advance:
        verdicts, unplayed = backtest(logs, pack, options, progress=advance)
    errors += unplayed
    if arguments.json != "-":
        out.print(report.runs_table(verdicts))
        out.print()
        out.print(report.labels_table(verdicts))
        if (found := score(verdicts)) is not None:
            out.print(report.score_line(found), highlight=False)
    if arguments.json:
        _write(arguments.json, report.document(verdicts, errors, clock=str(options.clock), pack=pack))
    _print_lines(f"note: {line}" for line in report.left_out_lines(verdicts))
    _print_lines(f"note: {verdict.log.id}: {note}" for verdict in verdicts for note in verdict.log.notes)
    if arguments.pictures is not None:
        from fusewire_webhook.backtest.picture import draw  # noqa: PLC0415

        try:
            for verdict in verdicts:
                draw(verdict, arguments.pictures)
        except OSError as error:
            raise ConfigError(f"--pictures {arguments.pictures}: {error.strerror or error}") from error
    return _say(errors)


def _check_targets(arguments: argparse.Namespace) -> None:
    """What is written is known to have a place before anything runs."""
    if arguments.json not in (None, "-"):
        path = Path(arguments.json)
        if path.is_dir() or not path.parent.is_dir():
            raise ConfigError(f"--json {path}: name a file in a folder that exists")
    if arguments.pictures is not None:
        from fusewire_webhook.backtest.picture import check_drawing  # noqa: PLC0415

        if arguments.sweep:
            raise ConfigError("--pictures: a sweep draws none; leave one of the two out")
        check_drawing(arguments.pictures)


def _write(target: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1)
    if target == "-":
        print(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {target}: {error.strerror or error}") from error


def _sweep(
    text: str, logs: list[RunLog], pack: Pack, options: Options, advance: Callable[[int], None]
) -> tuple[list[Point], list[LogError]]:
    from fusewire_webhook.backtest.session import sweep  # noqa: PLC0415

    key, equals, listed = text.partition("=")
    values = [value for value in listed.split(",") if value]
    if not equals or not values:
        raise ConfigError(f"--sweep {text}: write NAME=V1,V2,… such as return_collapse=0.3,0.5,0.7")
    with tempfile.TemporaryDirectory(prefix="fusewire-sweep-") as folder:
        return sweep(logs, pack, options, key=key, values=values, folder=Path(folder), progress=advance)


def _say(errors: list[LogError]) -> int:
    for error in errors:
        print(f"fusewire: {error}", file=sys.stderr)
    return 1 if errors else 0


def _pack(entries: list[str] | tuple[str, ...]) -> Pack:
    from fusewire_webhook.backtest.engine import check  # noqa: PLC0415
    from fusewire_webhook.backtest.pack import load  # noqa: PLC0415
    from fusewire_webhook.settings.packs import rule_files  # noqa: PLC0415
    from fusewire_webhook.stack.binaries import resolve_rule_files  # noqa: PLC0415

    pack = load([Path(path) for path in resolve_rule_files(rule_files(entries))])
    check(pack)
    return pack


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _idle_overrides(pack: Pack, logs: list[RunLog]) -> Iterator[str]:
    algorithms = {log.algorithm for log in logs}
    for idle in sorted(pack.overridden_algorithms - algorithms):
        yield (
            f"note: no run has the algorithm {idle} that an override is for; theirs are "
            f"{', '.join(repr(algorithm) for algorithm in sorted(algorithms))}, and case and brackets count"
        )


def _unknown_reads(pack: Pack) -> Iterator[str]:
    """What the rules read that nothing exports or records: such a rule is silent, whatever a run does."""
    from fusewire_webhook.settings.rulefile import Rule, Unreadable, read, recorded_by  # noqa: PLC0415
    from fusewire_webhook.settings.rulereads import unknown_problems  # noqa: PLC0415

    rules: list[Rule] = []
    for path in pack.files:
        try:
            rules += read(path)
        except Unreadable as error:
            yield f"note: {path}: {error.rule}: promtool takes it, but what it reads was not checked: {error}"
    yield from map(str, unknown_problems(rules, recorded_by(rules)))


def _options(arguments: argparse.Namespace) -> Options:
    from fusewire_webhook.backtest.clock import parse_clock  # noqa: PLC0415
    from fusewire_webhook.backtest.session import Options  # noqa: PLC0415

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


def _logs(
    arguments: argparse.Namespace, pack: Pack, *, scrape_seconds: float
) -> tuple[list[RunLog], list[LogError]]:
    import dataclasses  # noqa: PLC0415

    from fusewire_webhook.backtest.model import LogError  # noqa: PLC0415
    from fusewire_webhook.backtest.readers import find, labelled, read  # noqa: PLC0415

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
    from fusewire_webhook.backtest.clock import MOST_SCRAPES  # noqa: PLC0415
    from fusewire_webhook.backtest.live import read_live  # noqa: PLC0415
    from fusewire_webhook.backtest.pack import seconds  # noqa: PLC0415

    if not arguments.run:
        raise ConfigError("--prometheus needs --run NAME")
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
    from fusewire.signals import by_name  # noqa: PLC0415

    pairs = [text.partition("=") for text in texts]
    for (signal, equals, column), text in zip(pairs, texts, strict=True):
        if not equals or not column or signal not in by_name():
            raise ConfigError(f"--column {text}: write SIGNAL=COLUMN; signals are {', '.join(by_name())}")
    return {signal: column for signal, _, column in pairs}


class _Progress:
    """A bar on a terminal, a line per batch elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        self._bar = Progress(
            TextColumn("runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._terminal = console.is_terminal
        self._total = total
        self._done = 0

    def __enter__(self) -> Callable[[int], None]:
        if self._terminal:
            self._bar.start()
            self._task = self._bar.add_task("runs", total=self._total)
        return self._advance

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def _advance(self, runs: int) -> None:
        self._done += runs
        if self._terminal:
            self._bar.advance(self._task, runs)
        else:
            print(f"runs: {self._done} of {self._total}", file=sys.stderr)
