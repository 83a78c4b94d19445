"""Rows become scrapes exactly as the exporter would have shown them."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from fusewire_webhook.backtest.clock import RowClock, parse_clock, times
from fusewire_webhook.backtest.exposure import STALE, expose, notation, rows_seen
from fusewire_webhook.backtest.model import LogError, RunLog
from tests.backtest.conftest import make_log

NAMES = {"rl_updates_total", "rl_approx_kl", "rl_approx_kl_run_min", "rl_nonfinite_total"}


def series(log: RunLog, clock: str = "rows", scrape: float = 1.0) -> dict[str, str]:
    seconds = times(log, parse_clock(clock), scrape_seconds=scrape)
    return expose(log, seconds, scrape_seconds=scrape, window_seconds=10.0, names=NAMES).series


def of(found: dict[str, str], start: str, *parts: str) -> str:
    (values,) = [v for k, v in found.items() if k.startswith(start + "{") and all(part in k for part in parts)]
    return values


def test_one_row_is_one_scrape_and_folds_are_the_exporters() -> None:
    """Series start where the exporter would first show them; NaN and infinity stay; repeats are short."""
    found = series(make_log("r", approx_kl=[1.0, 2.0, 3.0, float("nan"), float("inf"), 5.0, 5.0, 5.0]))
    assert of(found, "rl_approx_kl") == "1.0 2.0 3.0 NaN Inf 5.0x2"
    assert of(found, "rl_approx_kl_run_min", 'steps="3"') == "_x2 1.0x3 5.0x1"
    assert not [key for key in found if 'steps="10"' in key]
    assert of(found, "rl_nonfinite_total", 'signal="approx_kl"') == "0.0x2 1.0 2.0x3"
    assert of(found, "rl_updates_total") == "1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0"


def test_rows_without_a_report_are_scraped_but_no_update() -> None:
    """An empty row moves time and nothing else."""
    log = make_log("r", approx_kl=[1.0, 2.0, 3.0])
    log.columns["approx_kl"].reported[1] = False
    assert of(series(log), "rl_updates_total") == "1.0x1 2.0"


def test_several_rows_fit_into_one_scrape_and_none_is_lost() -> None:
    """At a given step time patience in updates stays exact."""
    found = series(make_log("r", approx_kl=[0.0, 9.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0]), clock="0.25")
    assert of(found, "rl_updates_total") == "1.0 5.0 9.0"
    assert of(found, "rl_approx_kl_run_min", 'steps="3"') == "_x1 9.0x1"


@pytest.mark.parametrize("scrape", [0.25, 0.1, 1.0])
def test_every_row_is_seen_by_its_own_scrape_in_spite_of_rounding(scrape: float) -> None:
    """Row n is the newest that scrape n sees, at any interval."""
    seconds = times(make_log("r", approx_kl=[0.0] * 5000), RowClock(), scrape_seconds=scrape)
    assert np.array_equal(rows_seen(seconds, scrape), np.arange(1, 5001))


def test_the_logs_own_time_is_used_and_its_gaps_are_scraped() -> None:
    """Between two rows the exporter goes on showing the last."""
    log = make_log("r", approx_kl=[1.0, 2.0, 3.0])
    log = RunLog(id="r", columns=log.columns, steps=log.steps, seconds=np.array([50.0, np.nan, 53.0]))
    assert of(series(log, clock="log"), "rl_approx_kl") == "2.0x2 3.0"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "no time of its own"), ([1.0, 0.0, 2.0], "goes back at row 1"), ([0.0, 1.0, 1e9], "more than 100,000")],
)
def test_an_unusable_time_says_what_to_do(seconds: list[float] | None, words: str) -> None:
    """Each is a message with the remedy."""
    log = make_log("r", approx_kl=[1.0, 2.0, 3.0])
    log = RunLog(
        id="r", columns=log.columns, steps=log.steps, seconds=None if seconds is None else np.array(seconds)
    )
    with pytest.raises(LogError, match=f"{words}.*--time"):
        times(log, RowClock(kind="log"), scrape_seconds=1.0)


def test_a_million_rows_are_refused_with_a_step_time_that_works() -> None:
    """The proposed --time is one that fits."""
    log = make_log("r", approx_kl=np.zeros(1_000_000))
    with pytest.raises(LogError, match="--time") as caught:
        times(log, RowClock(), scrape_seconds=1.0)
    proposed = str(caught.value).split("--time ")[-1].split(" ")[0]
    assert times(log, parse_clock(proposed), scrape_seconds=1.0)[-1] < 100_000


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_step_time_must_be_positive(text: str) -> None:
    """Nonsense is refused."""
    with pytest.raises(ValueError, match=r"."):
        parse_clock(text)


def test_a_single_row_makes_a_single_scrape() -> None:
    """The shortest run works."""
    assert of(series(make_log("r", approx_kl=[7.0])), "rl_approx_kl") == "7.0"


def test_names_with_quotes_and_braces_stay_inside_their_label() -> None:
    """A run's name cannot leave its matcher."""
    found = series(make_log('a"},x{', approx_kl=[1.0]))
    assert any('run="a\\"},x{"' in key for key in found)


def test_a_gap_ends_a_series_as_a_failed_scrape_does() -> None:
    """The first missing scrape is a stale marker, so that no rule goes on seeing the last value."""
    values = array("d", [1.0, STALE, STALE, STALE, 2.0, STALE, float("nan")])
    assert notation(2, values) == "_x2 1.0 stale _x2 2.0 stale NaN"
