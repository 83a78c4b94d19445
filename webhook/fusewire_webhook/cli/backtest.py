"""``fusewire backtest``: recorded runs through the real rules."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterable

    from fusewire_webhook.backtest.model import LogError, RunLog
    from fusewire_webhook.backtest.pack import Pack
    from fusewire_webhook.backtest.session import Options, Point
    from fusewire_webhook.backtest.told import Told


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
    from fusewire_webhook.backtest.told import Told  # noqa: PLC0415
    from fusewire_webhook.backtest.verdict import score  # noqa: PLC0415
    from fusewire_webhook.cli import recorded  # noqa: PLC0415

    _check_targets(arguments)
    console, out = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 160)
    pack = recorded.pack_of(arguments.rules or ())
    options = recorded.options_of(arguments)
    logs, errors = recorded.logs_of(arguments, pack, scrape_seconds=options.scrape_seconds or pack.interval)
    print(f"time: {options.clock}, scraped every {options.scrape_seconds or pack.interval:g} s", file=sys.stderr)
    if not logs and not arguments.json:
        return _say(errors)
    _print_lines(recorded.unknown_reads(pack))
    _print_lines(recorded.idle_overrides(pack, logs))
    if arguments.sweep:
        with Told(console, len(logs)) as told:
            points, unplayed = _sweep(arguments.sweep, logs, pack, options, told)
        errors += unplayed
        key = arguments.sweep.partition("=")[0]
        if arguments.json != "-":
            out.print(report.sweep_table(key, points))
        if arguments.json:
            _write(arguments.json, report.sweep_document(key, points, errors, clock=str(options.clock), pack=pack))
        return _say(errors)
    with Told(console, len(logs)) as told:
        verdicts, unplayed = backtest(logs, pack, options, progress=told)
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
    text: str, logs: list[RunLog], pack: Pack, options: Options, told: Told
) -> tuple[list[Point], list[LogError]]:
    from fusewire_webhook.backtest.session import sweep  # noqa: PLC0415

    key, equals, listed = text.partition("=")
    values = [value for value in listed.split(",") if value]
    if not equals or not values:
        raise ConfigError(f"--sweep {text}: write NAME=V1,V2,… such as return_collapse=0.3,0.5,0.7")
    with tempfile.TemporaryDirectory(prefix="fusewire-sweep-") as folder:
        return sweep(logs, pack, options, key=key, values=values, folder=Path(folder), progress=told)


def _say(errors: list[LogError]) -> int:
    for error in errors:
        print(f"fusewire: {error}", file=sys.stderr)
    return 1 if errors else 0


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
