"""The snapshot ladder of a run: what lies on the disk, newest first, each rung with its state and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fusewire.snapshots import SnapshotStore
from fusewire_webhook.cli.snapshots import rows


def ladder(store: SnapshotStore, verdicts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rungs; a candidate says what the gate holds against it. Blocks on the disk.

    Raises:
        SnapshotError, OSError: the folder cannot be read.
    """
    waiting = {verdict["name"]: verdict for verdict in verdicts}
    found = rows(store)
    for row in found:
        verdict = waiting.get(row["name"])
        if verdict is not None and row["state"] == "candidate":
            row["why"] = "; ".join((verdict["answer"], *verdict["reasons"]))
    return sorted(found, key=lambda row: (row.get("attempt", -1), row.get("step", -1)), reverse=True)
