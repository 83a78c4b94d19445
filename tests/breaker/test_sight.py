"""What is said of an attempt that no rule sees, and when."""

from __future__ import annotations

import pytest

from fusewire_webhook.engine.sight import FIRST_SCRAPE_SECONDS, START_SECONDS, Sight, not_watched, standing
from fusewire_webhook.watch.discovery import SILENT_SECONDS

LOOK_SECONDS = 2


def seen(*, scraped: tuple[int, int] = (0, 0), now: int, pace: float = 1.0, attempt: int = 1) -> Sight:
    """Looks from 0 to ``now`` at an attempt that was scraped between two instants, at ``pace`` updates a second."""
    sight = Sight()
    for at in range(0, now + 1, LOOK_SECONDS):
        visible = scraped[0] <= at < scraped[1]
        sight.look(attempt, at * pace // 1 if visible else None, at, scrape_interval=1.0)
    return sight


@pytest.mark.parametrize(
    ("scraped", "attached", "now", "state", "since"),
    [
        ((0, 0), None, 60, "starting", 0),
        ((0, 0), None, 62, "unattached", 0),
        ((0, 0), 50.0, 140, "starting", 0),
        ((0, 0), 50.0, 142, "unscraped", 50),
        ((0, 0), 500.0, 90, "starting", 0),
        ((10, 200), 8.0, 100, "watched", 0),
        ((10, 200), None, 100, "watched", 0),  # a disk that was full for the exporter's file
        ((10, 40), 8.0, 52, "watched", 0),
        ((10, 40), 8.0, 54, "unscraped", 38),
        ((10, 40), 8.0, 5000, "unscraped", 38),
    ],
)
def test_what_counts_as_watched(
    scraped: tuple[int, int], attached: float | None, now: int, state: str, since: float
) -> None:
    """Starting up is no fault; then it must have attached, and be scraped once it has."""
    told = seen(scraped=scraped, now=now).told(1, attached)
    assert told is not None
    assert (told["state"], told["since"]) == (state, since)


def test_nothing_is_said_of_another_attempt() -> None:
    """A new attempt begins anew, whatever became of the one before."""
    sight = seen(now=500)
    assert sight.told(2, None) is None
    sight.look(2, None, 502.0, scrape_interval=1.0)
    assert sight.told(2, None) == {"state": "starting", "since": 502.0, "step_at": None}


def test_looks_without_an_answer_are_none() -> None:
    """While Prometheus does not answer nobody looks, and nothing is held against the run."""
    told = seen(scraped=(0, 101), now=100).told(1, 0.0)
    assert not_watched(told, now=100 + 3600.0) == ""


def looks(*times: float, updates: float | None = None, sight: Sight | None = None) -> Sight:
    sight = sight or Sight()
    for at in times:
        sight.look(1, updates, at, scrape_interval=1.0)
    return sight


@pytest.mark.parametrize("attached", [None, 50.0])
def test_an_outage_of_prometheus_is_no_time_without_a_scrape(attached: float | None) -> None:
    """Patience counts the time in which looks were answered: before the outage, and again after it."""
    sight = looks(*range(60, 80, 2), updates=1.0)
    looks(402, 412, sight=sight)
    told = sight.told(1, attached)
    assert told is not None
    assert (told["state"], not_watched(told, 412.0)) == ("watched", "")
    told = looks(420, sight=sight).told(1, attached)
    assert not_watched(told, 420.0).startswith("not scraped for 18 s")


@pytest.mark.parametrize(
    ("attached", "patience"),
    [
        (None, START_SECONDS),
        (50.0, FIRST_SCRAPE_SECONDS),
        (380.0, FIRST_SCRAPE_SECONDS),
    ],
)
def test_an_outage_before_the_first_scrape(attached: float | None, patience: float) -> None:
    """Neither attaching nor the first scrape is overdue by the time of an outage."""
    used = 0.0 if attached == 380.0 else 10.0
    sight = looks(*range(50, 62, 2))
    looks(*(400 + after for after in range(0, int(patience - used) + 1, 2)), sight=sight)
    told = sight.told(1, attached)
    assert told is not None
    assert told["state"] == "starting"
    told = looks(400 + patience - used + 2, sight=sight).told(1, attached)
    assert told is not None
    assert told["state"] == ("unattached" if attached is None else "unscraped")


def test_looks_that_are_far_apart_are_no_outages() -> None:
    """Where rules are evaluated every 30 s, so long lies between any two looks."""
    sight = looks(*range(0, 600, 60), updates=1.0)
    told = looks(*range(600, 720, 60), sight=sight).told(1, 0.0)
    assert not_watched(told, 660.0).startswith("not scraped for 120 s")


def test_a_prometheus_that_asks_once_a_minute_learns_of_an_attempt_in_time() -> None:
    """Its question may come a minute after the trainer attached, and the watch calls that no silence either."""
    told = seen(now=70).told(1, 5.0)
    assert told is not None
    assert told["state"] == "starting"
    assert FIRST_SCRAPE_SECONDS >= SILENT_SECONDS


@pytest.mark.parametrize("scrape_interval", [1.0, 60.0])
def test_the_first_scrape_may_take_three_intervals(scrape_interval: float) -> None:
    """A Prometheus that scrapes once a minute has not failed after two of them."""
    sight = Sight()
    for at in range(0, 140, 2):
        sight.look(0, None, at, scrape_interval=scrape_interval)
    told = sight.told(0, 1.0)
    assert told is not None
    assert told["state"] == ("unscraped" if scrape_interval == 1.0 else "starting")


def test_the_words() -> None:
    """For how long, and what is missing; of a run that is watched, nothing."""
    watch = {"state": "unscraped", "since": 100.0, "step_at": 90.0}
    assert not_watched(watch, 145.0).startswith("not scraped for 45 s: no rule sees this run")
    assert not_watched({**watch, "state": "unattached"}, 205.0).startswith("not attached for 105 s: nothing judges")
    for state in ("watched", "starting"):
        assert not_watched({**watch, "state": state}, 1e6) == ""
    assert not_watched(None, 1e6) == ""


def test_a_step_that_stands_is_shown_with_its_age() -> None:
    """Whether a minute is long for this trainer the rules say; here is only how long it was."""
    watch = seen(scraped=(0, 1000), now=200, pace=0.01).told(1, 0.0)
    assert standing(watch, 200.0) == ""
    assert standing(watch, 350.0) == " (150 s ago)"
    assert standing(None, 350.0) == ""
