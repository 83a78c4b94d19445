"""``fusewire demo``: see it at work, on a run that is wrecked on purpose."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fusewire_webhook.demo.scenarios import SCENARIOS, Scenario
from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from rich.console import Console

WIDTH = 120
"""Columns where the output is no terminal."""


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="see it at work on a run that is wrecked on purpose",
        description="Train PPO on CartPole under `fusewire run`, let a fault strike, and print what became of it.",
        epilog="Exit code 0 only if all has happened that the fault's scenario promises, such as the recovery.",
    )
    parser.add_argument(
        "--fault", choices=tuple(SCENARIOS), default="lr-spike", help="what goes wrong (default: lr-spike)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where to make a fresh folder (default: runs)"
    )
    parser.set_defaults(handler=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415 - `fusewire --help` need not load it

    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("gymnasium") is None:
        raise ConfigError("the demonstration trains with torch and gymnasium: pip install 'fusewire[trainer]'")
    folder = arguments.runs / f"demo-{arguments.fault}-{time.strftime('%Y%m%d-%H%M%S')}"
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH, soft_wrap=True)
    return asyncio.run(_show(SCENARIOS[arguments.fault], folder, console))


async def _show(scenario: Scenario, folder: Path, console: Console) -> int:
    """Show it; SIGTERM cleans up as Ctrl-C does."""
    from fusewire_webhook.demo.driver import demonstrate  # noqa: PLC0415

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await demonstrate(scenario, folder, console=console)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
