"""The default pack's score on the labelled public logs, as docs/rules.md records it, and what a backtest costs."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fusewire_webhook.backtest import report
from fusewire_webhook.backtest.pack import load
from fusewire_webhook.backtest.session import Options, backtest
from fusewire_webhook.backtest.verdict import Verdict, by_label, score
from tests.backtest.shared_logs import shared_logs
from tests.bench.held_out import PACK, held_out, judged, returns

ROOT = Path(__file__).parents[2]
SECONDS_ON_TWO_CORES = 120.0


def recorded(title: str) -> str:
    """What docs/rules.md records under ``title`` in its list of scores."""
    found = re.search(rf"^{re.escape(title)}: +(.+)$", (ROOT / "docs" / "rules.md").read_text(), re.MULTILINE)
    assert found is not None, title
    return found[1]


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


@pytest.fixture(scope="module")
def verdicts() -> Sequence[Verdict]:
    """The default pack's on all logs; two cores need two minutes at most."""
    logs = shared_logs()
    cpu, wall = cpu_seconds(), time.monotonic()
    found, errors = backtest(logs, load(sorted((ROOT / "rules").glob("*.rules.yaml"))), Options(jobs=2))
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
    print(f"{len(found)} runs, {sum(log.rows for log in logs)} rows: {cpu:.0f} s of CPU, {wall:.0f} s of wall time")
    assert not errors
    assert cpu / 2 <= SECONDS_ON_TWO_CORES
    return found


@pytest.mark.bench
def test_the_default_pack_keeps_its_score_on_public_logs(verdicts: Sequence[Verdict]) -> None:
    """The figures are those that docs/rules.md records: who changes one changes the record too."""
    found = score(verdicts)
    assert found is not None
    console = Console(file=sys.stdout, width=120)
    console.print(report.labels_table(verdicts))
    console.print(report.score_line(found), highlight=False)
    assert report.score_line(found) == recorded("one row a scrape")
    table = (ROOT / "docs" / "rules.md").read_text()
    for label, (tripped, runs) in by_label(verdicts).items():
        assert f"| {label} | {runs} | {tripped} |" in table


@pytest.mark.bench
def test_the_numbers_of_the_return_rule_hold_on_sources_that_they_were_not_chosen_on(
    verdicts: Sequence[Verdict],
) -> None:
    """The rule in numpy trips where promtool does; chosen on the other sources it does on each as recorded."""
    seen = {verdict.log.id: returns(verdict.log) for verdict in verdicts}
    elsewhere = {
        verdict.log.id: (verdict.tripped_row, tripped)
        for verdict in verdicts
        if (tripped := judged(verdict, seen[verdict.log.id], PACK).tripped_row) != verdict.tripped_row
    }
    assert elsewhere == {}
    found, chosen = held_out(verdicts, seen)
    for source, (share, age) in chosen.items():
        print(f"{source}: return_collapse {share:g}, return_collapse_age {age:.3g}")
    print(report.score_line(found))
    assert report.score_line(found) == recorded("each source judged by the numbers chosen on the others")
