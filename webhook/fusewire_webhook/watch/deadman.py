"""Is the watch itself alive? A beat that comes through Prometheus and Alertmanager, and direct questions to both.

All times are the webhook's monotonic seconds; the value of a beat (Prometheus' clock) is only compared with other
beats. A fault of the watch is announced and stops promotions; it never touches a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.prometheus import Alertmanager, Prometheus, Rule, RuleGroup
from fusewire_webhook.watch.triprules import inspect

log = logging.getLogger(__name__)

PARTS = ("prometheus", "alertmanager", "rules", "discovery", "watchdog")
WATCHDOG = "Watchdog"
NOT_RELOADED = {
    "prometheus": "the last reload of its configuration failed: it goes on with the rules of before, and would not "
    "start with what it was given; its log says what is wrong",
    "alertmanager": "the last reload of its configuration failed: it goes on with the routes of before, and would "
    "not start with what it was given; its log says what is wrong",
}
"""By part. Nobody is blind for it: what the gate rests on is asked of the server as it is, so promotions go on."""
START_SECONDS = 5.0
"""A Prometheus that has just started or reloaded gets this and two intervals to evaluate its rules."""


@dataclass(frozen=True, kw_only=True)
class WatchStatus:
    """What the switch says now."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """One line for each part of :data:`PARTS` that is degraded."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """One line for each part that works, but not as its files say: prometheus, alertmanager, rules."""
    beat_age: float | None = None
    """Seconds since the last beat that counted; None: none yet."""

    @property
    def degraded(self) -> bool:
        return bool(self.problems)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The problems as lines."""
        return _lines(self.problems)

    @property
    def remarked(self) -> tuple[str, ...]:
        """The remarks as lines."""
        return _lines(self.remarks)


def _lines(parts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{part}: {text}" for part, text in parts.items())


OnChange = Callable[[WatchStatus], Awaitable[None]]


class DeadMansSwitch:
    """Degraded when no advancing beat came for ``degraded_after`` seconds, or a direct question failed twice.

    Args:
        clock: monotonic seconds.
        ask_every: seconds between direct questions; two failures in a row count, so that a restart within 2 s
            raises no alarm.
        period: seconds between looks at the age of the beat.
        remarks: what others have to remark, by part.
        discovery: why Prometheus is not told what to scrape; empty: it is. Asked with the direct questions.
        on_change: awaited whenever the set of parts with a problem or a remark changes, recovery included.
    """

    def __init__(
        self,
        *,
        prometheus: Prometheus,
        alertmanager: Alertmanager,
        clock: Callable[[], float] = time.monotonic,
        degraded_after: float = 45.0,
        ask_every: float = 5.0,
        period: float = 1.0,
        remarks: Callable[[], Mapping[str, str]] = dict,
        discovery: Callable[[], str] = str,
        on_change: OnChange | None = None,
    ) -> None:
        self._prometheus = prometheus
        self._alertmanager = alertmanager
        self._clock = clock
        self.degraded_after = degraded_after
        self._ask_every = ask_every
        self._period = period
        self._more_remarks = remarks
        self._discovery = discovery
        self._on_change = on_change
        self._beats = Beats(started=clock())
        self._last_answers: dict[str, str] = {}
        self._confirmed: dict[str, str] = {}
        self._remarks: dict[str, str] = {}
        self._asked: float | None = None
        self._announced = WatchStatus()

    def beat(self, value: float) -> bool:
        """A watchdog alert came; true where it counts (its value advanced)."""
        return self._beats.beat(value, self._clock())

    def status(self) -> WatchStatus:
        """What is wrong now."""
        now = self._clock()
        problems, remarks = dict(self._confirmed), {**self._remarks, **self._more_remarks()}
        if now - self._beats.last > self.degraded_after:
            problems["watchdog"] = f"no advancing beat for {now - self._beats.last:.0f} s"
        return WatchStatus(
            problems={part: problems[part] for part in PARTS if part in problems},
            remarks={part: remarks[part] for part in PARTS if part in remarks},
            beat_age=now - self._beats.last if self._beats.any else None,
        )

    def reasons(self) -> tuple[str, ...]:
        """Why nothing may be promoted now; empty: nothing speaks against it."""
        return self.status().reasons

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            now = self._clock()
            if self._asked is None or now - self._asked >= self._ask_every:
                self._asked = now
                await self.ask()
            await self.announce()
            await asyncio.sleep(self._period)

    async def ask(self) -> None:
        """Put the direct questions once. Two bad answers in a row degrade a part, a good one heals it."""
        answers = await self._questions()
        self._confirmed = {part: text for part, text in answers.items() if part in self._last_answers}
        self._last_answers = answers

    async def announce(self) -> None:
        """Tell of a change, if there is one."""
        status, before = self.status(), self._announced
        problems_changed = status.problems.keys() != before.problems.keys()
        if not problems_changed and status.remarks == before.remarks:
            return
        self._announced = status
        if problems_changed and status.degraded:
            log.error("the watch is degraded, nothing is promoted: %s", "; ".join(status.reasons))
        elif problems_changed:
            log.warning("the watch has recovered")
        for part, remark in status.remarks.items() - before.remarks.items():
            log.warning("%s: %s", part, remark)
        for part in before.remarks.keys() - status.remarks.keys():
            log.warning("%s: its files are in force again", part)
        if self._on_change is not None:
            try:
                await self._on_change(status)
            except Exception:
                log.exception("the change of the watch could not be announced")

    async def _questions(self) -> dict[str, str]:
        problems: dict[str, str] = {}
        try:
            await self._alertmanager.ready()
        except PrometheusError as error:
            problems["alertmanager"] = str(error)
        with contextlib.suppress(PrometheusError):  # what is not known is no news: the remark stays as it was
            self._remark("alertmanager", await self._alertmanager.reload_succeeded())
        try:
            await self._prometheus.ready()
            runtime = await self._prometheus.runtime()
            self._remark("prometheus", runtime.reload_succeeded)
            now = await self._prometheus.now()
            groups = await self._prometheus.rules()
        except PrometheusError as error:
            problems["prometheus"] = str(error)
            return problems
        found = rule_problems(groups, now=now, changed_at=runtime.changed_at)
        if found:
            problems["rules"] = "; ".join(found)
        if unasked := self._discovery():  # of a Prometheus that does not answer that is no news
            problems["discovery"] = unasked
        return problems

    def _remark(self, part: str, reloaded: bool) -> None:
        if reloaded:
            self._remarks.pop(part, None)
        else:
            self._remarks[part] = NOT_RELOADED[part]


@dataclass(kw_only=True)
class Beats:
    """When did the last beat come that counts?

    A beat counts if its value is past the last one (Alertmanager repeats a dead Prometheus' alert for minutes).
    After Prometheus' clock was set back, values advance below the last one: two in a row that do are believed.
    """

    started: float
    last: float = field(init=False)
    any: bool = False
    _value: float = float("-inf")
    _below: float | None = None

    def __post_init__(self) -> None:
        self.last = self.started

    def beat(self, value: float, now: float) -> bool:
        """Take a beat; true where it counts. NaN never does."""
        if value > self._value:
            counts = True
        elif value < self._value:
            counts = self._below is not None and value > self._below
            self._below = value
        else:
            return False
        if counts:
            self._value, self._below, self.last, self.any = value, None, now, True
        return counts


def rule_problems(groups: Sequence[RuleGroup], *, now: float, changed_at: float = float("-inf")) -> tuple[str, ...]:
    """What is wrong with the loaded rules. Times are Unix seconds of Prometheus' clock.

    Just after ``changed_at``, its start or reload, rules that were not evaluated yet are no fault.
    """
    patience = START_SECONDS + 2 * max((group.interval for group in groups), default=0.0)
    if now - changed_at < patience:
        groups = [replace(group, rules=tuple(map(_believed, group.rules)), last_evaluation=now) for group in groups]
    names = {rule.name for group in groups for rule in group.rules if rule.kind == "alerting"}
    missing = (
        () if WATCHDOG in names else (f"the rule {WATCHDOG} is not loaded: add the rules/ folder to rule_files",)
    )
    return missing + inspect(groups, now=now).problems


def _believed(rule: Rule) -> Rule:
    return replace(rule, health="ok") if rule.health == "unknown" else rule
