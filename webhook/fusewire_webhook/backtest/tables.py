"""Tables of cells to :class:`RunLog`: which column is which signal, and what odd cells mean.

An empty cell is no report. ``nan``, ``inf`` and ``-inf`` are reports. Anything else that is no number counts as
empty and is noted. Rows keep their order, also where the step goes back or repeats: that is how they were reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fusewire.signals import CATALOGUE
from fusewire_webhook.backtest.model import Booleans, Column, Floats, LogError, RunLog

ALIASES: dict[str, tuple[str, ...]] = {
    "approx_kl": (
        "train/approx_kl", "losses/approx_kl", "policy/approxkl_avg", "train/policy/approxkl_avg", "actor/ppo_kl",
        "policy/approx_kl", "kl",
    ),
    "reference_kl": (
        "objective/kl", "train/objective/kl", "train/kl", "objective/reference_kl", "train/reference_kl", "kl_ref",
        "ref_kl",
    ),
    "policy_entropy": (
        "entropy", "train/entropy", "losses/entropy", "policy/entropy_avg", "train/policy/entropy_avg",
        "policy/entropy", "objective/entropy",
    ),
    "value_loss": (
        "train/value_loss", "losses/value_loss", "loss/value_avg", "train/loss/value_avg", "vf_loss", "critic_loss",
        "train/critic_loss",
    ),
    "policy_loss": (
        "train/policy_loss", "train/policy_gradient_loss", "losses/policy_loss", "loss/policy_avg",
        "train/loss/policy_avg", "actor_loss", "train/actor_loss", "loss", "train/loss",
    ),
    "episode_return": (
        "reward", "rollout/ep_rew_mean", "charts/episodic_return", "episode_reward_mean", "train/reward",
        "reward_mean", "objective/scores", "return",
    ),
    "episode_length": ("rollout/ep_len_mean", "charts/episodic_length", "episode_len_mean"),
    "evaluation_return": ("eval/mean_reward", "eval/reward", "evaluation_reward"),
    "grad_norm": ("train/grad_norm", "gradient_norm"),
    "learning_rate": ("lr", "train/learning_rate", "charts/learning_rate"),
    "clip_fraction": ("train/clip_fraction", "losses/clipfrac", "clip_ratio", "train/clip_ratio", "clipfrac"),
    "explained_variance": ("train/explained_variance", "losses/explained_variance"),
    "reward_std": ("train/reward_std",),
    "response_length": ("completion_length", "train/completion_length", "completions/mean_length"),
}  # fmt: skip
"""Names under which trainers log the signals, the most specific first; the signal's own name comes before them.

Two divergences are called KL: how far one update moved the policy (approx_kl) and how far it is from the reference
model of an LLM (reference_kl). TRL logs the latter as ``kl`` or ``objective/kl`` and, to W&B, as ``train/kl``.
"""

TRAINER_STATE = {"reference_kl": "kl"}
"""Columns that a Hugging Face ``trainer_state.json`` calls otherwise than others do."""

STEP_NAMES = ("step", "Step", "global_step", "_step", "train/global_step", "timesteps_total", "rows")
TIME_NAMES = ("time_s", "_runtime", "relative_time", "time_total_s", "seconds")
"""Seconds since the start; ``_timestamp`` and ``wall_time`` (Unix seconds) are made relative."""
STAMP_NAMES = ("_timestamp", "wall_time", "timestamp")

_EMPTY = ("", "none", "null", "na", "n/a")


def known_columns(names: Iterable[str], mapping: Mapping[str, str] | None = None) -> dict[str, str]:
    """For each signal that a log has, the column that holds it. ``mapping`` (signal to column) comes first."""
    present = {_bare(name): name for name in names} | {name: name for name in names}
    chosen = {signal: column for signal, column in (mapping or {}).items() if column in present}
    for signal in CATALOGUE:
        for name in (signal.name, *ALIASES.get(signal.name, ())):
            if signal.name not in chosen and name in present and present[name] not in chosen.values():
                chosen[signal.name] = present[name]
    return chosen


def _bare(name: str) -> str:
    """``run - column``, as the page of Weights & Biases exports it, without the run."""
    return name.rpartition(" - ")[2]


def run_log(
    name: str,
    header: Sequence[str],
    cells: Mapping[str, Sequence[Any]],
    *,
    mapping: Mapping[str, str] | None = None,
    house: Mapping[str, str] = MappingProxyType({}),
) -> RunLog:
    """The run in a table; ``cells`` are its columns, of equal length.

    Args:
        mapping: columns of signals, as the user names them.
        house: as the program names them that wrote the file.

    Raises:
        LogError: no row, no column that is a known signal, or columns of several runs.
    """
    mapping = mapping or {}
    signals = known_columns(header, {**house, **mapping})
    found = {_bare(column) for column in signals.values() if column not in mapping.values() and " - " in column}
    runs = {column.rpartition(" - ")[0] for column in header if _bare(column) in found and " - " in column}
    if len(runs) > 1:
        raise LogError(
            f"{name}: has columns of several runs ({', '.join(map(repr, sorted(runs)))}); export one run, or "
            "choose with --column SIGNAL=COLUMN"
        )
    if not signals:
        raise LogError(
            f"{name}: no column is a known signal (it has: {', '.join(header) or 'none'}); "
            "name them with --column SIGNAL=COLUMN, such as --column episode_return=my_reward"
        )
    rows = len(next(iter(cells.values()), ()))
    if not rows:
        raise LogError(f"{name}: no rows")
    notes = [
        f"has no column {column}, which --column names for {signal}; it has {', '.join(header)}"
        for signal, column in mapping.items()
        if column not in header
    ]
    columns: dict[str, Column] = {}
    for signal, column in signals.items():
        values, reported, odd = _numbers(cells[column])
        if odd:
            notes.append(f"column {column}: {odd} cells are no numbers and were left out")
        if reported.any():
            columns[signal] = Column(values=values, reported=reported)
    if not columns:
        raise LogError(f"{name}: the columns {', '.join(signals.values())} hold no number")
    steps = _first(header, cells, STEP_NAMES)
    if steps is not None:
        notes += _step_notes(steps)
    return RunLog(
        id=name,
        columns=columns,
        steps=steps if steps is not None else np.arange(rows, dtype=np.float64),
        seconds=_seconds(header, cells),
        notes=tuple(notes),
    )


def _first(header: Sequence[str], cells: Mapping[str, Sequence[Any]], names: Sequence[str]) -> Floats | None:
    for name in names:
        if name in header:
            values, reported, _ = _numbers(cells[name])
            if reported.any():
                return np.where(reported, values, np.nan)
    return None


def _seconds(header: Sequence[str], cells: Mapping[str, Sequence[Any]]) -> Floats | None:
    seconds = _first(header, cells, TIME_NAMES)
    if seconds is not None:
        return seconds
    stamps = _first(header, cells, STAMP_NAMES)
    return None if stamps is None else stamps - np.nanmin(stamps)


def _numbers(cells: Sequence[Any]) -> tuple[Floats, Booleans, int]:
    """Values, where they were reported, and how many cells were neither a number nor empty."""
    values = np.full(len(cells), np.nan)
    reported = np.zeros(len(cells), np.bool_)
    odd = 0
    for row, cell in enumerate(cells):
        if cell is None or isinstance(cell, bool):
            continue
        try:
            values[row] = float(cell)
            reported[row] = True
        except OverflowError:  # an integer beyond every float, which as a text would have become infinite
            values[row] = math.inf if cell > 0 else -math.inf
            reported[row] = True
        except (TypeError, ValueError):
            odd += not (isinstance(cell, str) and cell.strip().lower() in _EMPTY)
    return values, reported, odd


def _step_notes(steps: Floats) -> list[str]:
    difference = np.diff(steps[np.isfinite(steps)])
    back, repeated = int((difference < 0).sum()), int((difference == 0).sum())
    notes = []
    if back:
        notes.append(f"the step goes back {back} times; rows were taken in their order")
    if repeated:
        notes.append(f"the step repeats {repeated} times; each row counts as an update")
    return notes
