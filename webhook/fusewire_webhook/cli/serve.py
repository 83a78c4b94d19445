"""``fusewire serve``: the webhook as a service, for a Prometheus and an Alertmanager that run already."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fusewire_webhook.cli.check import require_rules
from fusewire_webhook.cli.common import add_config_options, configuration, start_logging
from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

DEFAULT_PORT = 9095


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="the webhook as a service, for your own Prometheus and Alertmanager",
        description="Guard the configured runs until stopped. Trainers outlive the webhook: the next `fusewire "
        "serve` finds them again and goes on where this one stood. Needs prometheus.url and alertmanager.url.",
    )
    parser.add_argument("--verbose", action="store_true", help="everything that the parts have to say, on stderr")
    add_config_options(parser)
    parser.set_defaults(handler=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.cli.guarding import serve_until_stopped  # noqa: PLC0415 - loads the whole webhook
    from fusewire_webhook.settings.checks import check, require_commands, require_runs, warnings  # noqa: PLC0415

    config, source = configuration(arguments)
    require_runs(config, source=source)
    check(config, source=source)
    for key, url in (("prometheus.url", config.prometheus.url), ("alertmanager.url", config.alertmanager.url)):
        if url is None:
            raise ConfigError(
                f"{source}: {key}: is missing; fusewire serve works with your servers, fusewire run starts its own"
            )
    require_commands(config, source=source)
    require_rules(config)
    start_logging(verbose=arguments.verbose)
    return serve_until_stopped(config, default_port=DEFAULT_PORT, warnings=warnings(config))
