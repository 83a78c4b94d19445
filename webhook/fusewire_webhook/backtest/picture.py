"""A picture per run: its signals and the levels at which rules trip, the labelled onset, doubt and trip."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fusewire_webhook.backtest.verdict import Verdict
from fusewire_webhook.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("episode_return", "approx_kl", "policy_entropy", "value_loss", "grad_norm", "policy_loss")
"""Signals that get a panel, in this order; a log that has none of them shows those that it has."""


def check_drawing(folder: Path) -> None:
    """Whether pictures can be drawn into ``folder``, which is made.

    Raises:
        ConfigError: they cannot.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("pictures need the extra report: pip install 'fusewire[report]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: no folder for pictures: {error.strerror or error}") from error


def draw(verdict: Verdict, folder: Path) -> Path:
    """Write ``<id>.png`` into ``folder`` and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    log = verdict.log
    names = [name for name in SHOWN if name in log.columns] or list(log.columns)
    figure = Figure(figsize=(11, 1 + 1.9 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for panel, name in zip(panels, names, strict=True):
        column = log.columns[name]
        finite = column.reported & np.isfinite(column.values)
        panel.plot(np.flatnonzero(finite), column.values[finite], linewidth=0.8, color="#2a5d8f")
        broken = np.flatnonzero(column.reported & ~np.isfinite(column.values))
        panel.plot(broken, np.zeros(len(broken)), "x", color="#c0392b", markersize=4)
        panel.set_ylabel(name, fontsize=8)
        if finite.any() and np.ptp(np.abs(column.values[finite])) > 1e4:
            panel.set_yscale("symlog")
        _draw_limit(panel, verdict, name)
        if log.first_bad_row is not None:
            panel.axvline(log.first_bad_row, color="#e08e0b", linestyle="--", linewidth=1)
        panel.plot(
            verdict.pending_rows, [0.02] * len(verdict.pending_rows), "|", color="#8e44ad",
            transform=panel.get_xaxis_transform(),
        )  # fmt: skip
        if verdict.tripped_row is not None:
            panel.axvline(verdict.tripped_row, color="#c0392b", linewidth=1.2)
    tripped = (
        "not tripped" if verdict.tripped_row is None else f"{verdict.tripped_rule} at row {verdict.tripped_row}"
    )
    onset = "" if log.first_bad_row is None else f", bad from row {log.first_bad_row} (dashed)"
    figure.suptitle(f"{log.id}  {log.algorithm}  {log.label}{onset}: {tripped}", fontsize=10)
    panels[-1].set_xlabel("row")
    path = folder / f"{log.id}.png"
    figure.savefig(path, dpi=90)
    return path


def _draw_limit(panel: Axes, verdict: Verdict, signal: str) -> None:
    """The level at which a rule trips, where the panel has room for it: the signal keeps its scale."""
    rows, levels = verdict.limits.get(signal, ((), ()))
    low, high = panel.get_ylim()
    room = high - low
    shown = [level if low - room <= level <= high + room else np.nan for level in levels]
    if np.isfinite(shown).any():
        panel.plot(rows, shown, linestyle="--", linewidth=0.9, color="#c0392b")
    elif len(levels):
        panel.text(
            0.995, 0.9, f"limit outside: {levels[-1]:.3g}", fontsize=7, color="#c0392b", ha="right", va="top",
            transform=panel.transAxes,
        )  # fmt: skip
