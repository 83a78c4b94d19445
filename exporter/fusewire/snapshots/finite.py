"""Which numbers are finite, in every floating type that a state may hold."""

from __future__ import annotations

from typing import Any

import numpy as np

_CHUNK_BYTES = 1 << 20

# floats that numpy does not know, or adds up slowly: an unsigned type of that width, a mask, and what it leaves of
# NaN and Inf (https://onnx.ai/onnx/technical/float8.html and the OCP microscaling format's E8M0)
_BITS: dict[str, tuple[str, int, int]] = {
    "bfloat16": ("uint16", 0x7F80, 0x7F80),
    "float16": ("uint16", 0x7C00, 0x7C00),
    "complex32": ("uint16", 0x7C00, 0x7C00),
    "float8_e5m2": ("uint8", 0x7C, 0x7C),
    "float8_e4m3fn": ("uint8", 0x7F, 0x7F),
    "float8_e5m2fnuz": ("uint8", 0xFF, 0x80),
    "float8_e4m3fnuz": ("uint8", 0xFF, 0x80),
    "float8_e8m0fnu": ("uint8", 0xFF, 0xFF),
}


def is_known(dtype: str) -> bool:
    """Whether :func:`all_finite` can tell for a floating type; ``dtype`` as in :class:`~.tree.Leaf`."""
    return dtype in _BITS or _numpy_type(dtype) is not None


def all_finite(data: memoryview, dtype: str) -> bool:
    """Whether every number is finite; what is no floating type is.

    A chunk is looked at number by number only if its sum is not finite.
    """
    if dtype in _BITS:
        kind, mask, nonfinite = _BITS[dtype]
        bits = np.frombuffer(data, kind)
        step = _CHUNK_BYTES // bits.itemsize
        return not any(bool(np.any((bits[i : i + step] & mask) == nonfinite)) for i in range(0, len(bits), step))
    numpy_type = _numpy_type(dtype)
    if numpy_type is None or numpy_type.kind not in "fc":
        return True
    numbers = np.frombuffer(data, numpy_type)
    step = _CHUNK_BYTES // numbers.itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(numbers), step):
            chunk = numbers[start : start + step]
            if not np.isfinite(chunk.sum()) and not np.isfinite(chunk).all():
                return False
    return True


def _numpy_type(dtype: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None
