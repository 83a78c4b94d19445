"""A copy of the state in host memory that is reused from snapshot to snapshot.

The copy is all that the training loop waits for. It is laid out as the file will be: writing it is one pass.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import ALIGNMENT
from fusewire.snapshots.finite import all_finite
from fusewire.snapshots.tree import Leaf, TreeEncoder

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class HostCopy:
    """One state, copied: the JSON tree, the safetensors header and the bytes behind it."""

    tree: Any
    header: bytes
    data: memoryview
    leaves: tuple[tuple[Leaf, int], ...]
    """Each leaf with the offset of its bytes in ``data``."""
    nonfinite_scalars: tuple[str, ...] = ()
    """Paths of the numbers in ``tree`` that are not finite."""
    events: tuple[Any, ...] = field(default=())
    """CUDA events after which ``data`` is valid."""

    def ready(self) -> None:
        """Wait until the device's copies have arrived. Called by the writing thread."""
        for event in self.events:
            event.synchronize()

    def nonfinite(self, may_be: Sequence[str]) -> tuple[str, ...]:
        """Paths of what is not finite, but for those that a pattern of ``may_be`` matches."""

        def allowed(path: str) -> bool:
            return any(fnmatchcase(path, pattern) for pattern in may_be)

        scalars = (path for path in self.nonfinite_scalars if not allowed(path))
        arrays = (
            leaf.path
            for leaf, offset in self.leaves
            if not allowed(leaf.path) and not all_finite(self.data[offset : offset + leaf.size], leaf.dtype)
        )
        return (*scalars, *arrays)


class HostBuffer:
    """Host memory for one state. It grows when a state is larger than all before, and never shrinks."""

    def __init__(self) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._pinned = False

    def copy(self, state: Any) -> HostCopy:
        """Copy ``state``. The copy before must not be in use any more.

        Raises:
            SnapshotError: something in the state cannot be stored.
            MemoryError: there is no room for a second copy of the state.
        """
        encoder = TreeEncoder()
        tree = encoder.encode(state)
        # the most demanding first keeps every array aligned without gaps; otherwise the state's own order
        leaves = sorted(encoder.leaves, key=lambda leaf: -_alignment(leaf))
        devices = {leaf.source.device for leaf in leaves if leaf.kind == "tensor" and leaf.source.is_cuda}
        size = sum(leaf.size for leaf in leaves)
        self._reserve(size, pinned=bool(devices))
        placed: list[tuple[Leaf, int]] = []
        header: dict[str, Any] = {}
        offset = 0
        for leaf in leaves:
            end = offset + leaf.size
            if leaf.size:
                _copy_leaf(leaf, self._bytes[offset:end])
            header[leaf.name] = {
                "dtype": leaf.stored_dtype,
                "shape": list(leaf.stored_shape),
                "data_offsets": [offset, end],
            }
            placed.append((leaf, offset))
            offset = end
        return HostCopy(
            tree=tree,
            header=_header(header),
            data=self._bytes.data[:size],
            leaves=tuple(placed),
            nonfinite_scalars=tuple(encoder.nonfinite),
            events=tuple(_record_event(device) for device in devices),
        )

    def _reserve(self, size: int, *, pinned: bool) -> None:
        if size <= len(self._bytes) and (self._pinned or not pinned):
            return
        self._bytes = np.empty(0, np.uint8)
        if pinned:
            torch: Any = sys.modules["torch"]
            self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        else:
            self._bytes = host_memory(size)
        self._pinned = pinned


def host_memory(size: int) -> Bytes:
    """``size`` zero bytes at the start of a page, given back to the system with the last array on them.

    On ordinary pages: huge ones, tried with ``MADV_HUGEPAGE``, made the first touch several times slower on virtual
    machines, whose hosts have to provide each of them anew.
    """
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)[:size]


def _alignment(leaf: Leaf) -> int:
    """The largest power of two that divides an item."""
    width = int(leaf.source.element_size() if leaf.kind == "tensor" else leaf.source.dtype.itemsize)
    return width & -width


def _copy_leaf(leaf: Leaf, target: Bytes) -> None:
    if leaf.kind == "array":
        np.copyto(target.view(leaf.source.dtype).reshape(leaf.shape), leaf.source, casting="no")
        return
    torch: Any = sys.modules["torch"]
    view = torch.from_numpy(target).view(leaf.source.dtype).view(leaf.shape)
    # on a CUDA stream the copy is in order with the training's own kernels: nothing waits here
    view.copy_(leaf.source, non_blocking=leaf.source.is_cuda)


def _record_event(device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    return torch.cuda.current_stream(device).record_event()


def _header(entries: dict[str, Any]) -> bytes:
    """With its length before it, and padded so that the bytes behind it can be written past the page cache."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def refuse_nonfinite(paths: Sequence[str], name: str) -> SnapshotError:
    """The error for a snapshot whose values at ``paths`` are not finite."""
    shown = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    return SnapshotError(
        f"{name}: not written: NaN or infinite values in {shown} (allow a path with may_be_nonfinite)",
        reason="nonfinite",
    )
