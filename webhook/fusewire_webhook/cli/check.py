"""``fusewire check``: is what is configured going to work? Nothing is started or changed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fusewire_webhook.cli.common import add_config_options, configuration
from fusewire_webhook.errors import ConfigError, PrometheusError, WebhookError
from fusewire_webhook.settings.config import Config
from fusewire_webhook.settings.runs_folder import RunsFolder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from fusewire_webhook.settings.rulefile import Problem

_T = TypeVar("_T")

RESEND_SECONDS = 10.0
"""Longest ``--rules.alert.resend-delay``: an Alertmanager that was away learns of an alert that much later."""


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "check",
        help="configuration, rules and your Alertmanager's routes",
        description="Check the configuration file, the rules, the configuration that fusewire would generate, and, "
        "where addresses are given, your own Prometheus and Alertmanager. Exit code 1 where something is wrong.",
    )
    parser.add_argument(
        "--rules", action="append", metavar="FILE", help="check these rules instead of the configured"
    )
    parser.add_argument(
        "--webhook-url", metavar="URL", help="address of /alerts as your Alertmanager reaches it (default: any)"
    )
    add_config_options(parser)
    parser.set_defaults(handler=_check)


def _check(arguments: argparse.Namespace) -> int:
    config, source = configuration(arguments)
    steps: list[tuple[str, Callable[[], Sequence[str]]]] = [
        (f"configuration ({source})", lambda: _configuration_problems(config, source)),
    ]
    rules = arguments.rules or config.prometheus.rule_files
    if rules or config.prometheus.url is None:
        steps.append(("rules", lambda: _rule_problems(rules, config)))
    if None in (config.prometheus.url, config.alertmanager.url):
        steps.append(("generated configuration", lambda: generated_problems(config)))
    if config.prometheus.url is not None:
        prometheus_url, scrape = config.prometheus.url, config.prometheus.scrape_interval_seconds
        steps.append(
            (
                f"Prometheus {prometheus_url}",
                lambda: asyncio.run(ask(prometheus_problems, prometheus_url, scrape, config)),
            )
        )
    if config.alertmanager.url is not None:
        alertmanager_url, webhook_url = config.alertmanager.url, arguments.webhook_url
        steps.append(
            (
                f"Alertmanager {alertmanager_url}",
                lambda: asyncio.run(ask(alertmanager_problems, alertmanager_url, webhook_url)),
            )
        )
    folder = RunsFolder(Path(config.runs_dir))
    if (address := folder.address()) is not None:
        steps.append((f"webhook {address.url}", lambda: serving_problems(folder)))
    return 1 if sum([_report(title, step) for title, step in steps]) else 0


def _report(title: str, step: Callable[[], Sequence[str]]) -> bool:
    """Print what a step found; true where something is wrong."""
    try:
        found = step()
    except WebhookError as error:
        found = [str(error)]
    wrong = [text for text in found if not text.startswith("warning: ")]
    print(f"{'WRONG' if wrong else 'ok':5}  {title}")
    for text in found:
        print(f"       {text}")
    return bool(wrong)


def require_rules(config: Config) -> None:
    """Refuse rules that could not stop a run as they are: the configured ones, or those that your Prometheus has.

    Of a Prometheus that does not answer now the watch tells later.

    Raises:
        ConfigError: what is wrong, a line for each.
    """
    from fusewire_webhook.settings.rulecheck import configured_problems  # noqa: PLC0415

    if config.prometheus.url is None:
        found = configured_problems(config.prometheus.rule_files, config)
    else:
        scrape = config.prometheus.scrape_interval_seconds
        try:
            found = asyncio.run(ask(_loaded_problems, config.prometheus.url, scrape))
        except PrometheusError:
            found = []
    wrong = [str(problem) for problem in found if problem.severity == "error"]
    if wrong:
        raise ConfigError(*wrong)


def _rule_problems(entries: Sequence[str], config: Config) -> list[str]:
    from fusewire_webhook.settings.rulecheck import configured_problems  # noqa: PLC0415

    return list(map(str, configured_problems(entries, config)))


def _configuration_problems(config: Config, source: str) -> list[str]:
    from fusewire_webhook.settings.checks import require_commands, warnings  # noqa: PLC0415

    require_commands(config, source=source)
    found = list(warnings(config))
    if not config.runs and source != "command line":
        found.append("runs: none is named, so only `fusewire run --name NAME -- COMMAND …` guards anything with it")
    return [f"warning: {text}" for text in found]


def _alerts(files: Sequence[str]) -> set[str]:
    """Names of the alerts in rule files that can be read; ``rulecheck`` says why others cannot."""
    from fusewire_webhook.settings.rulefile import Unreadable, read  # noqa: PLC0415

    found: set[str] = set()
    for file in files:
        with contextlib.suppress(Unreadable):
            found.update(rule.name for rule in read(Path(file)) if rule.is_alert)
    return found


def generated_problems(config: Config) -> list[str]:
    """What promtool and amtool say of the configuration that ``fusewire run`` would write."""
    import yaml  # noqa: PLC0415

    from fusewire_webhook.settings.packs import rule_files  # noqa: PLC0415
    from fusewire_webhook.settings.people import read_people  # noqa: PLC0415
    from fusewire_webhook.stack.binaries import resolve_rule_files  # noqa: PLC0415
    from fusewire_webhook.stack.generate import (  # noqa: PLC0415
        WebhookAddress,
        alertmanager_config,
        prometheus_config,
    )
    from fusewire_webhook.watch.deadman import WATCHDOG  # noqa: PLC0415

    webhook = WebhookAddress(
        host=config.listen.host, port=config.listen.port or 9095, token_file=config.auth.alert_token_file
    )
    rules = resolve_rule_files(rule_files(config.prometheus.rule_files))
    people = read_people(config.alertmanager.people_file)
    prometheus = prometheus_config(
        webhook=webhook,
        alertmanager_url=config.alertmanager.url or "http://127.0.0.1:9093",
        rule_files=rules,
        scrape_interval=config.prometheus.scrape_interval_seconds,
        evaluation_interval=config.prometheus.evaluation_interval_seconds,
    )
    found: list[str] = []
    if config.prometheus.url is None and WATCHDOG not in _alerts(rules):
        found.append(
            f"prometheus.rule_files: no rule {WATCHDOG} is in them, so the watch would stay degraded and nothing "
            "would be promoted; add default, or rules/infrastructure.rules.yaml"
        )
    with tempfile.TemporaryDirectory() as folder:
        for tool, name, value in (
            (["promtool", "check", "config"], "prometheus.yml", prometheus),
            (["amtool", "check-config"], "alertmanager.yml", alertmanager_config(webhook=webhook, people=people)),
        ):
            path = Path(folder) / name
            path.write_text(yaml.safe_dump(value, sort_keys=False))
            found += _tool_problems(tool, path)
    return found


def _tool_problems(tool: Sequence[str], path: Path) -> list[str]:
    import subprocess  # noqa: PLC0415

    program = shutil.which(tool[0])
    if program is None:
        return [f"warning: {tool[0]} is not on PATH: {path.name} is not checked"]
    done = subprocess.run([program, *tool[1:], str(path)], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 0:
        return []
    return [f"{path.name}: {' '.join((done.stderr or done.stdout).split())}"]


async def ask(question: Callable[..., Awaitable[list[_T]]], url: str, *arguments: Any) -> list[_T]:
    import aiohttp  # noqa: PLC0415

    async with aiohttp.ClientSession() as session:
        return await question(url, session, *arguments)


async def _loaded_problems(url: str, session: Any, scrape_seconds: float) -> list[Problem]:
    from fusewire_webhook.settings.rulecheck import check_loaded  # noqa: PLC0415
    from fusewire_webhook.watch.prometheus import Prometheus  # noqa: PLC0415

    return check_loaded(await Prometheus(url, session=session).rules(), scrape_seconds=scrape_seconds)


def serving_problems(folder: RunsFolder) -> list[str]:
    """What the webhook that serves the folder says against its watch now, and of runs that no rule sees."""
    from fusewire_webhook.cli.client import ask as ask_webhook  # noqa: PLC0415
    from fusewire_webhook.engine.sight import not_watched  # noqa: PLC0415

    overview = ask_webhook(folder, "GET", "/api/runs")
    if overview is None:
        return []
    monitoring, found = overview["monitoring"], []
    found += [f"{part}: {words}" for part, words in monitoring["problems"].items()]
    found += [f"warning: {part}: {words}" for part, words in monitoring["remarks"].items()]
    for view in overview["runs"]:
        if words := not_watched(view["watch"], time.time()):
            patient = "warning: " if view["watch"]["state"] == "unattached" else ""  # a plain command may mean it
            found.append(f"{patient}{view['run']}: {words}")
    return found


async def prometheus_problems(url: str, session: Any, scrape_seconds: float, config: Config) -> list[str]:
    import yaml  # noqa: PLC0415

    from fusewire_webhook.settings import promconfig  # noqa: PLC0415
    from fusewire_webhook.settings.amconfig import duration  # noqa: PLC0415
    from fusewire_webhook.settings.rulecheck import check_loaded  # noqa: PLC0415
    from fusewire_webhook.watch.deadman import NOT_RELOADED  # noqa: PLC0415
    from fusewire_webhook.watch.deadman import rule_problems as loaded_rule_problems  # noqa: PLC0415
    from fusewire_webhook.watch.prometheus import Prometheus  # noqa: PLC0415

    client = Prometheus(url, session=session)
    groups, now, runtime = await client.rules(), await client.now(), await client.runtime()
    found = [] if runtime.reload_succeeded else [NOT_RELOADED["prometheus"]]
    found += loaded_rule_problems(groups, now=now, changed_at=runtime.changed_at)
    found += map(str, check_loaded(groups, scrape_seconds=scrape_seconds))
    found += promconfig.problems(
        yaml.safe_load(await client.config()) or {}, token=config.auth.alert_token_file is not None
    )
    found += promconfig.unscraped(await client.targets(), config.runs)
    delay = (await client.flags()).get("rules.alert.resend-delay", "1m")
    seconds = duration(delay)
    if seconds is None or seconds > RESEND_SECONDS:
        found.append(
            f"--rules.alert.resend-delay is {delay}: an Alertmanager that was away learns of an alert that much "
            "later; start Prometheus with --rules.alert.resend-delay=5s"
        )
    return found


async def alertmanager_problems(url: str, session: Any, webhook_url: str | None) -> list[str]:
    import yaml  # noqa: PLC0415

    from fusewire_webhook.settings import amconfig  # noqa: PLC0415
    from fusewire_webhook.watch.deadman import NOT_RELOADED  # noqa: PLC0415
    from fusewire_webhook.watch.prometheus import Alertmanager  # noqa: PLC0415

    client = Alertmanager(url, session=session)
    status = await client.status()
    found: list[str] = []
    with contextlib.suppress(PrometheusError):  # its metrics may not be for everybody
        found += [] if await client.reload_succeeded() else [NOT_RELOADED["alertmanager"]]
    original = status.get("config", {}).get("original", "")
    try:
        config = yaml.safe_load(original)
        return [*found, *amconfig.problems(config or {}, webhook_url=webhook_url or amconfig.ANY_ADDRESS)]
    except (yaml.YAMLError, ValueError, AttributeError) as error:
        return [*found, f"its configuration is not understood: {error}"]
