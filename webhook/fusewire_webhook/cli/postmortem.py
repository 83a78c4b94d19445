"""``fusewire postmortem RUN``: write the postmortem of an attempt again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fusewire_webhook.cli.common import add_config_options, add_run_argument, configuration, runs_folder
from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "postmortem",
        help="write the postmortem of a tripped attempt again",
        description="Write the postmortem of an attempt that tripped, as Markdown and HTML, into the run's folder "
        "postmortems/. The webhook does it by itself after every trip; this does it again, with what is known now.",
    )
    add_run_argument(parser)
    parser.add_argument(
        "--attempt", type=_number, metavar="K", help="number of the attempt (default: the last one that tripped)"
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="Prometheus to ask (default: prometheus.url of the configuration, or the one of the serving webhook)",
    )
    add_config_options(parser)
    parser.set_defaults(handler=_postmortem)


def _postmortem(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.postmortem.build import write_postmortem  # noqa: PLC0415 - numpy, aiohttp
    from fusewire_webhook.postmortem.serving import read_address  # noqa: PLC0415

    folder = runs_folder(arguments)
    config = configuration(arguments)[0]
    known = read_address(folder)
    url = arguments.prometheus or config.prometheus.url or (known.prometheus_url if known else None)
    interval = known.scrape_interval if known else config.prometheus.scrape_interval_seconds
    try:
        written = write_postmortem(
            folder.root, arguments.run, arguments.attempt, prometheus_url=url, scrape_interval=interval
        )
    except OSError as error:
        raise ConfigError(f"{error.filename}: the postmortem cannot be written: {error.strerror}") from error
    print(written.html)
    print(written.markdown)
    for note in written.notes:
        print(f"fusewire: {' '.join(note.split())}", file=sys.stderr)
    return 0


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no attempt number: attempts count from 0")
    return int(text)
