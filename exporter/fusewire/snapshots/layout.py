"""Names and places of snapshots in a run directory (``docs/snapshots.md`` is the full format)."""

from __future__ import annotations

import re

SNAPSHOTS = "snapshots"
"""Folder of all snapshots that are not in quarantine."""
QUARANTINE = "quarantine"
"""Folder of the snapshots that nothing resumes from any more."""
STABLE_LINK = "stable_checkpoint_latest"
"""Relative symlink to the last promoted snapshot."""
ACTIVE_LINK = "active"
"""Relative symlink to the snapshot that the next attempt resumes from."""

MANIFEST_FILE = "manifest.json"
PROMOTION_FILE = "promotion.json"
QUARANTINE_FILE = "quarantine.json"
REJECTION_FILE = "rejection.json"
SIDECARS = frozenset({MANIFEST_FILE, PROMOTION_FILE, QUARANTINE_FILE, REJECTION_FILE})
"""Files of a snapshot folder that its manifest does not list."""
RANKS = "ranks"
"""Folder in a snapshot of several ranks: ``ranks/<r>.json`` says that rank r has committed its part."""

STAGING_PREFIX = ".staging-"
"""A snapshot that is being written, or that a killed writer left behind."""
TRASH_PREFIX = ".trash-"
"""A snapshot that is being deleted."""

_NAME = re.compile(r"step-([0-9]{12,})-a([0-9]{3,})")


def snapshot_name(step: int, attempt: int) -> str:
    """``step-000000120000-a001``. A name is used once: steps never go back within an attempt."""
    if step < 0 or attempt < 0:
        raise ValueError(f"step {step}, attempt {attempt}: both count from 0")
    return f"step-{step:012d}-a{attempt:03d}"


def parse_name(name: str) -> tuple[int, int] | None:
    """``(step, attempt)`` of a snapshot's name; None: not the name of a snapshot."""
    match = _NAME.fullmatch(name)
    if match is None or snapshot_name(int(match[1]), int(match[2])) != name:
        return None
    return int(match[1]), int(match[2])


def leftover_of(entry: str) -> tuple[int, int] | None:
    """``(step, attempt)`` of a staging or trash folder; None: it is neither."""
    for prefix in (STAGING_PREFIX, TRASH_PREFIX):
        if entry.startswith(prefix):
            match = _NAME.match(entry, len(prefix))
            return (int(match[1]), int(match[2])) if match else None
    return None
