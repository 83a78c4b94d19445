"""What a recorded run is, and what is wrong with one that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fusewire_webhook.errors import WebhookError

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

BAD_LABELS = frozenset({"collapsed_reward", "diverged", "nonfinite", "bad"})
"""Labels of runs that should trip."""
SPARED_LABELS = frozenset({"healthy", "kl_spike"})
"""Labels of runs that must not: a KL spike that the run survived is no reason to stop it."""
NOISY_LABEL = "noisy_but_fine"


class LogError(WebhookError):
    """A recorded run cannot be used. The message names the file and the remedy."""

    reason = "log"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One signal of a run: a value per row, and in which rows it was reported at all."""

    values: Floats
    """[rows], NaN and ±Inf as reported."""
    reported: Booleans
    """[rows]: an empty cell is no report; NaN is one."""


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """One run, scraped."""

    run: str
    scrapes: int
    series: dict[str, str]
    """Selector to values in promtool's notation."""


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """One recorded run. Rows are policy updates, in the order in which they were written."""

    id: str
    columns: dict[str, Column]
    """By the name of the signal in :mod:`fusewire.signals`."""
    steps: Floats
    """[rows], the trainer's own step numbers; NaN where unknown."""
    seconds: Floats | None = None
    """[rows], since the start, as logged; NaN where unknown; None: the log has no time."""
    algorithm: str = ""
    source: str = ""
    label: str = ""
    """``healthy``, ``noisy_but_fine``, ``collapsed_reward`` …; empty: not labelled."""
    first_bad_row: int | None = None
    """Row, counted from 0, at which the failure began."""
    stored: Exposure | None = None
    """What Prometheus has scraped of it, where that is known; else it is made from the rows."""
    notes: tuple[str, ...] = field(default=())
    """What was odd about the file and how it was read."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.steps)

    @property
    def is_bad(self) -> bool:
        """Whether the label says that a trip is wanted."""
        return self.label in BAD_LABELS
