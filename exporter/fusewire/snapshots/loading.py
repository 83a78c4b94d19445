"""Reads a state that :meth:`SnapshotWriter.save` wrote, and checks every byte on the way."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from blake3 import blake3

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import open_beneath
from fusewire.snapshots.hashing import CHUNK_BYTES, FileHasher
from fusewire.snapshots.hostcopy import Bytes, host_memory
from fusewire.snapshots.manifest import Manifest, read_manifest
from fusewire.snapshots.tree import decode
from fusewire.snapshots.verification import wrong_sizes
from fusewire.snapshots.writer import STATE_ARRAYS, STATE_TREE

PORTION_BYTES = 32 << 20
"""Arrays that share one piece of memory: few page faults, and little is held by the last user of a piece."""


def load_state(folder: Path, *, device: Any = None, rank: int = 0, verify: bool = True) -> dict[str, Any]:
    """The state in the snapshot at ``folder`` (its own path, or a link to it such as ``active``).

    Arrays that were numpy's are numpy's again, tensors are tensors, on the CPU or on ``device``.

    Args:
        rank: whose part, of a snapshot of several ranks.
        verify: compare the hashes while reading; sizes are compared in any case.

    Raises:
        SnapshotError: the snapshot is incomplete or damaged, or was not written by ``save``.
    """
    folder = folder.resolve()
    manifest = read_manifest(folder)
    prefix = f"rank-{rank:05d}/" if manifest.ranks > 1 else ""
    wrong = wrong_sizes(manifest.content(folder), manifest)
    if wrong:
        raise SnapshotError(f"{folder}: {'; '.join(wrong.values())}", reason="damaged")
    try:
        with _Reader(folder, manifest, prefix + STATE_TREE, verify) as reader:
            tree = json.loads(reader.rest())
        with _Reader(folder, manifest, prefix + STATE_ARRAYS, verify) as reader:
            arrays = _read_arrays(reader, tree, device)
        state = decode(tree, lambda node: arrays[node["name"]])
    except OSError as error:
        raise SnapshotError(f"{folder}: cannot be read: {error}", reason="unreadable") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{folder}: the state does not hold together: {error!r}", reason="damaged") from error
    if not isinstance(state, dict):
        raise SnapshotError(f"{folder}: {STATE_TREE} holds no dict", reason="damaged")
    return state


class _Reader:
    """One file of a snapshot, read in order and hashed while the cache still holds what was read."""

    def __init__(self, folder: Path, manifest: Manifest, name: str, verify: bool) -> None:
        if name not in manifest.files:
            raise SnapshotError(
                f"{folder}: holds no {name}: it was not written by save(); read its own files", reason="state"
            )
        self._path = folder / name
        self._expected = manifest.files[name]
        self._file: IO[bytes] = open_beneath(manifest.content(folder), name)
        self._hasher = FileHasher(0, threads=blake3.AUTO) if verify else None
        self.left = self._expected.size

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._file.close()
        if kind is None:
            self._check()

    def into(self, target: memoryview) -> None:
        """Fill ``target`` with the next bytes."""
        while target:
            # FileIO.readinto is not in IO[bytes], but the file is opened unbuffered
            got = self._file.readinto(target[:CHUNK_BYTES])  # type: ignore[attr-defined]
            if not got:
                raise SnapshotError(f"{self._path}: ends too early", reason="damaged")
            if self._hasher is not None:
                self._hasher.update(target[:got])
            self.left -= got
            target = target[got:]

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if not 0 <= size <= self.left:
            raise SnapshotError(f"{self._path}: speaks of {size} bytes but has {self.left}", reason="damaged")
        data = bytearray(size)
        self.into(memoryview(data))
        return bytes(data)

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(self.left)

    def _check(self) -> None:
        if self._hasher is not None and self._hasher.entry().blake3 != self._expected.blake3:
            raise SnapshotError(f"{self._path}: its hash is not the manifest's", reason="damaged")


def _read_arrays(reader: _Reader, tree: Any, device: Any) -> dict[str, Any]:
    """Every array by its name. Neighbours in the file share memory in portions of :data:`PORTION_BYTES`."""
    header: dict[str, Any] = json.loads(reader.take(int.from_bytes(reader.take(8), "little")))
    header.pop("__metadata__", None)
    nodes = {node["name"]: node for node in _array_nodes(tree)}
    spans = sorted((*item["data_offsets"], name) for name, item in header.items())
    if [start for start, _, _ in spans] != [0, *(stop for _, stop, _ in spans)][: len(spans)]:
        raise SnapshotError(f"{STATE_ARRAYS}: arrays overlap or leave gaps", reason="damaged")
    arrays: dict[str, Any] = {}
    while spans:
        first = spans[0][0]
        count = 1 + sum(stop - first <= PORTION_BYTES for _, stop, _ in spans[1:])
        portion, spans = spans[:count], spans[count:]
        memory = host_memory(portion[-1][1] - first)
        reader.into(memory.data)
        for start, stop, name in portion:
            arrays[name] = _array(nodes[name], memory[start - first : stop - first], device)
    if reader.left:
        raise SnapshotError(f"{STATE_ARRAYS}: {reader.left} bytes belong to no array", reason="damaged")
    return arrays


def _array(node: dict[str, Any], memory: Bytes, device: Any) -> Any:
    """``memory`` as the array or tensor that ``node`` describes."""
    shape = tuple(int(n) for n in node["shape"])
    if node["$"] == "array":
        dtype = np.dtype(node["dtype"])
        if memory.ctypes.data % dtype.alignment:
            memory = memory.copy()
        return memory.view(dtype).reshape(shape) if memory.size else np.empty(shape, dtype)
    torch = importlib.import_module("torch")
    kind = getattr(torch, node["dtype"])
    if memory.size == 0:
        return torch.empty(shape, dtype=kind, device=device)
    if memory.ctypes.data % kind.itemsize:
        memory = memory.copy()
    return torch.from_numpy(memory).view(kind).reshape(shape).to(device)


def _array_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict) and tree.get("$") in {"tensor", "array"}:
        yield tree
    elif isinstance(tree, (dict, list)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _array_nodes(item)
