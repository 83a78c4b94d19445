"""``fusewire run [-- COMMAND …]``: guard any command, with everything that takes, until it is done."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from fusewire_webhook.cli.check import require_rules
from fusewire_webhook.cli.common import add_config_options, configuration, run_name, start_logging
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.config import Config, RunConfig

if TYPE_CHECKING:
    from argparse import _SubParsersAction

DEFAULT_NAME = "run"


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from fusewire_webhook.cli import EXIT_CODES  # noqa: PLC0415 - it imports this module

    parser = subparsers.add_parser(
        "run",
        help="guard a command: Prometheus, Alertmanager, webhook and trainer in one",
        description="Start Prometheus and Alertmanager (unless the configuration names running ones), the webhook "
        "and the trainer, and stay until every run is completed or locked. Ctrl-C stops all of it; the same "
        "command later goes on where it stood.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the trainer's command line, after --")
    parser.add_argument(
        "--name", type=run_name, help=f"name of the run (default: the configuration's, else {DEFAULT_NAME})"
    )
    parser.add_argument("--algorithm", help="label that rules may select on, such as ppo")
    parser.add_argument(
        "--rules",
        action="append",
        metavar="FILE",
        help="rule file, folder, glob, 'default' or 'preset:NAME'; may be repeated (default: the default pack)",
    )
    parser.add_argument("--verbose", action="store_true", help="everything that the parts have to say, on stderr")
    add_config_options(parser)
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.cli import OK  # noqa: PLC0415 - it imports this module
    from fusewire_webhook.cli.completed import completed  # noqa: PLC0415 - loads numpy
    from fusewire_webhook.settings.checks import check, require_commands, require_runs, warnings  # noqa: PLC0415

    config, source = configuration(arguments)
    config = with_flags(config, arguments)
    require_runs(config, source=source)
    check(config, source=source)
    ended = completed(config)
    if len(ended) == len(config.runs) and not any(one.left for one in ended.values()):
        for one in ended.values():
            print(one.words)
        return OK
    from fusewire_webhook.cli.guarding import guard_until_done  # noqa: PLC0415 - loads the whole webhook

    require_commands(config, source=source)
    require_rules(config)
    start_logging(verbose=arguments.verbose)
    return guard_until_done(config, warnings=warnings(config), before=[one.words for one in ended.values()])


def with_flags(config: Config, arguments: argparse.Namespace) -> Config:
    """The configuration with what the command line says on top.

    A command is guarded alone, under ``--name``, with that run's settings where the configuration has it; without
    a command, ``--name`` picks one of the configured runs.

    Raises:
        ConfigError: ``--name`` picks a run that is not configured, or ``--algorithm`` has several runs to go to.
    """
    runs = dict(config.runs)
    if arguments.command:
        name = arguments.name or (next(iter(runs)) if len(runs) == 1 else DEFAULT_NAME)
        command = tuple(arguments.command)
        known = runs.get(name)
        run = dataclasses.replace(known, command=command) if known is not None else RunConfig(command=command)
        runs = {name: run}
    elif arguments.name is not None:
        if arguments.name not in runs:
            raise ConfigError(
                f"--name: no run {arguments.name!r} is configured"
                + (f"; there are {', '.join(runs)}" if runs else "; give its command after --")
            )
        runs = {arguments.name: runs[arguments.name]}
    if arguments.algorithm is not None:
        if len(runs) != 1:
            raise ConfigError(f"--algorithm: there are {len(runs)} runs; pick one with --name")
        runs = {name: dataclasses.replace(run, algorithm=arguments.algorithm) for name, run in runs.items()}
    prometheus = config.prometheus
    if arguments.rules is not None:
        prometheus = dataclasses.replace(prometheus, rule_files=tuple(arguments.rules))
    return dataclasses.replace(config, runs=runs, prometheus=prometheus)
