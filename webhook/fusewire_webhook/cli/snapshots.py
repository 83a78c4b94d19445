"""``fusewire snapshots RUN`` and ``fusewire verify RUN [NAME]``: what lies on the disk, and whether it holds."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire_webhook.cli.common import add_config_options, add_run_argument, configuration, moment
from fusewire_webhook.errors import CommandError, WebhookError
from fusewire_webhook.settings.runs_folder import RunsFolder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from fusewire.snapshots import SnapshotStore

_STYLES = {"promoted": "green", "rejected": "yellow", "quarantined": "dim", "unusable": "red"}


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    table = subparsers.add_parser(
        "snapshots",
        help="the snapshots of a run, and which of them are stable",
        description="List the snapshots of a run in the order in which they were written.",
    )
    add_run_argument(table)
    table.add_argument("--json", action="store_true", help="one JSON object a line")
    add_config_options(table)
    table.set_defaults(handler=_snapshots)
    verify = subparsers.add_parser(
        "verify",
        help="read snapshots and compare them with their hashes",
        description="Verify one snapshot of a run, or all that are not in quarantine. Exit code 1 where one does "
        "not hold.",
    )
    add_run_argument(verify)
    verify.add_argument("name", metavar="SNAPSHOT", nargs="?", help="its step or its name")
    verify.add_argument("--sampled", action="store_true", help="read about 1 GiB of each, chosen at random")
    add_config_options(verify)
    verify.set_defaults(handler=_verify)


def rows(store: SnapshotStore) -> list[dict[str, Any]]:
    """What ``fusewire snapshots`` shows, one snapshot a row; the unusable ones last."""
    active, stable = store.active(), store.stable()
    usable = [
        {
            "name": info.name,
            "step": info.step,
            "attempt": info.attempt,
            "state": info.state,
            "links": [link for link, target in (("stable", stable), ("active", active)) if info == target],
            "size": info.size,
            "time": info.time,
            "why": info.why,
            "restorable": info.restorable,
        }
        for info in store.list()
    ]
    broken = [{"name": name, "state": "unusable", "links": [], "why": why} for name, why in store.unusable()]
    return [*usable, *broken]


def _store(arguments: argparse.Namespace) -> SnapshotStore:
    from fusewire.snapshots import SnapshotStore  # noqa: PLC0415 - loads numpy

    folder = Path(configuration(arguments)[0].runs_dir) / arguments.run
    if not folder.is_dir():
        raise CommandError(f"{folder}: no such run; name the folder of all runs with --runs")
    return SnapshotStore(folder)


def _snapshots(arguments: argparse.Namespace) -> int:
    found = rows(_store(arguments))
    reasons = _reasons(arguments)
    for row in found:
        if row["state"] == "candidate" and not row["why"]:
            row["why"] = reasons.get(row["name"], "")
    if arguments.json:
        for row in found:
            print(json.dumps(row))
    elif found:
        _print_table(found)
    else:
        print(f"{arguments.run}: no snapshots yet")
    return 0


def _reasons(arguments: argparse.Namespace) -> dict[str, str]:
    """Why each candidate is not promoted, as the serving webhook says, else what the journal says last."""
    from fusewire_webhook.breaker.transition import fold  # noqa: PLC0415
    from fusewire_webhook.breaker.view import held_back, view_of  # noqa: PLC0415
    from fusewire_webhook.cli.client import ask  # noqa: PLC0415 - aiohttp is slow to load
    from fusewire_webhook.cli.history import entries_of  # noqa: PLC0415

    folder = RunsFolder(Path(configuration(arguments)[0].runs_dir))
    with contextlib.suppress(WebhookError):
        answer = ask(folder, "GET", f"/api/runs/{arguments.run}/candidates")
        if answer is not None:
            return {one["name"]: "; ".join(one["reasons"]) for one in answer["candidates"]}
        state = fold(entry.event for entry in entries_of(folder, arguments.run))
        view = view_of(arguments.run, 0, state)
        return {
            one.name: held_back(view, attempt=one.attempt, step=one.step) or "; ".join(one.reasons)
            for one in state.unpromoted
        }
    return {}


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - `fusewire --help` need not load it
    from rich.filesize import decimal  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in ("step", "attempt", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("state", "written", "name"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in found:
        table.add_row(
            str(row.get("step", "")),
            str(row.get("attempt", "")),
            decimal(row["size"]) if "size" in row else "",
            " ← ".join((row["state"], *row["links"])),
            moment(row["time"]) if "time" in row else "",
            row["name"],
            escape(row["why"]),
            style=_STYLES.get(row["state"], ""),
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a table that goes into a pipe or file is not cut
    console.print(table)


def _verify(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    if arguments.name:
        find = store.find if arguments.name.isdecimal() else store.get
        names = [find(arguments.name).name]
    else:
        names = sorted(
            {i.name for i in store.list() if i.state != "quarantined"} | {n for n, _ in store.unusable()}
        )
    damaged = 0
    for name in names:
        started = time.perf_counter()
        answer = store.verify(name, "sampled" if arguments.sampled else "full")
        seconds = time.perf_counter() - started
        damaged += not answer.ok
        found = "ok" if answer.ok else "CANNOT BE READ" if answer.unreadable else "DAMAGED"
        print(f"{name}: {found}, {answer.bytes_read:,} bytes read in {seconds:.2f} s")
        for problem in answer.problems:
            print(f"  {problem}")
    if not names:
        print(f"{arguments.run}: nothing to verify")
    return 1 if damaged else 0
