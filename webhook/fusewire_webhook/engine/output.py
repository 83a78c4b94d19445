"""What an attempt printed last. Bounded reads."""

from __future__ import annotations

import os
from pathlib import Path

from fusewire.attempt_files import OUTPUT_FILE, attempt_folder

OWN = "fusewire: "
"""Marks the lines that the exporter prints into the trainer's output."""
_LAST_LINES, _LAST_BYTES, _LAST_CHARACTERS = 20, 4000, 300


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


def last_line(run_dir: Path, attempt: int) -> str:
    """Its last line that is not fusewire's own: of a trainer that failed, most often the reason. Empty: none."""
    text, _ = tail(run_dir, attempt, lines=_LAST_LINES, size=_LAST_BYTES)
    rows = [row.strip() for row in text.splitlines() if row.strip()]
    theirs = [row for row in rows if OWN not in row]
    return (theirs or rows or [""])[-1][:_LAST_CHARACTERS]
