"""How ReturnCollapse does on sources that its numbers were not chosen on.

The rule is computed in numpy here, from the very scrapes that promtool gets: hundreds of variants in seconds. The
benchmark holds the two to the same row of every log at the pack's own numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusewire_webhook.backtest.exposure import expose
from fusewire_webhook.backtest.model import Booleans, Floats, RunLog
from fusewire_webhook.backtest.verdict import Score, Verdict, score

SHARES = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
AGES = (0.0, 1 / 200, 1 / 100, 1 / 50, 1 / 33, 1 / 20, 1 / 10)
PACK = (0.5, 1 / 50)
"""return_collapse and return_collapse_age of the default pack."""
Numbers = tuple[float, float]

_SERIES = {
    "held": ("rl_episode_return_run_min", 'steps="3"'),
    "best": ("rl_episode_return_run_min", 'steps="1"'),
    "lowest": ("rl_episode_return_run_max", 'steps="1"'),
    "ten": ("rl_episode_return_run_max", 'steps="10"'),
    "updates": ("rl_updates_total", ""),
}


@dataclass(frozen=True, kw_only=True)
class Returns:
    """What the rule sees of a run, one entry a scrape, where a row is a scrape."""

    lost: Floats
    """Share of the held level or of the range that the best of the window lies below; NaN where not known."""
    updates: Floats


def returns(log: RunLog) -> Returns:
    """Of a run whose rows are scrapes."""
    names = {name for name, _ in _SERIES.values()}
    exposed = expose(log, np.arange(log.rows, dtype=float), scrape_seconds=1, window_seconds=10, names=names)
    seen = {
        key: next(
            (
                _values(text)
                for selector, text in exposed.series.items()
                if selector.startswith(name) and of in selector
            ),
            np.empty(0),
        )
        for key, (name, of) in _SERIES.items()
    }
    rows = {key: np.concatenate((values, np.full(log.rows - len(values), np.nan))) for key, values in seen.items()}
    held = np.fmax.accumulate(rows["held"])
    lowest = np.fmin.accumulate(np.where(np.isposinf(rows["lowest"]), np.nan, rows["lowest"]))
    best = np.where(np.isneginf(rows["best"]) | np.isnan(rows["ten"]), np.nan, rows["best"])
    whole = np.maximum(np.maximum(np.abs(held), held - lowest), 1e-300)
    with np.errstate(invalid="ignore"):
        return Returns(lost=(held - best) / whole, updates=rows["updates"])


def collapse_row(seen: Returns, share: float, age: float) -> int | None:
    """The first row at which ReturnCollapse fires with these numbers."""
    low: Booleans = seen.lost > share
    since = np.maximum.accumulate(np.where(low & ~np.roll(low, 1), np.arange(len(low)), 0))
    fires = low & (seen.updates - seen.updates[since] >= seen.updates * age)
    return int(np.argmax(fires)) if fires.any() else None


def judged(verdict: Verdict, seen: Returns, numbers: Numbers) -> Verdict:
    """The verdict as it would be with these numbers: the other trips stay where they are."""
    rows = [rule.firing_row for rule in verdict.rules if rule.action == "trip" and rule.rule != "ReturnCollapse"]
    rows.append(collapse_row(seen, *numbers))
    return replace(verdict, tripped_row=min((row for row in rows if row is not None), default=None))


def chosen(variants: Mapping[Numbers, Sequence[Verdict]]) -> Numbers:
    """The numbers that do best: good runs spared first, then noisy ones, then bad ones caught, in time and soon."""

    def badness(numbers: Numbers) -> tuple[float, ...]:
        found = score(variants[numbers])
        assert found is not None
        delay = found.median_delay_rows or 0.0
        return found.spared[0], found.noisy[0], -found.caught[0], found.early, delay

    return min(variants, key=badness)


def held_out(verdicts: Sequence[Verdict], seen: Mapping[str, Returns]) -> tuple[Score, dict[str, Numbers]]:
    """The score where each source is judged with numbers chosen on the others, and these numbers by source.

    Args:
        seen: by the name of the log.
    """
    variants = {
        numbers: [judged(verdict, seen[verdict.log.id], numbers) for verdict in verdicts]
        for numbers in itertools.product(SHARES, AGES)
    }
    used: dict[str, Numbers] = {}
    result: list[Verdict] = []
    for source in sorted({verdict.log.source for verdict in verdicts}):
        others = {
            numbers: [verdict for verdict in runs if verdict.log.source != source]
            for numbers, runs in variants.items()
        }
        used[source] = chosen(others)
        result += [verdict for verdict in variants[used[source]] if verdict.log.source == source]
    found = score(result)
    assert found is not None
    return found, used


def _values(notation: str) -> Floats:
    """The samples of a series in promtool's notation; NaN where there is none."""
    found: list[float] = []
    for token in notation.split():
        value, times, count = token.partition("x")
        if value == "_":
            found += [np.nan] * (int(count) if times else 1)
        else:
            found += [float(value)] * (int(count) + 1 if times else 1)
    return np.array(found)
