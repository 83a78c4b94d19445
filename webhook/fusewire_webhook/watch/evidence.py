"""Why did an attempt end, and was it clean since a snapshot? Asked of Prometheus and of the run directory."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusewire.attempt_files import LAST_VALUES_FILE, attempt_folder
from fusewire.errors import FusewireError
from fusewire.snapshots.layout import SNAPSHOTS, parse_name
from fusewire.snapshots.manifest import read_manifest
from fusewire_webhook.engine.evidence_protocol import ExitEvidence
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.prometheus import Prometheus, Sample, duration, label_value

log = logging.getLogger(__name__)

FATAL_SIGNALS = ("approx_kl", "reference_kl", "policy_entropy", "value_loss", "policy_loss")
"""A single non-finite report of one of these is a divergence; others are NaN in healthy runs too."""
GRADIENT_STREAK = 5
"""Non-finite gradient norms in a row that are no loss scaler at work any more, where the rules record no limit."""
SEEN_SECONDS = 3600.0
"""How far back the last values of an attempt are looked for."""
CLOCKS_SECONDS = 1800.0
"""By how much the trainer's clock and that of Prometheus may differ."""
FINEST_SECONDS = 0.5
"""Finer than that no question over the time of the clocks' difference is asked: it takes Prometheus seconds."""
UNSEEN_SECONDS = 30.0
"""For how long an attempt may have been out of sight before its last snapshot, the clocks' difference included."""


class PrometheusEvidence:
    """The engine's :class:`~fusewire_webhook.engine.evidence_protocol.Evidence`.

    Args:
        runs_dir: folder of all runs.
        scrape_interval: seconds.
        evaluation_interval: seconds; None: as often as scrapes happen.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        *,
        runs_dir: Path,
        scrape_interval: float = 1.0,
        evaluation_interval: float | None = None,
    ) -> None:
        self._prometheus = prometheus
        self._runs_dir = runs_dir
        self._scrape_interval = scrape_interval
        evaluation = scrape_interval if evaluation_interval is None else evaluation_interval
        self._round = scrape_interval + evaluation

    async def exit_evidence(self, run: str, attempt: int, run_dir: Path) -> ExitEvidence:
        """Divergence where a divergence alert was active or a value was non-finite, else infrastructure."""
        values = await asyncio.to_thread(read_last_values, run_dir, attempt)
        streak: float = GRADIENT_STREAK
        seen: list[str] = []
        unanswered: list[str] = []
        try:
            streak = await self._streak(run, attempt)
            seen += await self._alerts(run, attempt)
            seen += await self._nonfinite(run, attempt, streak)
        except PrometheusError as error:
            unanswered.append(f"Prometheus could not be asked: {error}")
        found = [*nonfinite_in(values, streak=streak), *seen]
        step = await self._step(run, attempt, values)
        reasons = (*dict.fromkeys(found), *unanswered)
        return ExitEvidence(failure_class="divergence" if found else "infrastructure", reasons=reasons, step=step)

    async def last_step(self, run: str, attempt: int) -> int | None:
        """The furthest step that Prometheus or the file of last values knows."""
        values = await asyncio.to_thread(read_last_values, self._runs_dir / run, attempt)
        return await self._step(run, attempt, values)

    async def unclean_since(self, run: str, attempt: int, snapshot: str) -> tuple[str, ...] | None:
        """Trip and hold alerts, pending or firing, since the snapshot; a stall or crash does not taint its weights.

        None where Prometheus did not see the attempt come to the snapshot's step: what it has forgotten, or never
        watched, was not clean.
        """
        parsed = parse_name(snapshot)
        if parsed is None:
            return None
        step, since = parsed
        attempts = "|".join(str(number) for number in range(since, max(since, attempt) + 1))
        where = f"run={label_value(run)},attempt=~{label_value(attempts + '|')}"
        try:
            folder = self._runs_dir / run / SNAPSHOTS / snapshot
            written = (await asyncio.to_thread(read_manifest, folder)).time
            passed = await last_seen_before(
                self._prometheus,
                run=run,
                attempt=since,
                step=step,
                around=written,
                scrape_interval=self._scrape_interval,
            )
            if passed is None:
                return None
            seconds = await self._prometheus.now() - passed
            samples = await self._prometheus.query(
                "count by (alertname, alertstate) (count_over_time(ALERTS{"
                f'action=~"trip|hold",class!="infrastructure",{where}}}[{duration(seconds)}]))'
            )
        except (PrometheusError, FusewireError, OSError) as error:
            log.warning("whether run %s was clean since %s is unknown: %s", run, snapshot, error)
            return None
        return tuple(sorted(_alert(sample) for sample in samples))

    async def _alerts(self, run: str, attempt: int) -> list[str]:
        """Divergence alerts that were active around the attempt's last scrape.

        That scrape is still evaluated for 3.5 intervals; what had cleared two rounds before it speaks of the past.
        """
        around = 6 * self._round
        until = await self._last_scrape(run, attempt)
        samples = await self._prometheus.query(
            'count by (alertname, alertstate) (count_over_time(ALERTS{action="trip",class!="infrastructure",'
            f'run={label_value(run)},attempt=~"{attempt}|"}}[{duration(around)}]))',
            None if until is None else until + 4 * self._round,
        )
        return sorted(_alert(sample) for sample in samples)

    async def _last_scrape(self, run: str, attempt: int) -> float | None:
        """When the attempt was last scraped, on Prometheus' clock; None: not within ten minutes."""
        where = f"run={label_value(run)},attempt={label_value(str(attempt))}"
        samples = await self._prometheus.query(last_scrape_query(where, 600.0, self._scrape_interval))
        return samples[0].value if samples else None

    async def _streak(self, run: str, attempt: int) -> float:
        """At how many non-finite gradient norms in a row the loaded rules trip this attempt."""
        where = f"run={label_value(run)},attempt={label_value(str(attempt))}"
        limits = await self._prometheus.query(
            f"max(last_over_time(fusewire:nonfinite_streak:limit{{{where}}}[{duration(SEEN_SECONDS)}]))"
        )
        return limits[0].value if limits else GRADIENT_STREAK

    async def _nonfinite(self, run: str, attempt: int, streak: float) -> list[str]:
        where, window = f"run={label_value(run)},attempt={label_value(str(attempt))}", duration(SEEN_SECONDS)
        fatal = "|".join(FATAL_SIGNALS)
        counts = await self._prometheus.query(
            f'max by (signal) (last_over_time(rl_nonfinite_total{{signal=~"{fatal}",{where}}}[{window}])) > 0'
        )
        gauges = await self._prometheus.query(f'last_over_time({{__name__=~"rl_({fatal})",{where}}}[{window}])')
        streaks = await self._prometheus.query(
            f'max(last_over_time(rl_nonfinite_streak{{signal="grad_norm",{where}}}[{window}])) >= {streak:g}'
        )
        found = [f"{sample.labels.get('signal', '')} was not finite" for sample in counts]
        found += [
            f"{sample.labels['__name__'].removeprefix('rl_')} was not finite"
            for sample in gauges
            if not math.isfinite(sample.value)
        ]
        found += [f"{sample.value:.0f} gradient norms in a row were not finite" for sample in streaks]
        return sorted(found)

    async def _step(self, run: str, attempt: int, values: Mapping[str, Any]) -> int | None:
        where = f"run={label_value(run)},attempt={label_value(str(attempt))}"
        try:
            samples = await self._prometheus.query(
                f"max(max_over_time(rl_step{{{where}}}[{duration(SEEN_SECONDS)}]))"
            )
        except PrometheusError as error:
            log.warning("the last step of run %s is known from its files only: %s", run, error)
            samples = []
        steps = [sample.value for sample in samples]
        if isinstance(values.get("step"), int):
            steps.append(values["step"])
        return int(max(steps)) if steps else None


def last_scrape_query(attempt: str, seconds: float, resolution: float) -> str:
    """When the attempt (its label matchers) was last scraped, on Prometheus' clock; within so many seconds.

    A single scrape among failed ones is surely seen where ``resolution`` is below the scrape interval.
    """
    up = f"up{{{attempt}}}"
    window = f"{duration(seconds)}:{duration(resolution)}"
    return f"max(max_over_time((timestamp({up}) and ({up} == 1))[{window}]))"


async def last_seen_before(
    prometheus: Prometheus, *, run: str, attempt: int, step: int, around: float, scrape_interval: float
) -> float | None:
    """When the attempt was last seen before ``step``, on Prometheus' clock; None: it was not seen to pass it.

    An attempt that ended with the step need not have been scraped after it, but just before.

    Args:
        around: when the step was about, Unix seconds of another clock: it says where to look.

    Raises:
        PrometheusError: no answer.
    """
    series = f"rl_step{{run={label_value(run)},attempt={label_value(str(attempt))}}}"
    fine = max(scrape_interval, FINEST_SECONDS)
    window, at = f"{duration(2 * CLOCKS_SECONDS)}:{duration(fine)}", around + CLOCKS_SECONDS
    before = await prometheus.query(
        f"min(max_over_time((timestamp({series}) and ({series} < {step}))[{window}]))", at
    )
    after = await prometheus.query(f"max(max_over_time(({series} >= {step})[{window}]))", at)
    if not before or not (after or before[0].value > around - UNSEEN_SECONDS):
        return None
    return before[0].value


async def seconds_past(
    prometheus: Prometheus, *, run: str, attempt: int, step: int, scrape_interval: float
) -> float:
    """For how long Prometheus has seen the attempt past ``step``; 0: it has not within the last hour.

    It may be up to :func:`seconds_past_slack` longer.

    Raises:
        PrometheusError: no answer.
    """
    series = f"rl_step{{run={label_value(run)},attempt={label_value(str(attempt))}}}"
    look = seconds_past_slack(scrape_interval)
    past = f"timestamp({series} > {step})[{duration(SEEN_SECONDS)}:{duration(look)}]"
    ages = await prometheus.query(f"max(time() - min_over_time({past}))")
    return ages[0].value if ages else 0.0


def seconds_past_slack(scrape_interval: float) -> float:
    """How coarse :func:`seconds_past` is, in seconds."""
    return max(scrape_interval, SEEN_SECONDS / 720)


def read_last_values(run_dir: Path, attempt: int) -> dict[str, Any]:
    """What a dying trainer left in ``attempts/<attempt>/last-values.json``; empty where there is nothing usable."""
    path = attempt_folder(run_dir, attempt) / LAST_VALUES_FILE
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s: cannot be read as JSON (%s); it is ignored", path, error)
        return {}
    return value if isinstance(value, dict) else {}


def nonfinite_in(values: Mapping[str, Any], *, streak: float = GRADIENT_STREAK) -> Iterable[str]:
    """What a file of last values says against the attempt.

    One non-finite gradient norm is routine under loss scaling; the file cannot tell a streak from single ones, so
    it takes as many counted ones as a streak has, the last value among them.
    """
    last, counts = values.get("values"), values.get("nonfinite")
    last = last if isinstance(last, Mapping) else {}
    counts = counts if isinstance(counts, Mapping) else {}
    for signal in FATAL_SIGNALS:
        if _is_nonfinite(last.get(signal)) or _count(counts.get(signal)) > 0:
            yield f"{signal} was not finite"
    if _is_nonfinite(last.get("grad_norm")) and _count(counts.get("grad_norm")) >= streak:
        yield f"{_count(counts['grad_norm'])} gradient norms were not finite, the last one too"


def _is_nonfinite(value: Any) -> bool:
    try:
        return value is not None and not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _alert(sample: Sample) -> str:
    return f"{sample.labels.get('alertname', '')} was {sample.labels.get('alertstate', '')}"
