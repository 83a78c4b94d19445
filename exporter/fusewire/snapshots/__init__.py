"""Snapshots of a trainer's state on disk: written whole or not at all, checked before anybody resumes from one.

The trainer writes (:class:`SnapshotWriter`) and reads (:func:`load_state`); the supervisor decides which ones are
stable, which are out, and which may go (:class:`SnapshotStore`). ``docs/snapshots.md`` is the format.
"""

from fusewire.snapshots.filelayer import FileLayer
from fusewire.snapshots.hashing import FileEntry
from fusewire.snapshots.layout import parse_name, snapshot_name
from fusewire.snapshots.loading import load_state
from fusewire.snapshots.manifest import Manifest, read_manifest
from fusewire.snapshots.observer import FAILURE_REASONS, NullObserver, SnapshotObserver
from fusewire.snapshots.retention import RetentionPolicy, SnapshotInfo, plan_retention
from fusewire.snapshots.store import SnapshotStore
from fusewire.snapshots.verification import Verification
from fusewire.snapshots.writer import SnapshotWriter

__all__ = [
    "FAILURE_REASONS",
    "FileEntry",
    "FileLayer",
    "Manifest",
    "NullObserver",
    "RetentionPolicy",
    "SnapshotInfo",
    "SnapshotObserver",
    "SnapshotStore",
    "SnapshotWriter",
    "Verification",
    "load_state",
    "parse_name",
    "plan_retention",
    "read_manifest",
    "snapshot_name",
]
