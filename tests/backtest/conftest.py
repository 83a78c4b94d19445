"""Small recorded runs that the backtest's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fusewire_webhook.backtest.model import Column, RunLog
from fusewire_webhook.backtest.pack import Pack, load

RULES = Path(__file__).parents[2] / "rules"


def make_log(name: str, *, label: str = "", first_bad_row: int | None = None, **signals: Sequence[float]) -> RunLog:
    """A log that reports every signal in every row."""
    columns = {
        signal: Column(values=np.array(values, float), reported=np.ones(len(values), bool))
        for signal, values in signals.items()
    }
    rows = len(next(iter(signals.values())))
    return RunLog(
        id=name, columns=columns, steps=np.arange(rows, dtype=float), label=label, first_bad_row=first_bad_row
    )


@pytest.fixture(scope="session")
def default_pack() -> Pack:
    return load(sorted(RULES.glob("*.rules.yaml")))
