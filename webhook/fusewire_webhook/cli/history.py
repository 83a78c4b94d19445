"""``fusewire log RUN`` and ``fusewire replay RUN``: the journal, read-only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fusewire_webhook.cli.common import add_config_options, add_run_argument, moment, runs_folder
from fusewire_webhook.errors import CommandError
from fusewire_webhook.settings.runs_folder import RunsFolder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from fusewire_webhook.breaker.view import RunView
    from fusewire_webhook.engine.journal import Entry


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    log = subparsers.add_parser(
        "log", help="what happened to a run, and what was decided", description="Print the journal of a run."
    )
    add_run_argument(log)
    log.add_argument("--all", action="store_true", help="bookkeeping and repeated alerts too")
    log.add_argument("--json", action="store_true", help="one JSON object a line, with every field")
    add_config_options(log)
    log.set_defaults(handler=_log)
    replay = subparsers.add_parser(
        "replay",
        help="prove that the journal gives the present state",
        description="Fold the journal of a run again, from its first event, and compare the result with what the "
        "serving webhook says. Exit code 1 where they differ.",
    )
    add_run_argument(replay)
    add_config_options(replay)
    replay.set_defaults(handler=_replay)


def entries_of(folder: RunsFolder, run: str) -> list[Entry]:
    """A run's journal entries, oldest first.

    Raises:
        CommandError: there are none.
        JournalError: the journal cannot be read.
    """
    from fusewire_webhook.engine.journal import Journal  # noqa: PLC0415

    entries = list(Journal(folder.journal, read_only=True).read(run))
    if not entries:
        raise CommandError(f"no run {run!r} was ever guarded in {folder.root}")
    return entries


def _log(arguments: argparse.Namespace) -> int:
    entries = entries_of(runs_folder(arguments), arguments.run)
    for line in _as_json(entries) if arguments.json else _as_text(entries, everything=arguments.all):
        print(line)
    return 0


def _as_json(entries: list[Entry]) -> Iterator[str]:
    for entry in entries:
        event = entry.event
        yield json.dumps({"seq": entry.seq, "at": event.at, "kind": event.kind, **event.payload()})


def _as_text(entries: list[Entry], *, everything: bool) -> Iterator[str]:
    """One line an event, and below it the decision that it led to; repeated alerts are counted at the first one."""
    from fusewire_webhook.breaker.events import WouldHaveActed  # noqa: PLC0415
    from fusewire_webhook.breaker.transition import fold  # noqa: PLC0415
    from fusewire_webhook.breaker.words import OLDER, QUIET, Repeats, describe, verdict  # noqa: PLC0415

    state, repeats = fold(()), Repeats()
    told: set[str] = set()
    lines: dict[int, list[str]] = {}
    again: dict[int, list[float]] = {}
    for entry in entries:
        before, state = state, fold([entry.event], state)
        decided = state.decision if state.decision != before.decision else ""
        first, older = repeats.of(entry.seq, entry.event)
        if first != entry.seq and not decided and not everything:
            again.setdefault(first, []).append(entry.event.at)
            continue
        if isinstance(entry.event, WouldHaveActed) and entry.event.words in told and not everything:
            continue
        told.add(decided)
        lines[entry.seq] = []
        if everything or decided or not isinstance(entry.event, QUIET):
            words = describe(entry.event) + (OLDER if older else "")
            lines[entry.seq].append(f"{moment(entry.event.at)}  {entry.seq:>6}  {words}")
        if decided:
            lines[entry.seq].append(f"{'':29}→ {verdict(state.phase, decided)}")
    for number, text in lines.items():
        yield from text
        if number in again:
            yield f"{'':29}  reported {len(again[number])}× again, last at {moment(again[number][-1])}"


def _replay(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.breaker.transition import fold  # noqa: PLC0415
    from fusewire_webhook.breaker.view import view_of  # noqa: PLC0415
    from fusewire_webhook.cli.client import ask  # noqa: PLC0415

    folder = runs_folder(arguments)
    present = ask(folder, "GET", f"/api/runs/{arguments.run}")
    entries = entries_of(folder, arguments.run)
    if present is not None:
        entries = [entry for entry in entries if entry.seq <= present["seq"]]
    state = fold(entry.event for entry in entries)
    view = view_of(arguments.run, entries[-1].seq, state)
    differing = [] if present is None else differences(view, present)
    for name, folded, said in differing:
        print(f"{name}: the journal gives {folded!r}, the webhook says {said!r}")
    if differing:
        print(f"{arguments.run}: {len(entries)} events do not give the present state")
        return 1
    proved = "that is what the serving webhook says" if present is not None else "no webhook serves to compare with"
    print(
        f"{arguments.run}: {len(entries)} events give {view.state}, attempt {view.attempt}, "
        f"learning-rate scale {view.lr_scale:g}; {proved}"
    )
    return 0


def differences(view: RunView, present: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Fields in which a folded view and the API's answer differ: (name, folded, said).

    Of the step it is ``journaled_step`` that the journal gives.
    """
    from fusewire_webhook.breaker.view import NOT_JOURNALED  # noqa: PLC0415

    folded = json.loads(json.dumps(view.to_json()))
    names = [field.name for field in fields(view) if field.name not in {"seq", *NOT_JOURNALED}]
    return [(name, folded[name], present.get(name)) for name in names if folded[name] != present.get(name)]
