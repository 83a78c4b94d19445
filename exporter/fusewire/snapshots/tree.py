"""A nested state as a JSON tree that names its arrays, and back. No pickle: loading runs no code of the file.

What JSON has is itself. Everything else is an object with the key ``$``:
``{"$": "tensor" | "array", "name": …, "dtype": …, "shape": […]}``, ``{"$": "scalar", "dtype": …, "base64": …}``
(a numpy scalar), ``{"$": "float", "value": "nan" | "inf" | "-inf"}``, ``{"$": "bytes", "base64": …}``,
``{"$": "tuple", "items": […]}`` and ``{"$": "map", "items": [[key, value], …]}`` (a dict whose keys are not all
strings, or that has the key ``$``).
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fusewire.errors import SnapshotError
from fusewire.snapshots.finite import is_known

# dtype → name in the safetensors format; every other dtype is stored as its bytes (U8), with its name in the tree
SAFETENSORS_DTYPES: dict[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip

_OF_A_LIBRARY = 2
"""``numpy.dtype.isbuiltin`` of types that numpy does not bring, such as those of ml_dtypes."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An array or tensor of the state that is to be stored."""

    name: str
    """Key in the safetensors file: the path within the state, made unique."""
    path: str
    kind: Literal["tensor", "array"]
    source: Any
    dtype: str
    """torch's name without ``torch.``, or numpy's ``dtype.str`` where the name does not tell everything."""
    shape: tuple[int, ...]
    size: int
    """Bytes."""

    @property
    def stored_dtype(self) -> str:
        """Type in the safetensors header."""
        return SAFETENSORS_DTYPES.get(self.dtype, "U8")

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the safetensors header."""
        return self.shape if self.dtype in SAFETENSORS_DTYPES else (self.size,)


class TreeEncoder:
    """Encodes one state; afterwards ``leaves`` holds its arrays in the order in which they were met.

    ``nonfinite`` then holds the paths of the floats that are NaN and of the numpy scalars that are NaN or ±Inf. An
    infinite float is no damage: the best value so far starts as one.
    """

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.nonfinite: list[str] = []
        self._torch: Any = sys.modules.get("torch")
        self._names: set[str] = {"__metadata__"}
        self._seen: dict[tuple[Any, ...], dict[str, Any]] = {}

    def encode(self, value: Any, path: str = "") -> Any:  # noqa: PLR0911 - a return per kind of value
        """The tree of ``value``.

        Raises:
            SnapshotError: something in it cannot be stored; the message names its path.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            if math.isnan(value):
                self.nonfinite.append(path)
            return float(value) if math.isfinite(value) else {"$": "float", "value": str(float(value))}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, (list, tuple)):
            items = [
                self.encode(item, f"{path}/{index}" if path else str(index)) for index, item in enumerate(value)
            ]
            return items if isinstance(value, list) else {"$": "tuple", "items": items}
        if isinstance(value, (bytes, bytearray)):
            return {"$": "bytes", "base64": base64.b64encode(value).decode()}
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            return self._tensor(value, path)
        raise _unusable(path, f"is a {type(value).__module__}.{type(value).__qualname__}")

    def _mapping(self, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        items = [
            (self.encode(key, path), self.encode(item, f"{path}/{key}" if path else str(key)))
            for key, item in value.items()
        ]
        if all(isinstance(key, str) and key != "$" for key in value):
            return dict(items)
        return {"$": "map", "items": [list(item) for item in items]}

    def _scalar(self, value: np.generic[Any], path: str) -> dict[str, Any]:
        if not _is_plain(value.dtype) or value.dtype.isbuiltin == _OF_A_LIBRARY:
            raise _unusable(path, f"has the dtype {value.dtype}")
        if value.dtype.kind in "fc" and not np.isfinite(value):
            self.nonfinite.append(path)
        return {"$": "scalar", "dtype": value.dtype.str, "base64": base64.b64encode(value.tobytes()).decode()}

    def _array(self, value: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if not _is_plain(value.dtype) or isinstance(value, np.ma.MaskedArray):
            raise _unusable(path, f"is a {type(value).__name__} of dtype {value.dtype}")
        plain = value.dtype.isnative and value.dtype.name in SAFETENSORS_DTYPES
        dtype = value.dtype.name if plain else value.dtype.str
        identity = ("array", value.__array_interface__["data"][0], value.strides, value.shape, dtype)
        return self._leaf("array", value, identity=identity, dtype=dtype, size=value.nbytes, path=path)

    def _tensor(self, value: Any, path: str) -> dict[str, Any]:
        value = value.detach()
        if (
            value.layout is not self._torch.strided
            or value.is_quantized
            or value.is_meta
            or hasattr(value, "to_local")
        ):
            raise _unusable(path, f"is a {type(value).__name__} that is sparse, quantized, meta or distributed")
        dtype = str(value.dtype).removeprefix("torch.")
        if (value.is_floating_point() or value.is_complex()) and not is_known(dtype):
            raise _unusable(path, f"is of the dtype {dtype}, of which fusewire does not know what NaN looks like")
        identity = ("tensor", value.device, value.data_ptr(), value.stride(), tuple(value.shape), dtype,
                    value.is_conj(), value.is_neg())  # fmt: skip
        size = value.numel() * value.element_size()
        return self._leaf("tensor", value, identity=identity, dtype=dtype, size=size, path=path)

    def _leaf(
        self,
        kind: Literal["tensor", "array"],
        value: Any,
        *,
        identity: tuple[Any, ...],
        dtype: str,
        size: int,
        path: str,
    ) -> dict[str, Any]:
        """One leaf; tied parameters (the very same memory) are stored once."""
        if size and identity in self._seen:
            return self._seen[identity]
        name, copies = path, 1
        while name in self._names:
            copies += 1
            name = f"{path}#{copies}"
        self._names.add(name)
        shape = tuple(value.shape)
        self.leaves.append(Leaf(name=name, path=path, kind=kind, source=value, dtype=dtype, shape=shape, size=size))
        node = {"$": kind, "name": name, "dtype": dtype, "shape": list(shape)}
        self._seen[identity] = node
        return node


def decode(tree: Any, array: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: PLR0911 - a return per kind of value
    """The state of a tree; ``array`` makes the value of a ``tensor`` or ``array`` node.

    Raises:
        SnapshotError: a node is of a kind that does not exist.
    """
    if isinstance(tree, list):
        return [decode(item, array) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree.get("$"):
        case None:
            return {key: decode(item, array) for key, item in tree.items()}
        case "tensor" | "array":
            return array(tree)
        case "scalar":
            return np.frombuffer(base64.b64decode(tree["base64"]), dtype=np.dtype(tree["dtype"]))[0]
        case "float":
            return float(tree["value"])
        case "bytes":
            return base64.b64decode(tree["base64"])
        case "tuple":
            return tuple(decode(item, array) for item in tree["items"])
        case "map":
            return {decode(key, array): decode(item, array) for key, item in tree["items"]}
        case other:
            raise SnapshotError(f"state.json: unknown kind of value {other!r}", reason="damaged")


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of an array are its values, and numpy or safetensors knows what they mean."""
    known = dtype.isbuiltin != _OF_A_LIBRARY or dtype.name in SAFETENSORS_DTYPES
    return known and not dtype.hasobject and dtype.fields is None


def _unusable(path: str, what: str) -> SnapshotError:
    return SnapshotError(
        f"state: {path or 'the state itself'} {what}, which cannot be stored: turn it into numbers, lists, dicts, "
        "arrays or plain tensors, or write it yourself with run.snapshot()",
        reason="state",
    )
