"""The audit of the learning rate: its schedule, and what a restart made of it. Pure."""

from __future__ import annotations

import numpy as np

from fusewire_webhook.postmortem.audit import FEWEST, Finding, RunData, Start, absent, finding, not_finite
from fusewire_webhook.postmortem.traces import Floats, Trace

PROGRESS = "progress"
"""Signal that a trainer may declare to report the share of its planned updates that is done, 0 to 1."""
DECAYED, EARLY = 0.05, 0.75
"""A rate under this share of the attempt's highest one has decayed; before this progress it is too early."""
STOOD_SHARE = 0.25
"""A decayed rate that did not change for the last quarter of the attempt: the schedule had run out."""
NOTHING = 0.01
"""Under this share nothing is left, and without a word of the progress it is taken for too early."""
JUMPED = 3.0
"""A learning rate this many times the median of all before it has jumped."""
WARM_UP = 0.1
"""Share of the attempt at its start in which any rise is a warm-up."""
RATE_TOLERANCE = 0.1


def learning_rate(data: RunData) -> Finding:
    """Whether the schedule had run out too early, jumped, or was not restored at a restart."""
    item, rates = "Learning-rate schedule", data.get("learning_rate")
    told, reasons, sure = [], [], True
    if rates is not None and rates.bad:
        reasons.append(not_finite("learning_rate", rates))
    if rates is not None and len(rates.finite):
        values = rates.finite
        median, highest = np.median(values), values.max()
        told.append(f"First {values[0]:.4g}, median {median:.4g}, highest {highest:.4g}, last {values[-1]:.4g}.")
    if rates is not None and len(rates.finite) >= FEWEST:
        decay, sure = _decay(rates.finite, data.get(PROGRESS))
        (reasons if sure and decay else told).append(decay)
        rise = _rise(rates.finite)
        if rise >= JUMPED:
            reasons.append(f"It jumped to {rise:.3g} times the median of all before.")
    for start in data.starts:
        restored, text = _restored(start)
        told.append(text)
        if not restored:
            reasons.append(f"Attempt {start.attempt} did not take the rate that it was asked for.")
    judged = any(start.rate is not None or start.reported_scale is not None for start in data.starts)
    if not judged and rates is None:
        return absent(data, item, "learning_rate")
    return finding(item, reasons, told, otherwise="pass" if sure else "unknown")


def _decay(rates: Floats, progress: Trace | None) -> tuple[str, bool]:
    """What speaks for a schedule that had run out too early, if anything does, and whether the data tell."""
    highest, last = float(rates.max()), float(rates[-1])
    if highest <= 0 or last >= DECAYED * highest:
        return "", True
    text = f"It had decayed to {last / highest:.1%} of its highest"
    if progress is not None and len(progress.finite):
        done = float(progress.finite[-1])
        return (f"{text} after {done:.0%} of the planned updates." if done < EARLY else ""), True
    stood = len(rates) - 1 - int(np.flatnonzero(rates != last)[-1])
    if last < NOTHING * highest or stood >= STOOD_SHARE * len(rates):
        return f"{text}: does the schedule count the right number of updates?", True
    return f"{text}; whether that was early is not known: declare a signal {PROGRESS} to have it judged.", False


def _rise(rates: Floats) -> float:
    """The largest rate after the warm-up, as a multiple of the median of all before it; 0: there is none."""
    settled = max(FEWEST, int(WARM_UP * len(rates)))
    medians = [(at, float(np.median(rates[:at]))) for at in range(settled, len(rates))]
    return max((float(rates[at]) / median for at, median in medians if median > 0), default=0.0)


def _restored(start: Start) -> tuple[bool, str]:
    """Whether a restart took its scale, and the figures. What is not reported is not held against it."""
    if start.reported_scale is not None and abs(start.reported_scale - start.asked) > RATE_TOLERANCE * start.asked:
        return False, f"Attempt {start.attempt}: scale {start.asked:g} asked, {start.reported_scale:g} reported."
    if start.rate is None or start.parent_rate is None or start.parent_asked <= 0:
        return True, f"Attempt {start.attempt}: what became of its scale {start.asked:g} is not known yet."
    expected = start.parent_rate * start.asked / start.parent_asked
    text = (
        f"Attempt {start.attempt}: first rate {start.rate:.4g}; the snapshot's rate {start.parent_rate:.4g} at "
        f"scale {start.parent_asked:g} gives {expected:.4g} at scale {start.asked:g}."
    )
    return abs(start.rate - expected) <= RATE_TOLERANCE * abs(expected), text
