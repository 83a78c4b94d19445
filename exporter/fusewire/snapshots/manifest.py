"""``manifest.json``: what a snapshot is and which bytes belong to it. It never changes once it is in place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import open_beneath
from fusewire.snapshots.hashing import FileEntry
from fusewire.snapshots.layout import MANIFEST_FILE, SIDECARS, parse_name

FORMAT = 1
"""Version of the on-disk format. A reader refuses every other one."""
_LONGEST_BYTES = 256 << 20

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A snapshot as its writer describes it."""

    name: str
    step: int
    """Policy updates done when the state was taken."""
    attempt: int
    run: str
    time: float
    """Unix seconds of the writer's clock; for people."""
    files: Mapping[str, FileEntry]
    """Relative path → size and hashes, of every file in the folder but fusewire's own JSON files."""
    replay_watermark: Any = None
    """Any JSON value that tells data seen so far from data that came later, such as the last row's id."""
    parent: str | None = None
    """Name of the snapshot that this one continues; None: from scratch."""
    lr_scale: float = 1.0
    """Factor that the learning rate inside the state already carries."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    """What belongs to the line of descent: peak and floor of the smoothed return, among others."""
    ranks: int = 1
    """Ranks whose parts make up the snapshot."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """fusewire, python and, where loaded, torch."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """The user's own JSON values."""
    reference: str | None = None
    """Absolute path of the folder that holds the files; None: the snapshot folder itself."""
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def content(self, folder: Path) -> Path:
        """Folder that holds the files of the snapshot which lies at ``folder``."""
        return folder if self.reference is None else Path(self.reference)

    def to_json(self) -> dict[str, Any]:
        """The manifest as ``manifest.json`` holds it."""
        return {
            "format": self.format,
            "name": self.name,
            "step": self.step,
            "attempt": self.attempt,
            "run": self.run,
            "time": self.time,
            "parent": self.parent,
            "lr_scale": self.lr_scale,
            "ranks": self.ranks,
            "reference": self.reference,
            "replay_watermark": self.replay_watermark,
            "lineage": dict(self.lineage),
            "versions": dict(self.versions),
            "extra": dict(self.extra),
            "files": {path: entry_to_json(entry) for path, entry in self.files.items()},
        }


def entry_to_json(entry: FileEntry) -> dict[str, Any]:
    """One file as the manifest holds it."""
    value: dict[str, Any] = {"size": entry.size, "blake3": entry.blake3}
    if entry.blocks:
        value |= {"block_size": entry.block_size, "blocks": list(entry.blocks)}
    return value


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of the snapshot at ``folder``; ``folder`` may be a link to it.

    Raises:
        SnapshotError: there is none, it cannot be read, or it says something that cannot be. The message names
            the file and the key.
    """
    path = folder / MANIFEST_FILE
    try:
        with open_beneath(folder.resolve(), MANIFEST_FILE) as file:
            data = file.read(_LONGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise SnapshotError(f"{path}: missing, so the snapshot is not complete", reason="incomplete") from error
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read ({error.strerror})", reason="unreadable") from error
    if len(data) > _LONGEST_BYTES:
        raise SnapshotError(f"{path}: longer than {_LONGEST_BYTES} bytes", reason="damaged")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{path}: no JSON ({error})", reason="damaged") from error
    manifest = parse_manifest(value, str(path))
    name = folder.resolve().name
    if parse_name(name) is not None and manifest.name != name:
        raise SnapshotError(f"{path}: is the manifest of {manifest.name}", reason="damaged")
    return manifest


def parse_manifest(value: Any, where: str) -> Manifest:
    """The manifest that a JSON value holds. Unknown keys are left out: they may come with a later fusewire.

    Raises:
        SnapshotError: a key is missing or its value cannot be.
    """
    if not isinstance(value, dict):
        raise SnapshotError(f"{where}: holds no JSON object", reason="damaged")
    if value.get("format") != FORMAT:
        raise SnapshotError(
            f"{where}: format {value.get('format')!r}; this fusewire reads format {FORMAT}", reason="format"
        )
    name = _take(value, "name", str, where)
    step, attempt = _take(value, "step", int, where), _take(value, "attempt", int, where)
    if parse_name(name) != (step, attempt):
        raise SnapshotError(f"{where}: name {name!r} does not say step {step}, attempt {attempt}", reason="damaged")
    reference = value.get("reference")
    if reference is not None and not (isinstance(reference, str) and reference.startswith("/")):
        raise SnapshotError(f"{where}: reference {reference!r} is no absolute path", reason="damaged")
    parent = value.get("parent")
    if parent is not None and (not isinstance(parent, str) or parse_name(parent) is None):
        raise SnapshotError(f"{where}: parent {parent!r} is no snapshot name", reason="damaged")
    return Manifest(
        name=name,
        step=step,
        attempt=attempt,
        run=_take(value, "run", str, where),
        time=float(_take(value, "time", (int, float), where)),
        files=parse_files(_take(value, "files", dict, where), where),
        replay_watermark=value.get("replay_watermark"),
        parent=parent,
        lr_scale=float(_take(value, "lr_scale", (int, float), where)),
        lineage=_take({"lineage": {}} | value, "lineage", dict, where),
        ranks=_take({"ranks": 1} | value, "ranks", int, where),
        versions=_take({"versions": {}} | value, "versions", dict, where),
        extra=_take({"extra": {}} | value, "extra", dict, where),
        reference=reference,
    )


def parse_files(value: Mapping[str, Any], where: str) -> dict[str, FileEntry]:
    """The ``files`` of a manifest or of one rank's part.

    Raises:
        SnapshotError: a path leaves the folder, or a size or hash cannot be.
    """
    files: dict[str, FileEntry] = {}
    for path, item in value.items():
        parts = path.split("/")
        if any(part in {"", ".", ".."} or "\0" in part for part in parts) or path in SIDECARS:
            raise SnapshotError(f"{where}: files: {path!r} is no path within the snapshot", reason="damaged")
        key = f"files: {path!r}: "
        if not isinstance(item, dict):
            raise SnapshotError(f"{where}: {key}holds no JSON object", reason="damaged")
        size, digest = _take(item, "size", int, where, key), _take(item, "blake3", str, where, key)
        block_size = _take({"block_size": 0} | item, "block_size", int, where, key)
        blocks = tuple(_take({"blocks": []} | item, "blocks", list, where, key))
        if size < 0 or block_size < 0 or not all(isinstance(d, str) and _is_hash(d) for d in (digest, *blocks)):
            raise SnapshotError(f"{where}: {key}size or hash cannot be", reason="damaged")
        if len(blocks) != (-(-size // block_size) if block_size else 0):
            raise SnapshotError(f"{where}: {key}the number of blocks does not fit the size", reason="damaged")
        files[path] = FileEntry(size=size, blake3=digest, block_size=block_size, blocks=blocks)
    return files


def _is_hash(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _take(
    value: Mapping[str, Any], key: str, kind: type[T] | tuple[type[T], ...], where: str, prefix: str = ""
) -> T:
    found = value.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise SnapshotError(f"{where}: {prefix}{key} is missing or of another type", reason="damaged")
    return found
