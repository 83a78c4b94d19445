"""Hashes of snapshot files: BLAKE3 of the whole file and, for big ones, of each block too (for sampling).

Files are read, never mapped: a file that shrinks or a disk that fails under a mapping kills the process (SIGBUS).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from blake3 import blake3

CHUNK_BYTES = 4 << 20
"""Read and written at once: small enough for a cache, large enough for the system calls not to count."""
BLOCK_BYTES = 64 << 20
"""Files above one block carry a hash per block, where they are above :data:`BLOCKS_ABOVE_BYTES`."""
BLOCKS_ABOVE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """What the manifest says of one file."""

    size: int
    """Bytes."""
    blake3: str
    """Hash of the whole file, 64 hexadecimal digits: what ``b3sum`` prints."""
    block_size: int = 0
    """Bytes of a block; 0: no hashes of blocks."""
    blocks: tuple[str, ...] = ()
    """Hash of each block in order; the last block may be shorter."""


class FileHasher:
    """Folds the bytes of one file, in order, into its :class:`FileEntry`."""

    def __init__(self, expected_size: int, *, threads: int = 1, block_size: int | None = None) -> None:
        self._threads = threads
        self._whole = blake3(max_threads=threads)
        self._size = 0
        if block_size is None:
            block_size = BLOCK_BYTES if expected_size > BLOCKS_ABOVE_BYTES else 0
        self._block_size = block_size
        self._block = blake3(max_threads=threads)
        self._blocks: list[str] = []

    def update(self, data: memoryview) -> None:
        """Add the next bytes. Releases the GIL."""
        self._whole.update(data)
        size = len(data)
        if self._block_size:
            while data:
                room = self._block_size - self._size % self._block_size
                self._block.update(data[:room])
                self._size += len(data[:room])
                data = data[room:]
                if self._size % self._block_size == 0:
                    self._blocks.append(self._block.hexdigest())
                    self._block = blake3(max_threads=self._threads)
        else:
            self._size += size

    def entry(self) -> FileEntry:
        """The entry of all bytes so far."""
        begun = self._block_size and self._size % self._block_size
        blocks = (*self._blocks, *([self._block.hexdigest()] if begun else []))
        return FileEntry(
            size=self._size,
            blake3=self._whole.hexdigest(),
            block_size=self._block_size if blocks else 0,
            blocks=blocks,
        )


def chunks(file: IO[bytes], buffer: bytearray, length: int | None = None) -> Iterator[memoryview]:
    """The next ``length`` bytes of ``file`` (all of them: None), each chunk valid until the next one is taken."""
    view = memoryview(buffer)
    while length is None or length > 0:
        # FileIO.readinto is not in IO[bytes], but every file here is opened unbuffered
        got = file.readinto(view if length is None else view[:length])  # type: ignore[attr-defined]
        if not got:
            return
        yield view[:got]
        if length is not None:
            length -= got


def hash_file(file: IO[bytes], size: int, *, buffer: bytearray, threads: int = 1) -> FileEntry:
    """Read ``file`` to its end. ``size`` decides only whether blocks are hashed too.

    Raises:
        OSError: it cannot be read.
    """
    hasher = FileHasher(size, threads=threads)
    for chunk in chunks(file, buffer):
        hasher.update(chunk)
    return hasher.entry()
