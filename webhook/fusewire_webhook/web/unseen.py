"""Optimistic concurrency of people: who decides on an old picture is told what was decided since.

A client sends the journal number that its picture is folded to (``seen_seq``). Bookkeeping since then is no
objection; a decision is, and a person's one is named even where more happened after it. Commands of a run take
turns, so of two that come at once the second one sees the first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from aiohttp import web

from fusewire_webhook.errors import UnseenError
from fusewire_webhook.web.deps import Deps

TURNS: web.AppKey[defaultdict[str, asyncio.Lock]] = web.AppKey("turns", defaultdict)
"""Commands wait here for each other, per run."""

_DECISIVE = frozenset(
    {
        "command", "attempt_started", "start_failed", "process_exited", "exit_classified", "stop_confirmed",
        "stop_unconfirmed", "rolled_back", "rollback_failed", "would_have_acted",
    }
)  # fmt: skip
_LARGEST_PAGE = 10_000


async def refuse_unseen(deps: Deps, run: str, seen_seq: int | None) -> None:
    """Return where nothing was decided on the run after ``seen_seq``; None: the client does not ask.

    Raises:
        UnseenError: something was; the message says what.
        UnknownRunError: no such run is guarded.
    """
    view = deps.engine.view(run)
    if seen_seq is None or view.seq <= seen_seq:
        return
    entries = await deps.read_log(run, seen_seq, _LARGEST_PAGE)
    acting = view.procedure is not None or bool(view.held_trip)
    decided = [entry for entry in entries if _decides(entry, acting=acting)]
    if decided:
        people = [entry for entry in decided if entry["kind"] == "command"]
        told = dict.fromkeys(entry["words"] for entry in (*people[-1:], decided[-1]))
        raise UnseenError(f"not done: since you looked at {run}, this happened: {'; then '.join(told)}")


def _decides(entry: dict[str, Any], *, acting: bool) -> bool:
    """An alert decides something only while its action is in flight; what the action leads to decides by itself."""
    if entry["kind"] == "alert_reported":
        return acting and entry["action"] == "trip" and entry["status"] == "firing"
    return entry["kind"] in _DECISIVE
