"""A run's journal, newest first and without bookkeeping, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

ReadLog = Callable[[str, int, int], Awaitable[list[dict[str, Any]]]]

LEFT_OUT = frozenset({"steps_watched"})
"""Kinds that a person never looks for and that outnumber all others."""
_FIRST_WINDOW = 1_000
_LARGEST_WINDOW = 10_000
_WINDOWS = 50
"""Most looks back for one page, so that no request keeps the journal busy for long."""


async def timeline(read_log: ReadLog, run: str, *, before: int, limit: int) -> dict[str, Any]:
    """Entries with numbers below ``before``, newest first, at most ``limit``.

    The journal is read forwards only, so this looks back in windows of numbers that grow. ``before`` of the answer
    is where the next page begins; 0: there is nothing older.
    """
    entries: list[dict[str, Any]] = []
    window = _FIRST_WINDOW
    for _ in range(_WINDOWS):
        if before <= 1 or len(entries) >= limit:
            break
        after = max(0, before - 1 - window)
        found = await read_log(run, after, window)  # one number is one entry: a window never holds more
        entries += [e for e in reversed(found) if e["seq"] < before and e["kind"] not in LEFT_OUT]
        before = after + 1
        window = min(2 * window, _LARGEST_WINDOW)
    if len(entries) > limit:
        entries = entries[:limit]
        before = entries[-1]["seq"]
    return {"run": run, "entries": entries, "before": before if before > 1 else 0}
