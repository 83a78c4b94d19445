"""``fusewire demo``: see it at work, on a run that is wrecked on purpose."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fusewire_webhook.demo.scenarios import SCENARIOS
from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="see it at work on a run that is wrecked on purpose",
        description="Train PPO on CartPole under `fusewire run`, let a fault strike, and print what became of it.",
        epilog="Exit code 0 only if the run was tripped, rolled back, restarted, and has recovered.",
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
    return asyncio.run(_show(arguments.fault, folder, Console()))


async def _show(name: str, folder: Path, console: object) -> int:
    from rich.console import Console  # noqa: PLC0415

    from fusewire_webhook.demo.driver import demonstrate  # noqa: PLC0415

    assert isinstance(console, Console)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await demonstrate(SCENARIOS[name], folder, console=console)
    raise KeyboardInterrupt
