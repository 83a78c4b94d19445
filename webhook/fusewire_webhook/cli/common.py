"""What the sub-commands share: the configuration, the runs folder, and how a moment is written."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from pathlib import Path

from fusewire.attempt import check_run_name
from fusewire.errors import RunNameError
from fusewire_webhook.cli.outlet import Outlet
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.config import Config
from fusewire_webhook.settings.runs_folder import RunsFolder

DEFAULT_CONFIG = Path("fusewire.yml")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--runs``, which every command understands."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"configuration (default: {DEFAULT_CONFIG}, if it is here)"
    )
    parser.add_argument("--runs", metavar="DIR", help="folder of all runs (default: runs_dir of the configuration)")


def add_run_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The positional ``RUN``."""
    parser.add_argument(
        "run", metavar="RUN", type=run_name, nargs="?" if optional else None, help="name of the run"
    )


def run_name(text: str) -> str:
    """argparse's type of a run name."""
    try:
        return check_run_name(text)
    except RunNameError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def configuration(arguments: argparse.Namespace) -> tuple[Config, str]:
    """The configuration that a command works with, and what messages call its source.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    from fusewire_webhook.settings.loader import load  # noqa: PLC0415 - `fusewire --help` need not load YAML

    path: Path | None = arguments.config
    if path is None and DEFAULT_CONFIG.is_file():
        path = DEFAULT_CONFIG
    config = load(path) if path is not None else Config()
    if arguments.runs is not None:
        config = dataclasses.replace(config, runs_dir=arguments.runs)
    return config, str(path) if path is not None else "command line"


def runs_folder(arguments: argparse.Namespace) -> RunsFolder:
    """The runs folder of a command that only looks at it or talks to who guards it.

    Raises:
        ConfigError: the configuration is wrong, or the folder does not exist.
    """
    if arguments.runs is not None:
        folder = RunsFolder(Path(arguments.runs))
    else:
        folder = RunsFolder(Path(configuration(arguments)[0].runs_dir))
    if not folder.state.is_dir():
        raise ConfigError(f"{folder.root}: no runs were ever guarded here; name the folder with --runs")
    return folder


def start_logging(*, verbose: bool) -> None:
    """Warnings (with ``verbose`` everything) go to stderr, one line each."""
    logging.basicConfig(
        stream=Outlet(sys.stderr),
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(at: float) -> str:
    """Unix seconds as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
