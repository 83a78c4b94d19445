"""A picture per run: its signals over rows, the labelled onset, and when rules were pending and tripped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fusewire_webhook.backtest.verdict import Verdict
from fusewire_webhook.errors import ConfigError

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
        if log.first_bad_row is not None:
            panel.axvline(log.first_bad_row, color="#e08e0b", linestyle="--", linewidth=1)
        for rule in verdict.rules:
            if rule.action in ("trip", "hold"):
                panel.plot(
                    rule.pending_rows, [0.02] * len(rule.pending_rows), "|", color="#8e44ad",
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
