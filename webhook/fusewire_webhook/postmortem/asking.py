"""Asks Prometheus for everything that a postmortem shows. Whatever it cannot answer is left out and said."""

from __future__ import annotations

import asyncio
import logging
import re
import time as clocks
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fusewire.snapshots.layout import parse_name
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.postmortem.observed import Observed, RuleEvidence, Threshold, Traces
from fusewire_webhook.postmortem.story import Attempt, Story, unix
from fusewire_webhook.postmortem.thresholds import bounds
from fusewire_webhook.postmortem.traces import trace
from fusewire_webhook.watch.prometheus import Prometheus, Rule, Series, duration, matchers

_T = TypeVar("_T")

log = logging.getLogger(__name__)

AROUND_UPDATES = 200
"""The plots show so many updates before the trip, in their usual duration, …"""
SHORTEST_SECONDS, LONGEST_SECONDS = 60.0, 6 * 3600.0
"""… and in any case a time between these."""
AROUND_POINTS, WHOLE_POINTS = 400, 600
MOST_ALERTS = 5
MOST_SAMPLES = 8
MOST_SIGNALS = 60
PATIENCE_SECONDS = 4.0
"""After so long nothing more is asked or waited for: better a postmortem without plots than a late one."""
SKEW_SECONDS = 1.0
"""A smaller difference of the two clocks is the answer's own time."""

_TOO_SLOW = "Prometheus is too slow to be asked for everything"
_DERIVED = "_bucket|_sum|_count|_total|_run_min|_run_max|_past_min|_past_max|_minibatch_max"
_SIGNALS = f'__name__=~"rl_.+",__name__!~"rl_.+({_DERIVED})"'
_RATES = '__name__=~"rl_(learning_rate|lr_scale|step)"'


async def observe(
    prometheus: Prometheus,
    story: Story,
    *,
    scrape_interval: float = 1.0,
    clock: Callable[[], float] = clocks.time,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Observed:
    """What Prometheus knows of the attempt. Never raises for its sake: ``problem`` says what it could not answer.

    Args:
        scrape_interval: seconds; nothing finer is asked for.
        clock: Unix seconds, as the journal's.
        patience_seconds: after so long nothing more is asked or waited for, save the time that is asked first.
    """
    asking = _Asking(prometheus, story, scrape_interval, clocks.monotonic() + patience_seconds)
    try:
        await asking.clocks(clock())
    except PrometheusError as error:
        return Observed(problem=str(error), asked_at=clock(), tripped_at=story.alert_at or story.tripped_at)
    rules, thresholds = await asking.rules()
    around = await asking.around()
    return Observed(
        asked_at=clock(),
        tripped_at=asking.trip,
        rules=rules,
        thresholds=thresholds,
        around=around,
        whole=(await asking.whole()).get(story.attempt.number, {}),
        rates=await asking.rates(),
        incident=await asking.incident(),
        longest=asking.longest.number if asking.longest is not None else None,
        longest_whole=await asking.longest_whole(),
        gpus=await asking.gpus(),
        energy_joules=await asking.energy(),
        problem="; ".join(dict.fromkeys(asking.problems)),
    )


class _Asking:
    """One collection. Times are Unix seconds of Prometheus' clock."""

    def __init__(self, prometheus: Prometheus, story: Story, scrape_interval: float, until: float) -> None:
        self._until = until
        self.problems: list[str] = []
        self.trip = 0.0
        self._prometheus = prometheus
        self._story = story
        self._interval = scrape_interval
        self._skew = 0.0
        self._now = 0.0
        self._of_attempt = matchers(run=story.run, attempt=story.attempt.number)

    async def clocks(self, local: float) -> None:
        """Learn how far Prometheus' clock and the journal's are apart.

        Raises:
            PrometheusError: it does not answer at all.
        """
        self._now = await self._prometheus.now()
        difference = self._now - local
        self._skew = difference if abs(difference) > SKEW_SECONDS else 0.0
        self.trip = self._story.alert_at or self._story.tripped_at + self._skew

    async def rules(self) -> tuple[tuple[RuleEvidence, ...], tuple[Threshold, ...]]:
        """The rules behind the attempt's alerts, with their values, and their plain bounds."""
        if self._late():
            return (), ()
        try:
            groups = await self._answer(self._prometheus.rules())
        except PrometheusError as error:
            self._failed(error)
            return (), ()
        loaded = [rule for group in groups for rule in group.rules if rule.kind == "alerting"]
        evidence: list[RuleEvidence] = []
        thresholds: list[Threshold] = []
        for alert in self._story.alerts[:MOST_ALERTS]:
            began = unix(alert.starts_at) or self.trip
            for rule in (rule for rule in loaded if rule.name == alert.alertname):
                evidence.append(
                    RuleEvidence(
                        alert=rule.name,
                        query=rule.query,
                        for_seconds=rule.for_seconds,
                        samples=await self._samples(rule.query, began),
                    )
                )
                thresholds += await self._thresholds(rule, began)
        return tuple(evidence), tuple(thresholds)

    async def around(self) -> dict[int, Traces]:
        """Every signal around the trip, of every attempt that falls into that time."""
        usual = await self._value(
            f"max(max_over_time(rl_step_duration_usual_seconds{self._of_attempt}[{duration(600)}]))", self.trip
        )
        before = min(max(AROUND_UPDATES * (usual or 0.0), SHORTEST_SECONDS), LONGEST_SECONDS)
        start = max(self.trip - before, self._story.attempt.started_at + self._skew - before / 4)
        end = min(self._now, self.trip + before / 2)
        where = matchers(run=self._story.run)[1:-1]
        return await self._range(f"{{{_SIGNALS},{where}}}", start, end, AROUND_POINTS)

    async def whole(self) -> dict[int, Traces]:
        """Every signal of the attempt, from its start to a little past the trip."""
        start = self._story.attempt.started_at + self._skew
        return await self._range(
            f"{{{_SIGNALS},{self._of_attempt[1:-1]}}}", start, self.trip + 2 * self._interval, WHOLE_POINTS
        )

    async def rates(self) -> dict[int, Traces]:
        """Learning rate, scale and step of the attempt, the next one, and the writers of their snapshots."""
        concerned = [self._story.attempt, *([self._story.next] if self._story.next else [])]
        numbers = {attempt.number for attempt in concerned}
        origins = [parse_name(attempt.resume_from) for attempt in concerned if attempt.resume_from]
        numbers |= {origin[1] for origin in origins if origin is not None}
        found: dict[int, Traces] = {}
        for attempt in self._story.attempts:
            if attempt.number in numbers:
                end = min(attempt.ended_at + self._skew if attempt.ended_at else self._now, self._now)
                where = matchers(run=self._story.run, attempt=attempt.number)[1:-1]
                found |= await self._range(
                    f"{{{_RATES},{where}}}", attempt.started_at + self._skew, end, WHOLE_POINTS
                )
        return found

    async def incident(self) -> dict[int, Traces]:
        """Every signal of all attempts of the incident, and of some time before its first trip."""
        failures = self._story.incident
        if len(failures) < 2:
            return {}
        first = failures[0].ended_at + self._skew
        before = max(self.trip - first, SHORTEST_SECONDS)
        start = max(failures[0].attempt.started_at + self._skew, first - before)
        where = matchers(run=self._story.run)[1:-1]
        found = await self._range(f"{{{_SIGNALS},{where}}}", start, self.trip + 2 * self._interval, WHOLE_POINTS)
        numbers = {failure.attempt.number for failure in failures}
        return {number: traces for number, traces in found.items() if number in numbers}

    @property
    def longest(self) -> Attempt | None:
        """The attempt that lived longest among those that led here; None: it is this one."""
        concerned = {failure.attempt.number for failure in self._story.incident}
        origins = (parse_name(failure.attempt.resume_from or "") for failure in self._story.incident)
        concerned |= {origin[1] for origin in origins if origin is not None}
        lived = {
            attempt.number: (attempt.ended_at or self._story.tripped_at) - attempt.started_at
            for attempt in self._story.attempts
            if attempt.number in concerned and attempt.number <= self._story.attempt.number
        }
        number = max(lived, key=lambda number: lived[number], default=self._story.attempt.number)
        if number == self._story.attempt.number:
            return None
        return next(attempt for attempt in self._story.attempts if attempt.number == number)

    async def longest_whole(self) -> Traces:
        """Every signal of that attempt, from its start to a little past its end, for the last scrape's sake."""
        attempt = self.longest
        if attempt is None or attempt.ended_at is None:
            return {}
        where = matchers(run=self._story.run, attempt=attempt.number)[1:-1]
        start, end = attempt.started_at + self._skew, attempt.ended_at + self._skew + 2 * self._interval
        return (await self._range(f"{{{_SIGNALS},{where}}}", start, end, WHOLE_POINTS)).get(attempt.number, {})

    async def gpus(self) -> int | None:
        """GPUs that the attempt's exporter reported through NVML."""
        window = duration(max(60.0, 10 * self._interval))
        count = await self._value(
            f"count(group by (instance, gpu) (last_over_time(gpu_memory_used_bytes{self._of_attempt}[{window}])))",
            self.trip,
        )
        return None if count is None else int(count)

    async def energy(self) -> float | None:
        """What these GPUs have used in the attempt, in joules."""
        seconds = max(self.trip - self._story.attempt.started_at - self._skew, self._interval)
        series = f"gpu_energy_joules_total{self._of_attempt}"
        return await self._value(f"sum(increase({series}[{duration(seconds)}]))", self.trip)

    # ------------------------------------------------------------------------------------------------------

    async def _samples(self, query: str, at: float) -> tuple[tuple[dict[str, str], float], ...]:
        if self._late():
            return ()
        try:
            samples = await self._answer(self._prometheus.query(query, at))
        except PrometheusError as error:
            self._failed(error)
            return ()
        ours = [s for s in samples if s.labels.get("run", self._story.run) == self._story.run]
        return tuple((dict(sample.labels), sample.value) for sample in ours[:MOST_SAMPLES])

    async def _thresholds(self, rule: Rule, at: float) -> list[Threshold]:
        found: list[Threshold] = []
        for bound in bounds(rule.query):
            value = bound.value
            if value is None:
                samples = await self._samples(bound.query, at)
                value = samples[0][1] if samples else None
            if value is not None:
                found.append(Threshold(signal=bound.signal, op=bound.op, value=value, alert=rule.name))
        return found

    async def _value(self, query: str, at: float) -> float | None:
        samples = await self._samples(query, at)
        return samples[0][1] if samples else None

    async def _range(self, query: str, start: float, end: float, points: int) -> dict[int, Traces]:
        if end <= start or self._late():
            return {}
        step = max(self._interval, (end - start) / points)
        try:
            asked = self._prometheus.query_range(query, start=start, end=end, step=step)
            return by_attempt(await self._answer(asked))
        except PrometheusError as error:
            self._failed(error)
            return {}

    async def _answer(self, asked: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self._until - clocks.monotonic()):
                return await asked
        except TimeoutError as error:
            raise PrometheusError(_TOO_SLOW) from error

    def _late(self) -> bool:
        late = clocks.monotonic() > self._until
        if late:
            self.problems.append(_TOO_SLOW)
        return late

    def _failed(self, error: PrometheusError) -> None:
        self.problems.append(str(error))


def by_attempt(series: Iterable[Series]) -> dict[int, Traces]:
    """Series of a range query by attempt and signal; of several ranks or roles the one without such a label."""
    found: dict[int, dict[str, tuple[int, Series]]] = {}
    for one in series:
        number, name = one.labels.get("attempt", ""), one.labels.get("__name__", "")
        if re.fullmatch(r"\d{1,9}", number, re.ASCII) is None or not name.startswith("rl_"):
            continue
        if {"phase", "signal", "stat"} & one.labels.keys():
            continue
        signals = found.setdefault(int(number), {})
        signal, strangers = name.removeprefix("rl_"), len({"rank", "role"} & one.labels.keys())
        if signal not in signals or strangers < signals[signal][0]:
            signals[signal] = (strangers, one)
    return {
        number: {name: trace(one.points) for name, (_, one) in sorted(signals.items())[:MOST_SIGNALS]}
        for number, signals in found.items()
    }
