"""The default pack's score on the labelled public logs, and what a backtest of them costs."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from fusewire_webhook.backtest import report
from fusewire_webhook.backtest.pack import load
from fusewire_webhook.backtest.session import Options, backtest
from fusewire_webhook.backtest.verdict import score
from tests.backtest.shared_logs import shared_logs

RULES = Path(__file__).parents[2] / "rules"
SECONDS_ON_TWO_CORES = 120.0


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


@pytest.mark.bench
def test_the_default_pack_keeps_its_score_on_public_logs() -> None:
    """Good runs are left alone and bad ones caught within the budgets; two cores need two minutes at most."""
    logs = shared_logs()
    cpu, wall = cpu_seconds(), time.monotonic()
    verdicts, errors = backtest(logs, load(sorted(RULES.glob("*.rules.yaml"))), Options(jobs=2))
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
    found = score(verdicts)
    assert found is not None
    console = Console(file=sys.stdout, width=120)
    console.print(report.labels_table(verdicts))
    console.print(report.score_line(found), highlight=False)
    print(
        f"{len(verdicts)} runs, {sum(log.rows for log in logs)} rows: {cpu:.0f} s of CPU, {wall:.0f} s of wall time"
    )
    assert not errors
    assert found.spared[0] <= 1
    assert found.noisy[0] <= 4
    assert found.caught[0] >= 21
    assert found.early <= 2
    assert found.median_delay_rows is not None
    assert found.median_delay_rows <= 15
    assert cpu / 2 <= SECONDS_ON_TWO_CORES
