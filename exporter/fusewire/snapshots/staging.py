"""One snapshot on its way to the disk: complete under its name, or not a snapshot at all.

Several ranks write into the same staging folder, each its own part; whoever commits last completes it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import FileLayer, files_beneath, open_beneath
from fusewire.snapshots.hashing import CHUNK_BYTES, FileEntry, FileHasher, hash_file
from fusewire.snapshots.layout import MANIFEST_FILE, QUARANTINE, RANKS, SIDECARS, SNAPSHOTS, STAGING_PREFIX
from fusewire.snapshots.manifest import Manifest, entry_to_json, parse_files


class Staging:
    """The steps of a snapshot, numbered as in ``docs/snapshots.md``.

    1. create ``snapshots/.staging-<name>`` (of several ranks: with the incarnation, and a folder per rank)
    2. write the files
    3. hash them, while writing where the bytes pass through here
    4. fsync each file
    5. write ``manifest.json`` (of several ranks: ``ranks/<r>.json`` first; the last rank goes on)
    6. fsync every folder inside
    7. rename the staging folder to its name
    8. fsync ``snapshots/``
    """

    def __init__(
        self,
        run_dir: Path,
        draft: Manifest,
        *,
        rank: int = 0,
        incarnation: str = "0",
        files: FileLayer,
    ) -> None:
        self._draft = draft
        self._rank = rank
        self._files = files
        self._entries: dict[str, FileEntry] = {}
        self._incarnation = incarnation
        self._sharded = draft.ranks > 1
        self.snapshots = run_dir / SNAPSHOTS
        self.target = self.snapshots / draft.name
        self._used = (self.target, run_dir / QUARANTINE / draft.name)
        suffix = f"-i{incarnation}" if self._sharded else ""
        self.folder = self.snapshots / f"{STAGING_PREFIX}{draft.name}{suffix}"
        self.content = self.folder / f"rank-{rank:05d}" if self._sharded else self.folder
        self._part = self.folder / RANKS / f"{rank}.json"
        self._claimed = self.folder / RANKS / ".complete"

    def open(self) -> None:
        """Step 1.

        Raises:
            SnapshotError: the name was used before.
            OSError: the folder cannot be created.
        """
        for path in self._used:
            if path.exists():
                raise SnapshotError(f"{path}: exists already; a step is written once per attempt", reason="exists")
        if self._sharded:
            # an earlier try at this step by this rank: its part is no longer committed
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._part)
            if self.content.exists():
                self._files.remove_tree(self.content)
            self._files.make_folder(self._part.parent, exist_ok=True)
        elif self.folder.exists():
            self._files.remove_tree(self.folder)
        self._files.make_folder(self.content)

    def write(self, name: str, pieces: Iterable[memoryview], size: int) -> None:
        """Steps 2 to 4 for one file, from memory: each chunk is hashed while the cache still holds it."""
        path = self.content / name
        hasher = FileHasher(size)
        with self._files.create(path) as file:
            for piece in pieces:
                for start in range(0, len(piece), CHUNK_BYTES):
                    chunk = piece[start : start + CHUNK_BYTES]
                    hasher.update(chunk)
                    self._files.write(file, chunk, path)
        self._files.fsync(path)
        self._entries[name] = hasher.entry()

    def link(self, source: Path) -> None:
        """Step 2 for files that exist elsewhere on the same file system: hard links to them."""
        if source.is_file():
            self._files.link(source, self.content / source.name)
            return
        files, folders = files_beneath(source)
        for folder in folders:
            self._files.make_folder(self.content / folder, exist_ok=True)
        for name in files:
            self._files.link(source / name, self.content / name)

    def commit(self) -> Manifest | None:
        """Steps 3 to 8.

        Returns:
            The manifest of the complete snapshot, or None while other ranks' parts are missing.

        Raises:
            SnapshotError: a file is a link or device or has the name of one of fusewire's, or the snapshot's name
                was taken meanwhile.
            OSError: the file system failed; nothing has the snapshot's name (unless that of a whole one could
                not be taken back).
        """
        content = self.content if self._draft.reference is None else Path(self._draft.reference)
        self._hash(content)
        if not self._sharded:
            return self._complete(replace(self._draft, files=self._entries))
        self._fsync_folders(content)
        self._files.write_json(self._part, self._part_json())
        parts = self._parts()
        if parts is None or not self._claim():
            return None
        return self._complete(parts)

    def abandon(self) -> None:
        """Undo step 1; of several ranks, only this rank's part."""
        with contextlib.suppress(OSError):
            if self._sharded:
                self._files.unlink(self._part)
                self._files.unlink(self._claimed)
            self._files.remove_tree(self.content)

    def _hash(self, content: Path) -> None:
        buffer = bytearray(CHUNK_BYTES)
        files, folders = files_beneath(content)
        taken = SIDECARS.intersection([*files, *folders])
        if taken and not self._sharded:
            raise SnapshotError(
                f"{content / min(taken)}: fusewire's own file has this name in a snapshot; rename yours or put it "
                "into a subfolder",
                reason="state",
            )
        for name in files:
            if name in self._entries:
                continue
            # 3. hash what was written without passing through here
            with open_beneath(content, name) as file:
                size = (content / name).stat().st_size
                self._entries[name] = hash_file(file, size, buffer=buffer)
            # 4. its bytes reach the disk
            self._files.fsync(content / name)

    def _complete(self, manifest: Manifest) -> Manifest:
        # 5. the manifest names every byte
        self._files.write_json(self.folder / MANIFEST_FILE, manifest.to_json())
        # 6. the names inside reach the disk
        self._fsync_folders(self.folder)
        # 7. complete, under its name, in one step
        if self.target.exists():
            raise SnapshotError(
                f"{self.target}: was taken meanwhile; is a second trainer running?", reason="exists"
            )
        self._files.rename(self.folder, self.target)
        try:
            # 8. the rename reaches the disk
            self._files.fsync(self.snapshots)
        except OSError:
            # 7. is taken back: what is told as failed must not be judged, promoted and resumed from
            self._files.rename(self.target, self.folder)
            raise
        return manifest

    def _fsync_folders(self, top: Path) -> None:
        for folder in files_beneath(top)[1]:
            self._files.fsync(top / folder)
        self._files.fsync(top)

    def _part_json(self) -> dict[str, Any]:
        prefix = self.content.name
        return self._draft.to_json() | {
            "rank": self._rank,
            "incarnation": self._incarnation,
            "files": {f"{prefix}/{name}": entry_to_json(entry) for name, entry in self._entries.items()},
        }

    def _parts(self) -> Manifest | None:
        """The manifest over all ranks' parts (what is not a file is rank 0's); None: one is missing."""
        files: dict[str, FileEntry] = {}
        head: dict[str, Any] = {}
        for rank in range(self._draft.ranks):
            path = self._part.with_name(f"{rank}.json")
            try:
                part = json.loads(path.read_bytes())
            except FileNotFoundError:
                return None
            head = head or part
            files |= parse_files(part["files"], str(path))
        shared = {key: head[key] for key in ("parent", "replay_watermark", "lineage", "extra", "lr_scale", "time")}
        return replace(self._draft, files=files, **shared)

    def _claim(self) -> bool:
        """Of two ranks that both see all parts, one completes."""
        try:
            self._files.create(self._claimed).close()
        except (FileExistsError, FileNotFoundError):
            return False
        return True
