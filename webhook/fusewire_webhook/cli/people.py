"""``fusewire trip|pause|resume|reset|reopen|promote|rollback RUN --why …``: what a person decides.

The webhook that serves the runs folder journals and acts. Where none serves, the decision is journaled here, under
the folder's lock, and the next ``fusewire run`` or ``serve`` acts on it: a LOCKED run is reset that way.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import socket
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from fusewire.errors import SnapshotError
from fusewire.snapshots.layout import QUARANTINE
from fusewire_webhook.breaker.events import Command
from fusewire_webhook.breaker.words import to_quarantine
from fusewire_webhook.cli.common import add_config_options, add_run_argument, runs_folder
from fusewire_webhook.errors import CommandError
from fusewire_webhook.settings.runs_folder import RunsFolder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_VERBS = {
    "trip": "stop the attempt as an alert would: roll back, restart with a smaller learning rate",
    "pause": "hold all automatic actions of the run; the trainer goes on",
    "resume": "end a pause; the answer says which trip alerts it held, and that they act when reported again",
    "reset": "let a LOCKED run start again, with its budgets restored; from a snapshot that you choose with --to",
    "reopen": "let a COMPLETED run go on from its newest snapshot, with a command that has more to do",
    "promote": "make a snapshot the stable one",
    "rollback": "stop the attempt and go back to a snapshot; newer ones, stable ones too, go to quarantine",
}

_TO = {
    "rollback": "step or name of a snapshot, also of one that a restart, or of a stable one that a rollback or "
    "reset of yours, set aside",
    "reset": "step or name of the snapshot to start from (default: after a divergence the last stable one, else "
    "the newest clean one)",
}
"""Of the verbs that can name what the run goes on from."""


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    for verb, text in _VERBS.items():
        parser = subparsers.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_run_argument(parser)
        parser.add_argument("--why", required=True, help="reason, kept in the journal")
        parser.add_argument("--who", default=None, help="your name, kept in the journal (default: user@host)")
        if verb == "resume":
            parser.add_argument(
                "--dismiss",
                action="store_true",
                help="the trip alerts that the pause held do not act when they are reported again; new ones do",
            )
        if verb == "promote":
            parser.add_argument("--snapshot", required=True, metavar="STEP|NAME", help="its step or name")
        if verb in _TO:
            target = parser.add_mutually_exclusive_group(required=verb == "rollback")
            target.add_argument("--to", dest="snapshot", metavar="STEP|NAME", help=_TO[verb])
            target.add_argument("--scratch", action="store_true", help="start from scratch: every snapshot goes")
            parser.add_argument(
                "--yes", action="store_true", help="do not ask before stable snapshots go to quarantine"
            )
        add_config_options(parser)
        parser.set_defaults(handler=_decide, verb=verb)


def _decide(arguments: argparse.Namespace) -> int:
    from fusewire_webhook.cli.client import ask  # noqa: PLC0415 - aiohttp is slow to load

    folder = runs_folder(arguments)
    goes_back = arguments.verb in _TO and (arguments.scratch or arguments.snapshot is not None)
    aside, confirmed = _set_aside(folder, arguments) if goes_back else ("", False)
    command = Command(
        at=time.time(),
        verb=cast(Any, arguments.verb),
        who=arguments.who or f"{getpass.getuser()}@{socket.gethostname()}",
        why=_text(arguments.why),
        snapshot=getattr(arguments, "snapshot", None),
        scratch=getattr(arguments, "scratch", False),
        source="cli",
        dismiss=getattr(arguments, "dismiss", False),
    )
    body: dict[str, Any] = {"who": command.who, "why": command.why, "source": "cli", "scratch": command.scratch}
    if command.snapshot is not None:
        body["snapshot"] = command.snapshot
    if command.dismiss:
        body["dismiss"] = True
    if confirmed:
        body["confirm"] = True
    answer = ask(folder, "POST", f"/api/runs/{arguments.run}/{command.verb}", body)
    if answer is not None:
        print(f"{arguments.run}: {answer['state']}: {answer['decision'] or command.verb}")
    else:
        with folder.locked():
            back = command.verb in _TO
            snapshot = snapshot_name(folder, arguments.run, command.snapshot, restorable=back)
            asyncio.run(journal_only(folder, arguments.run, replace(command, snapshot=snapshot)))
        print(f"{arguments.run}: journaled; nothing guards this folder now, the next fusewire run acts on it")
    if aside:
        print(aside)
    return 0


def _set_aside(folder: RunsFolder, arguments: argparse.Namespace) -> tuple[str, bool]:
    """Tell what going back puts into quarantine, and ask where stable snapshots are among it.

    Returns:
        Where they will lie, in words; whether the person said yes.

    Raises:
        CommandError: the answer is no, or nobody can be asked.
    """
    from fusewire.snapshots.store import SnapshotStore  # noqa: PLC0415 - loads numpy

    store = SnapshotStore(folder.root / arguments.run)
    try:
        target = None if arguments.scratch else store.find(arguments.snapshot, restorable=True).name
        newer = store.after(target)
    except SnapshotError:
        return "", arguments.yes  # whoever journals it refuses it
    stable = sum(info.state == "promoted" for info in newer)
    if not newer:
        return "", arguments.yes
    words = to_quarantine(len(newer), stable)
    if stable and not arguments.yes:
        going = f"going back to {target or 'the start'} moves {words}"
        if not sys.stdin.isatty():
            raise CommandError(f"{arguments.run}: {going}: say --yes if that is meant")
        print(f"{arguments.run}: {going}. Go on? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError(f"{arguments.run}: nothing was done")
    back = "; a stable one comes back with `fusewire rollback --to` its step" if stable else ""
    return (
        f"{arguments.run}: {words}: {folder.root / arguments.run / QUARANTINE}{back}",
        arguments.yes or stable > 0,
    )


def snapshot_name(folder: RunsFolder, run: str, given: str | None, *, restorable: bool = False) -> str | None:
    """The snapshot that a person means by its step or name (see ``SnapshotStore.find``).

    Raises:
        CommandError: the run has none.
    """
    if given is None:
        return None
    from fusewire.snapshots.store import SnapshotStore  # noqa: PLC0415 - loads numpy

    try:
        return SnapshotStore(folder.root / run).find(given, restorable=restorable).name
    except SnapshotError as error:
        raise CommandError(f"{run}: {error}") from error


async def journal_only(folder: RunsFolder, run: str, command: Command) -> None:
    """Store a decision while no webhook serves the folder; the caller holds its lock.

    Raises:
        CommandError: the run was never guarded here, or the decision is not possible in its state.
        JournalError: it could not be stored.
    """
    from fusewire_webhook.breaker.transition import fold, refusal  # noqa: PLC0415
    from fusewire_webhook.engine.journal import Journal  # noqa: PLC0415

    journal = Journal(folder.journal)
    try:
        events = [entry.event for entry in journal.read(run)]
        if not events:
            raise CommandError(f"no run {run!r} was ever guarded in {folder.root}")
        why_not = refusal(fold(events), command)
        if why_not is not None:
            raise CommandError(f"{run}: {why_not}")
        await journal.append(run, command)
    finally:
        journal.close()


def _text(text: str) -> str:
    if not text.strip():
        raise CommandError("--why: is empty; the journal keeps who decided and why")
    return text.strip().encode(errors="replace").decode()
