"""A run is read back from a real Prometheus."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fusewire_webhook.backtest.clock import RowClock
from fusewire_webhook.backtest.live import read_live
from fusewire_webhook.backtest.model import LogError
from fusewire_webhook.backtest.pack import Pack
from fusewire_webhook.backtest.session import Options, backtest
from servers import running

pytestmark = pytest.mark.stack

AGO = 60
"""Seconds for which the run was scraped."""


def exposition(now: int) -> str:
    """Two attempts; the second reports a KL at every other update, and its counter stands still for ten seconds."""
    lines = ["# TYPE rl_updates counter"]
    updates = [n if n < 20 else max(20, n - 10) for n in range(AGO)]
    lines += [f'rl_updates_total{{run="r",attempt="0"}} {n} {now - 600 + n}' for n in range(5)]
    lines += [f'rl_updates_total{{run="r",attempt="1"}} {count} {now - AGO + n}' for n, count in enumerate(updates)]
    lines.append("# TYPE rl_approx_kl gauge")
    lines += [
        f'rl_approx_kl{{run="r",attempt="1"}} {"NaN" if n == 3 else n / 100} {now - AGO + n}' for n in range(AGO)
    ]
    return "\n".join([*lines, *fast(now), "# EOF", ""])


def fast(now: int) -> list[str]:
    """Ten updates a scrape; a KL of 9 in ten that no scrape saw; a return in every twentieth scrape."""
    labels = 'run="fast",attempt="0",algorithm="ppo",instance="h:1"'
    missed = {30, 31}
    scrapes = [(n, now - AGO + n) for n in range(AGO) if n not in missed]
    lines = [f"rl_updates_total{{{labels}}} {10 * n + 1} {at}" for n, at in scrapes]
    lines += ["# TYPE rl_reports counter"]
    lines += [f'rl_reports_total{{{labels},signal="approx_kl"}} {10 * n + 1} {at}' for n, at in scrapes]
    lines += [f'rl_reports_total{{{labels},signal="episode_return"}} {n // 20 + 1} {at}' for n, at in scrapes]
    lines += [f"rl_approx_kl{{{labels}}} 0.01 {at}" for _, at in scrapes]
    lines += ["# TYPE rl_approx_kl_run_min gauge"]
    lines += [
        f'rl_approx_kl_run_min{{{labels},steps="10"}} {9 if 40 <= n < 50 else 0.01} {at}' for n, at in scrapes
    ]
    lines += ["# TYPE rl_episode_return gauge"]
    return lines + [f"rl_episode_return{{{labels}}} {n // 20} {at}" for n, at in scrapes]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "in.txt").write_text(exposition(int(time.time())))
    (folder / "prometheus.yml").write_text("{}")
    data = folder / "data"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "in.txt", data],
        check=True, capture_output=True,
    )  # fmt: skip
    prometheus = ("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data")
    with running(*prometheus, folder=folder) as server:
        yield server.url


def test_rows_are_the_scrapes_in_which_the_counter_moved(url: str) -> None:
    """The newest attempt is taken, NaN stays, and a scrape without an update is no row."""
    log = read_live(url, run="r", attempt=None, range_seconds=1200, scrape_seconds=1, names=())
    assert log.id == "r"
    assert log.notes == ("attempt 1, judged by the stored series; a row is a scrape with new updates",)
    kl = log.columns["approx_kl"]
    assert 48 <= log.rows <= 50
    assert np.isnan(kl.values[3])
    assert kl.reported.all()
    assert (np.diff(log.steps) > 0).all()


def test_an_older_attempt_can_be_named_and_an_unknown_run_is_an_error(url: str) -> None:
    """Attempt 0 reported no signal; a run that nobody knows is named."""
    with pytest.raises(LogError, match="no known signal"):
        read_live(url, run="r", attempt=0, range_seconds=1200, scrape_seconds=1, names=())
    with pytest.raises(LogError, match="no run 'other'"):
        read_live(url, run="other", attempt=None, range_seconds=1200, scrape_seconds=1, names=())


def test_the_stored_series_are_judged_and_what_no_scrape_saw_is_among_them(url: str, default_pack: Pack) -> None:
    """A spike between two scrapes trips as it did; a range beyond one answer of Prometheus is read in parts."""
    log = read_live(
        url, run="fast", attempt=None, range_seconds=6 * 3600, scrape_seconds=1, names=default_pack.scraped
    )
    assert log.algorithm == "ppo"
    assert "533 of 591 updates lay between two scrapes" in log.notes[1]
    assert log.columns["episode_return"].values[log.columns["episode_return"].reported].tolist() == [0.0, 1.0, 2.0]
    assert (log.columns["approx_kl"].values < 1).all()
    (verdict,), errors = backtest(
        [log], default_pack, Options(jobs=1, clock=RowClock(kind="fixed", step_seconds=5))
    )
    assert not errors
    assert verdict.tripped_rule == "KLSpike"
    assert verdict.tripped_seconds is not None
    assert 39 <= verdict.tripped_seconds <= 41
    assert "ValueLossExplosion" in verdict.left_out
