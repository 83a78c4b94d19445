"""The default pack judges a trainer alike however long its updates take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusewire_webhook.backtest.clock import parse_clock
from fusewire_webhook.backtest.pack import load
from fusewire_webhook.backtest.session import Options, backtest
from tests.backtest.conftest import make_log

RULES = Path(__file__).parents[2] / "rules"


@pytest.mark.parametrize(
    ("row_seconds", "quiet", "latest"),
    [("1", 130, 20), ("20", 60, 20), ("0.05", 2000, 300)],
    ids=["a second", "twenty seconds", "twenty a second: the best return of the window is older"],
)
def test_a_critic_that_explodes_by_and_by_is_stopped_at_any_step_rate(
    row_seconds: str, quiet: int, latest: int
) -> None:
    """A critic loss that triples with each update trips once it is a hundred times what it was."""
    rows = np.arange(quiet + latest + 20)
    grown = np.clip(rows - quiet + 1, 0, 60)
    log = make_log("explosion", value_loss=(3.0**grown).tolist(), episode_return=(100.0 - grown).tolist())
    pack = load([RULES / "thresholds.rules.yaml", RULES / "divergence.rules.yaml"])
    ((verdict,), errors) = backtest([log], pack, Options(clock=parse_clock(row_seconds), jobs=1))
    assert not errors
    assert verdict.tripped_rule == "ValueLossExplosion"
    assert verdict.tripped_row is not None
    assert 0 <= verdict.tripped_row - quiet <= latest
