"""``fusewire status``: every run at a glance, or one in detail."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from fusewire_webhook.cli.common import add_config_options, add_run_argument, counted, runs_folder
from fusewire_webhook.errors import CommandError
from fusewire_webhook.settings.runs_folder import RunsFolder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from rich.table import Table

COLOURS = {"closed": "green", "half_open": "yellow", "open": "red", "locked": "bold red", "completed": "blue"}
"""Of the states, for a terminal."""


_FILE_WIDTH = 200
"""Columns of a table that goes to a file or a pipe."""


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="the state of the runs",
        description="Show the runs as the serving webhook sees them; where none serves, as the journal left them.",
    )
    add_run_argument(parser, optional=True)
    parser.add_argument("--json", action="store_true", help="as JSON, with every field")
    add_config_options(parser)
    parser.set_defaults(handler=_status)


def _status(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.cli.client import ask  # noqa: PLC0415

    folder = runs_folder(arguments)
    answer = ask(folder, "GET", "/api/runs")
    overview = answer if answer is not None else journaled(folder)
    if arguments.run is not None:
        overview["runs"] = [view for view in overview["runs"] if view["run"] == arguments.run]
        if not overview["runs"]:
            raise CommandError(f"no run {arguments.run!r} was ever guarded in {folder.root}")
    if arguments.json:
        print(json.dumps(overview, indent=2))
    else:
        show(overview, detailed=arguments.run is not None)
        for line in _unguarded(
            folder, overview["runs"], served=answer is not None, alone=arguments.run is not None
        ):
            print(line)
        address = folder.address() if answer is not None else None
        if address is not None:
            print(f"console {address.url}/")
    return 0


def journaled(folder: RunsFolder) -> dict[str, Any]:
    """What the serving webhook would say, from the journal alone."""
    from fusewire_webhook.breaker.state import RunState  # noqa: PLC0415
    from fusewire_webhook.breaker.transition import fold  # noqa: PLC0415
    from fusewire_webhook.breaker.view import view_of  # noqa: PLC0415
    from fusewire_webhook.engine.journal import Journal  # noqa: PLC0415

    states: dict[str, RunState] = {}
    last: dict[str, int] = {}
    for entry in Journal(folder.journal, read_only=True).read():
        states[entry.run] = fold([entry.event], states.get(entry.run))
        last[entry.run] = entry.seq
    return {
        "runs": [view_of(run, last[run], state).to_json() for run, state in states.items()],
        "monitoring": None,
        "unknown_alerts": [],
    }


def _unguarded(folder: RunsFolder, views: list[dict[str, Any]], *, served: bool, alone: bool) -> list[str]:
    """What to know about attempts that nobody guards; with ``alone`` only of the run that is shown."""
    from fusewire_webhook.actuators.attempt_files import unguarded  # noqa: PLC0415

    if served:
        return [] if alone else unguarded(folder.root, {view["run"] for view in views})
    left = ((view["run"], view["attempt"]) for view in views if view["live"])
    return [line for run, attempt in left if (line := _left_running(folder, run, attempt))]


def _left_running(folder: RunsFolder, run: str, attempt: int) -> str:
    """What to know about an attempt that the journal left running while no webhook serves; empty: it has ended."""
    from fusewire_webhook.actuators.attempt_files import attempt_folder, lives  # noqa: PLC0415

    running = lives(attempt_folder(str(folder.root / run), attempt))
    if running is False:
        return ""
    words = "still runs" if running else "ran then and may run still"
    return (
        f"{run}: attempt {attempt} {words}, and nothing guards it: start the same `fusewire run …` "
        "(or `fusewire serve`) again"
    )


def show(overview: dict[str, Any], *, detailed: bool) -> None:
    """Print it; with ``detailed`` all that is known of each run."""
    from rich.console import Console  # noqa: PLC0415

    from fusewire_webhook.breaker.words import observing, plain  # noqa: PLC0415
    from fusewire_webhook.engine.sight import not_watched  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(table(overview["runs"]))
    monitoring = overview["monitoring"]
    if monitoring is None:
        console.print("No webhook serves this folder now: this is how the journal left it.", markup=False)
    elif monitoring["degraded"]:
        console.print(
            f"The watch is degraded: {'; '.join(monitoring['problems'].values())}", style="bold red", markup=False
        )
    for view in overview["runs"]:
        if words := not_watched(view.get("watch"), time.time()):
            console.print(f"{view['run']}: {words}", style="yellow", markup=False)
    for part, remark in monitoring["remarks"].items() if monitoring else ():
        console.print(f"{part}: {remark}", style="yellow", markup=False)
    for stranger in overview["unknown_alerts"]:
        console.print(
            f"{stranger['alertname']} names the run {stranger['run']!r}, which is not guarded here "
            f"({counted(stranger['count'], 'report')})",
            style="yellow",
            markup=False,
        )
    for view in overview["runs"]:
        if view["mode"] == "observe" and view["would_have_tripped"]:
            words = f"{view['run']}: {observing(view['would_have_tripped'])}"
            console.print(words, style="yellow", markup=False)
    for view in overview["runs"] if detailed else ():
        for line in details(view):
            console.print(plain(line), markup=False)


def table(views: list[dict[str, Any]], *, decisions: bool = True) -> Table:
    """A row for each run; with ``decisions`` its last one too."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from fusewire_webhook.breaker.words import plain  # noqa: PLC0415
    from fusewire_webhook.engine.sight import not_watched, standing  # noqa: PLC0415

    now = time.time()
    rows = Table(box=None, pad_edge=False, header_style="dim")
    columns = ["run", "state", "attempt", "step", "lr scale", "stable step", "trips", "last decision"]
    for name in columns if decisions else columns[:-1]:
        rows.add_column(name)
    for view in views:
        colour = COLOURS.get(view["state"], "")
        would = view["would_have_tripped"] if view["mode"] == "observe" else {}
        colour = "yellow" if would and view["state"] == "closed" else colour
        held = " (paused)" if view["paused"] else " (observing)" if view["mode"] == "observe" else ""
        watch = view.get("watch")
        if not_watched(watch, now):
            held += " [yellow](not watched)[/]"
        cells = [
            escape(view["run"]),
            f"[{colour}]{view['state'].upper()}[/]{held}",
            str(view["attempt"]),
            f"{view['step']}{standing(watch, now)}",
            f"{view['lr_scale']:g}",
            str(view["promoted"][-1]["step"]) if view["promoted"] else "–",
            f"{sum(view['trips'].values())}{f' ({sum(would.values())} observed)' if would else ''}",
            escape(plain(view["decision"])),
        ]
        rows.add_row(*cells if decisions else cells[:-1])
    return rows


def details(view: dict[str, Any]) -> list[str]:
    """What else is known of one run, a line each."""
    lines = []
    if view["reason"]:
        lines.append(f"locked because: {view['reason']}")
    lines += [f"paused by {pause['who']} ({pause['source']}): {pause['why']}" for pause in view["pauses"]]
    lines += [f"held while paused: {words}" for words in view["held"]]
    if view["held"]:
        lines.append("a resume lets it act as soon as it is reported again, `fusewire resume --dismiss` does not")
    if view["incident"] is not None:
        lines.append(
            f"incident {view['incident']['number']}: {counted(view['divergences'], 'divergence')}; it ends when a "
            f"snapshot at step {view['incident_ends_at']} or further is promoted"
        )
    stable = view["promoted"][-1]["name"] if view["promoted"] else ""
    lines.append(f"stable snapshot: {stable or 'none yet, so a divergence has none to go back to'}")
    if view["active"]:
        lines.append(f"active snapshot: {view['active']}")
    lines.append(f"trips: {_counts(view['trips'])}; restarts: {_counts(view['restarts'])}")
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
