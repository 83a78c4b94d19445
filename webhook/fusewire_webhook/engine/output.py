"""What an attempt printed last. Bounded reads."""

from __future__ import annotations

import os
from pathlib import Path

from fusewire_webhook.engine.launching import OUTPUT_FILE, attempt_folder


def tail(run_dir: Path, attempt: int, *, lines: int, size: int) -> tuple[str, bool]:
    """The last ``lines`` lines within its last ``size`` bytes, and whether there is more; empty: it has none."""
    try:
        with (attempt_folder(run_dir, attempt) / OUTPUT_FILE).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            data = file.read(size)
    except OSError:
        return "", False
    rows = data.decode(errors="replace").rstrip("\n").split("\n")
    if end > size and len(rows) > 1:
        rows = rows[1:]  # the first one is cut somewhere
    return "\n".join(rows[-lines:]), end > size or len(rows) > lines
