"""Runs that are completed already: what ``fusewire run`` says of them, and whether it starts anything at all."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import FusewireError
from fusewire.snapshots import SnapshotStore
from fusewire_webhook.breaker.actions import owed
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.breaker.view import RunView, held_back, view_of
from fusewire_webhook.breaker.words import plain
from fusewire_webhook.cli.common import moment
from fusewire_webhook.cli.progress import last_snapshot
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.settings.config import Config
from fusewire_webhook.settings.runs_folder import RunsFolder


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A run that was completed before."""

    words: str
    """When and where, how to look at it, how to go on: one line each."""
    left: bool
    """Something is left to do: a person's promotion, or a verdict on its last snapshot that can still come."""


def completed(config: Config) -> dict[str, Completed]:
    """Those of the configured runs that are, by name.

    Raises:
        ConfigError: another process guards the folder.
        JournalError: the journal cannot be read.
    """
    folder = RunsFolder(Path(config.runs_dir))
    if not folder.journal.exists():
        return {}
    with folder.locked():
        journal = Journal(folder.journal, read_only=True)
        found = {run: _completed(journal, run, folder.root, config.runs_dir) for run in config.runs}
    return {run: one for run, one in found.items() if one is not None}


def _completed(journal: Journal, run: str, root: Path, runs_dir: str) -> Completed | None:
    state, at = RunState(), 0.0
    for entry in journal.read(run):
        before, state = state, fold([entry.event], state)
        if state.phase != before.phase:
            at = entry.event.at
    if state.phase != "completed":
        return None
    where = f"{run} --runs {shlex.quote(runs_dir)}"
    step = f", at step {state.step}" if state.step else ""
    view = view_of(run, 0, state)
    last = _doubtful_last(view)
    lines = (
        f"{run}: COMPLETED before, on {moment(at)}{step} (attempt {state.attempt})",
        *last_snapshot(view, ()),
        f"what happened: fusewire log {where}",
        *([f"to go on from {last}, first: fusewire promote {where} --snapshot {last} --why '…'"] if last else []),
        f"to train it further: fusewire reopen {where} --why '…', then the command again, with more to do",
        "to train anew: the command with another --name",
    )
    left = bool(owed(state)) or _awaits_a_verdict(state, root / run)
    return Completed(words="\n  ".join(map(plain, lines)), left=left)


def _doubtful_last(view: RunView) -> str:
    """The snapshot with which the run ended, where it is neither stable nor rejected; empty: it is no such one.

    What reopens the run passes over it: whatever nobody saw is not clean.
    """
    newest = max((*view.promoted, *view.unpromoted), key=lambda one: (one["attempt"], one["step"]), default=None)
    return newest["name"] if newest in view.unpromoted and not newest["rejected"] else ""


def _awaits_a_verdict(state: RunState, run_dir: Path) -> bool:
    view = view_of(run_dir.name, 0, state)
    known = {one.name: one for one in state.unpromoted}
    try:
        candidates = SnapshotStore(run_dir).candidates()
    except (FusewireError, OSError):
        return True  # the webhook says what is wrong with them
    return any(
        not held_back(view, attempt=info.attempt, step=info.step)
        and not ((one := known.get(info.name)) is not None and (one.rejected or one.final))
        for info in candidates
    )
