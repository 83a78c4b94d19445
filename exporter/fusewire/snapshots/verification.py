"""Does a snapshot on disk still hold what its manifest says?"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blake3 import blake3

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import files_beneath, open_beneath
from fusewire.snapshots.hashing import CHUNK_BYTES, FileEntry, chunks
from fusewire.snapshots.layout import RANKS, SIDECARS
from fusewire.snapshots.manifest import Manifest

SAMPLE_BYTES = 1 << 30
"""What a sampled verification reads, about."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The answer: ``ok``, or what is wrong, one line each."""

    ok: bool
    problems: tuple[str, ...] = ()
    unreadable: bool = False
    """Something could not be read, and nothing that could is wrong: no verdict on the snapshot, so ask again."""
    bytes_read: int = 0


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """Something with a hash of its own: a file, or a block of a big one."""

    path: str
    offset: int
    size: int
    digest: str


def verify_files(
    folder: Path,
    manifest: Manifest,
    *,
    mode: Literal["full", "sampled"] = "full",
    sample_bytes: int = SAMPLE_BYTES,
    rng: random.Random | None = None,
    threads: int = 2,
) -> Verification:
    """Compare the files of the snapshot at ``folder`` with ``manifest``.

    Both modes look at every name, kind and size. ``full`` hashes every byte; ``sampled`` hashes files, and blocks
    of files above 1 GiB, chosen anew each time, until ``sample_bytes`` are read: it finds what is truncated,
    missing or damaged over a wide area, and a single flipped bit only by luck.

    Raises:
        SnapshotError: with reason ``unreadable``: names or sizes cannot be read now.
    """
    content = manifest.content(folder)
    problems = _unlisted(folder, content, manifest)
    unread: list[str] = []
    wrong = wrong_sizes(content, manifest)
    problems += wrong.values()
    units = [
        unit
        for path, entry in manifest.files.items()
        if path not in wrong
        for unit in _units(path, entry, whole=mode == "full")
    ]
    if mode == "sampled":
        units = _sample(units, sample_bytes, rng or random.Random())
    buffer = bytearray(CHUNK_BYTES)
    bytes_read = 0
    for unit in units:
        try:
            with open_beneath(content, unit.path) as file:
                file.seek(unit.offset)
                hasher = blake3(max_threads=threads)
                for chunk in chunks(file, buffer, unit.size):
                    hasher.update(chunk)
                    bytes_read += len(chunk)
        except (FileNotFoundError, SnapshotError) as error:
            problems.append(f"{unit.path}: cannot be read: {error}")
            continue
        except OSError as error:
            unread.append(f"{unit.path}: cannot be read: {error}")
            continue
        if hasher.hexdigest() != unit.digest:
            problems.append(f"{unit.path}: its hash is not the manifest's")
    return Verification(
        ok=not problems and not unread,
        problems=(*problems, *unread),
        unreadable=not problems and bool(unread),
        bytes_read=bytes_read,
    )


def wrong_sizes(content: Path, manifest: Manifest) -> dict[str, str]:
    """Listed files that are missing, no plain files, or of another size: path → problem.

    Raises:
        SnapshotError: with reason ``unreadable``: one of them cannot be looked at now.
    """
    problems: dict[str, str] = {}
    for path, entry in manifest.files.items():
        try:
            with open_beneath(content, path) as file:
                size = file.seek(0, 2)
        except (FileNotFoundError, NotADirectoryError):
            problems[path] = f"{path}: missing"
        except SnapshotError as error:
            problems[path] = f"{path}: cannot be read: {error}"
        except OSError as error:
            raise SnapshotError(f"{path}: cannot be read: {error}", reason="unreadable") from error
        else:
            if size != entry.size:
                problems[path] = f"{path}: {size} bytes, the manifest says {entry.size}"
    return problems


def _unlisted(folder: Path, content: Path, manifest: Manifest) -> list[str]:
    """Files that a trainer could load although no hash vouches for them."""
    if content != folder:
        return []
    try:
        files = files_beneath(folder)[0]
    except (FileNotFoundError, SnapshotError) as error:
        return [str(error)]
    except OSError as error:
        raise SnapshotError(f"{folder}: cannot be read: {error}", reason="unreadable") from error
    return [
        f"{path}: is not in the manifest"
        for path in files
        if path not in manifest.files and path not in SIDECARS and not path.startswith((f"{RANKS}/", "."))
    ]


def _units(path: str, entry: FileEntry, *, whole: bool) -> list[_Unit]:
    if whole or not entry.blocks:
        return [_Unit(path=path, offset=0, size=entry.size, digest=entry.blake3)]
    return [
        _Unit(
            path=path,
            offset=index * entry.block_size,
            size=min(entry.block_size, entry.size - index * entry.block_size),
            digest=digest,
        )
        for index, digest in enumerate(entry.blocks)
    ]


def _sample(units: list[_Unit], sample_bytes: int, rng: random.Random) -> list[_Unit]:
    chosen: list[_Unit] = []
    taken = 0
    for unit in rng.sample(units, len(units)):
        if chosen and taken + unit.size > sample_bytes:
            continue
        chosen.append(unit)
        taken += unit.size
    return chosen
