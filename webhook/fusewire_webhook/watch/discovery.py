"""Does Prometheus ask ``/sd`` what to scrape? Where it does not, no rule sees any attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

Outcome = Literal["answered", "unauthorized", "forbidden"]

SILENT_SECONDS = 90.0
"""Past Prometheus' default ``refresh_interval`` of a minute."""
REFUSED_SECONDS = 15.0
"""Where only refusals came for so long, and no answer was given for :data:`SILENT_SECONDS`, nobody else asks."""

_REMEDY = {
    "unauthorized": "it sends no token: its http_sd_configs need authorization: {type: Bearer, credentials_file: "
    "…}, the file of auth.alert_token_file (without type, Prometheus 2.42 sends none)",
    "forbidden": "its token is not the one in auth.alert_token_file",
}
_REMEDY_WITHOUT_TOKEN = (
    "without auth.alert_token_file only requests to a loopback address are answered: its http_sd_configs need "
    "url: http://127.0.0.1:PORT/sd"
)


class DiscoveryWatch:
    """Keeps when ``/sd`` was asked.

    Args:
        expected: is there anything to scrape, so that the question is to be expected?
        token: whether ``/sd`` asks for one.
        on_request: told of each one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        expected: Callable[[], bool],
        token: bool,
        on_request: Callable[[Outcome], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._token = token
        self._on_request = on_request
        self._clock = clock
        self._expected_since: float | None = None
        self._answered: float = float("-inf")
        self._refused: Outcome | None = None
        """How the last request since the last answer was refused."""

    def asked(self, outcome: Outcome, sender: str = "") -> None:
        """A request for ``/sd`` came."""
        if self._on_request is not None:
            self._on_request(outcome)
        if outcome == "answered":
            if self._refused is not None:
                log.warning("/sd is answered again")
            self._answered, self._refused = self._clock(), None
            return
        if self._refused is None:
            log.warning(
                "/sd is refused to %s, and what is not told cannot be scraped: %s",
                sender,
                self._remedy(outcome),
            )
        self._refused = outcome

    def problem(self) -> str:
        """What is wrong now, in a sentence; empty: nothing, or nothing is to be scraped."""
        now = self._clock()
        if not self._expected():
            self._expected_since = None
            return ""
        if self._expected_since is None:
            self._expected_since = now
        quiet = now - max(self._answered, self._expected_since)
        unanswered = now - self._answered > SILENT_SECONDS
        if self._refused is not None and unanswered and quiet > REFUSED_SECONDS:
            remedy = self._remedy(self._refused)
            return f"Prometheus is refused at /sd, so nothing tells it what to scrape: {remedy}"
        if quiet > SILENT_SECONDS:
            return (
                f"nobody has asked /sd for {quiet:.0f} s, so no new attempt is scraped: does your Prometheus have "
                "the job fusewire of docs/configuration.md, and reach this address?"
            )
        return ""

    def _remedy(self, refused: Outcome) -> str:
        return _REMEDY[refused] if self._token else _REMEDY_WITHOUT_TOKEN
