"""``fusewire log``: what is new stands in a line of its own, what is repeated does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire_webhook.cli import main
from postmortem.recorded import RUN, TRIP, alert, recovered, write_journal


def told(runs: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """The lines of the log."""
    assert main(["log", RUN, "--runs", str(runs), *more]) == 0
    return capsys.readouterr().out.splitlines()


def test_repeated_alerts_are_counted_where_they_came_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten minutes of two alerts of a dead attempt add two lines, and what is news among them is marked as past."""
    again = [alert(name, at=TRIP + 60 * n) for n in range(1, 11) for name in ("KLSpike", "EntropyCollapse")]
    write_journal(tmp_path, [*recovered(), *again])
    lines = told(tmp_path, capsys)
    spikes = [line for line in lines if "trip alert KLSpike" in line]
    assert len(spikes) == 1
    assert "(older attempt: recorded only)" not in spikes[0]
    after = lines[lines.index(spikes[0]) + 1 :]
    assert "→ open: divergence" in after[0]
    assert after[1].strip().startswith("reported 10× again, last at 2026-11-30")
    (late,) = (line for line in lines if "trip alert EntropyCollapse" in line)
    assert late.endswith("(older attempt: recorded only)")
    assert lines[lines.index(late) + 1].strip().startswith("reported 9× again")
    everything = told(tmp_path, capsys, "--all")
    assert sum("trip alert KLSpike" in line for line in everything) == 11
    assert sum(line.endswith("(older attempt: recorded only)") for line in everything) == 20
