"""Is a run's attempt watched? What each look of the watch saw of it: attached, scraped, advancing.

Pure. It decides nothing and is not journaled: the first looks after a restart of the webhook bring it back. A look
that got no answer is none: what is unknown is no news. Times in Unix seconds, for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Watched = Literal["starting", "watched", "unattached", "unscraped"]

START_SECONDS = 60.0
"""A trainer that imports and loads for so long without having attached is starting up."""
FIRST_SCRAPE_SECONDS = 90.0
"""From having attached to the first scrape: past Prometheus' default ``refresh_interval`` of a minute, at which it
learns of the attempt. Or three scrape intervals where they are longer."""
UNSCRAPED_SECONDS = 15.0
"""On top of the 3.5 scrape intervals in which a sample counts as the present one. So long without a look, and three
times as long as the closest looks are apart, Prometheus did not answer."""
STILL_SECONDS = 30.0
"""A step that came longer ago is shown with its age; whether that is long for this trainer the rules say."""


class Sight:
    """What was seen of the present attempt."""

    def __init__(self) -> None:
        self._attempt = -1
        self._since = self._looked = 0.0
        self._interval = 0.0
        self._pace = float("inf")
        """Seconds between the closest two looks."""
        self._outages: list[tuple[float, float]] = []
        """When nobody could look."""
        self._scraped: float | None = None
        self._updates: float | None = None
        self._advanced: float | None = None

    def look(self, attempt: int, updates: float | None, now: float, *, scrape_interval: float) -> None:
        """Take in one look: the updates that the attempt has reported; None: it was not scraped lately."""
        if attempt != self._attempt:
            self._attempt, self._since = attempt, now
            self._scraped = self._updates = self._advanced = None
            self._outages.clear()
        elif (gap := now - self._looked) > 0:
            self._pace = min(self._pace, gap)
            if gap > max(UNSCRAPED_SECONDS, 3 * self._pace):
                self._outages.append((self._looked, now))
        self._looked, self._interval = now, scrape_interval
        if updates is None:
            return
        if self._updates is not None and updates > self._updates:
            self._advanced = now
        self._scraped, self._updates = now, updates

    def told(self, attempt: int, attached: float | None) -> dict[str, Any] | None:
        """``{"state", "since", "step_at"}`` of the attempt that ``attached`` then; None: nobody has looked yet."""
        if attempt != self._attempt:
            return None
        state, since = self._state(attached)
        return {"state": state, "since": since, "step_at": self._advanced}

    def _state(self, attached: float | None) -> tuple[Watched, float]:
        if self._scraped is not None:
            scraped = self._without_outages(self._scraped)
            lost = self._looked - scraped > UNSCRAPED_SECONDS
            return ("unscraped", scraped) if lost else ("watched", self._since)
        begun = self._without_outages(self._since if attached is None else max(self._since, attached))
        patience = START_SECONDS if attached is None else max(FIRST_SCRAPE_SECONDS, 3 * self._interval)
        if self._looked - begun <= patience:
            return "starting", self._since
        return ("unattached" if attached is None else "unscraped"), begun

    def _without_outages(self, instant: float) -> float:
        """``instant``, moved forward by the outages since: what is unknown is held against nobody."""
        return instant + sum(max(0.0, end - max(begin, instant)) for begin, end in self._outages)


def not_watched(watch: Mapping[str, Any] | None, now: float) -> str:
    """What is to be said of an attempt that no rule sees; empty: nothing."""
    if watch is None or watch["state"] not in {"unattached", "unscraped"}:
        return ""
    seconds = f"{max(0.0, now - watch['since']):.0f} s"
    if watch["state"] == "unattached":
        return f"not attached for {seconds}: nothing judges this run until the trainer calls fusewire.attach()"
    return f"not scraped for {seconds}: no rule sees this run; does Prometheus reach its exporter?"


def standing(watch: Mapping[str, Any] | None, now: float) -> str:
    """How long the step has not changed, in brackets, where that is long enough to be of interest."""
    at = None if watch is None or watch["state"] == "starting" else watch["step_at"]
    return f" ({now - at:.0f} s ago)" if at is not None and now - at > STILL_SECONDS else ""
