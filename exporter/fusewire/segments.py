"""Steps that were reported and not folded yet."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusewire.fold import Floats

SLICE = 1024
"""Steps folded at once: many enough to hide numpy's overhead, few enough for a fraction of a millisecond."""


class Segment:
    """Consecutive steps that reported the same signals in the same order.

    One thread appends: first the values, then the time, which makes the row whole. Another may take whole rows
    from the front: each access is a single operation on a list.
    """

    __slots__ = ("extend", "names", "tick", "times", "values")

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.times: list[float] = []
        self.values: list[float] = []
        self.tick = self.times.append
        self.extend = self.values.extend

    def take(self, most: int) -> tuple[Floats, Floats]:
        """Up to ``most`` rows: times [R] and values [R, C]."""
        rows = min(len(self.times), most)
        size = rows * len(self.names)
        times, values = _packed(self.times[:rows]), _packed(self.values[:size])
        del self.times[:rows]
        del self.values[:size]
        return times, values.reshape(rows, len(self.names))


def _packed(numbers: list[float]) -> Floats:
    """An array of them; struct does it several times faster than numpy."""
    import numpy as np  # noqa: PLC0415 (keeps `import fusewire` cheap)

    return np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers))
