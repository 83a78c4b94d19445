"""The command line ``fusewire``.

Each sub-command is a module of this package with ``register(subparsers)``. It adds its parser and sets
``handler=function`` as a default; the function takes the parsed arguments and returns the exit code. Errors of
this project become one line on stderr.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from fusewire.errors import FusewireError
from fusewire_webhook.errors import CommandError, ConfigError, WebhookError

OK = 0
FAILED = 1
BAD_INPUT = 2
LOCKED = 3
INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 completed, 1 failed, 2 bad input, 3 a run is LOCKED, 130 ended by Ctrl-C (143 by SIGTERM, 129 "
    "by a closed terminal)."
)

Handler = Callable[[argparse.Namespace], int]

_COMMANDS = (
    "run", "serve", "status", "people", "history", "check", "snapshots", "backtest", "postmortem", "demo",
)  # fmt: skip
"""Modules of sub-commands in the order of ``--help``."""

_EXTRA = ("aiohttp", "yaml", "rich")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every sub-command that is installed."""
    parser = argparse.ArgumentParser(
        prog="fusewire",
        description="A circuit breaker for RL training, wired from Prometheus and Alertmanager.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"fusewire {importlib.metadata.version('fusewire')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = f"{__name__}.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:  # noqa: PLR0911 - one return per kind of error
    """Run one command and return its exit code."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"fusewire: {', '.join(missing)} not installed: pip install 'fusewire[webhook]' brings the "
            "command line and the webhook",
            file=sys.stderr,
        )
        return BAD_INPUT
    arguments = build_parser().parse_args(argv)
    handler: Handler = arguments.handler
    try:
        return handler(arguments)
    except (ConfigError, CommandError) as error:
        return _say(error, BAD_INPUT)
    except (WebhookError, FusewireError) as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone (`fusewire log RUN | head`); what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        return _say(_of_the_system(error), FAILED)


def _of_the_system(error: OSError) -> CommandError:
    """What the disk or the network refused, with what helps where that is known."""
    remedy = "; free disk space" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
    where = "" if error.filename is None else f"{error.filename}: "
    return CommandError(f"{where}{error.strerror or error}{remedy}")


def _say(error: Exception, code: int) -> int:
    problems = error.problems if isinstance(error, ConfigError) else (str(error),)
    for problem in problems:
        print("fusewire: " + " ".join(problem.split()), file=sys.stderr)
    return code
