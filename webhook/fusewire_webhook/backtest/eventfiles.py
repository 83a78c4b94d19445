"""TensorBoard event files: the scalars of a run as rows, in the order in which they were written."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fusewire_webhook.backtest.model import LogError


def rows_of(path: Path) -> list[dict[str, float]]:
    """A row for each step, with ``step``, ``wall_time`` and its scalars, from one file or all of a folder.

    TensorBoard itself hides what a run wrote after the step at which it was restarted. Here nothing is lost: a
    scalar that its step has already starts the rows anew, and the step goes back, as it did in the run.

    Raises:
        LogError: TensorBoard is not installed, or there are no scalars.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise LogError(f"{path}: reading TensorBoard files needs the extra: pip install 'fusewire[report]'")
    rows: list[dict[str, float]] = []
    by_step: dict[int, dict[str, float]] = {}
    for tag, step, time, value in _scalars(event_files(path) if path.is_dir() else [path]):
        if tag in by_step.get(step, ()):
            by_step = {}
        if step not in by_step:
            by_step[step] = {"step": float(step), "wall_time": time}
            rows.append(by_step[step])
        by_step[step][tag] = value
    if not rows:
        raise LogError(f"{path}: holds no scalars that can be read")
    return rows


def event_files(folder: Path) -> list[Path]:
    """Those directly in ``folder``, the oldest first: their names begin with the time."""
    return sorted(file for file in folder.glob("*tfevents*") if file.is_file())


def _scalars(files: Iterable[Path]) -> Iterator[tuple[str, int, float, float]]:
    """(tag, step, Unix seconds, value) of every scalar, written as such or as a tensor."""
    from tensorboard.backend.event_processing.event_file_loader import (  # noqa: PLC0415 - an extra
        LegacyEventFileLoader,
    )

    for file in files:
        for event in LegacyEventFileLoader(str(file)).Load():
            for each in event.summary.value:
                number = _number(each)
                if number is not None:
                    yield each.tag, event.step, event.wall_time, number


def _number(value: Any) -> float | None:
    from tensorboard.util import tensor_util  # noqa: PLC0415 - an extra

    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.HasField("tensor"):
        tensor = tensor_util.make_ndarray(value.tensor)
        if tensor.size == 1 and tensor.dtype.kind in "fiu":
            return float(tensor.item())
    return None
