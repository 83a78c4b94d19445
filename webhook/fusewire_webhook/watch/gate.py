"""The gate: may this snapshot be called stable?

:func:`judge` is pure and knows the six conditions of docs/architecture.md, section 6; :func:`collect` asks
Prometheus for the facts that need asking. A missing answer is never a yes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.evidence import SEEN_SECONDS, last_scrape_query
from fusewire_webhook.watch.prometheus import Prometheus, Sample, duration, label_value
from fusewire_webhook.watch.triprules import RuleSet

Answer = Literal["pass", "fail", "inconclusive", "error"]

# The gate's instant expressions. rules/gate.rules.yaml records the same ones for people to look at.
TRIPS = (
    'count by (run, attempt, alertname, alertstate) (ALERTS{action="trip"}'
    ' or label_replace(ALERTS{action="hold"}, "alertstate", "pending", "", ""))'
)
"""Active trip alerts. An alert with ``action="hold"``, pending or firing, counts as a pending one: it never stops a
run, and while it lasts nothing is promoted."""


def step_query(scrape_interval: float) -> str:
    """Last step of every attempt that was scraped within 3.5 intervals (seconds)."""
    return f"max by (run, attempt) (last_over_time(rl_step[{duration(3.5 * scrape_interval)}]))"


def updates_query(scrape_interval: float) -> str:
    """Updates that every attempt has reported, likewise; an attempt that has only attached is there, with 0."""
    return f"max by (run, attempt) (last_over_time(rl_updates_total[{duration(3.5 * scrape_interval)}]))"


LEAST_UPDATES = 5
"""So many updates must have gone by before a signal of a completed run counts as fallen silent."""
LAST_SCRAPE_LOOKS = 1000
"""The last scrape is looked for at so many instants at most: each costs Prometheus a third of a millisecond."""

UNASKED = "not checked yet: "
UNASKED_RULES = f"{UNASKED}the rules"
UNASKED_WINDOW = f"{UNASKED}what Prometheus saw since"
UNASKED_FILES = f"{UNASKED}its files"
"""Reasons for waiting that are questions still to be put, nothing that speaks against the snapshot."""


@dataclass(frozen=True, kw_only=True)
class GatePolicy:
    """Settings of the gate. Times in seconds."""

    watch_steps: int = 100
    """M: steps that Prometheus must have seen after the snapshot."""
    watch_seconds: float | None = None
    """T: time that must have passed too; None: longest ``for:`` + window + 2 × (scrape + evaluation interval)."""
    window_seconds: float = 10.0
    """How long the exporter keeps a completed run of steps visible."""
    scrape_interval: float = 1.0
    evaluation_interval: float = 1.0
    coverage: float = 0.9
    """Share of the expected scrapes that must have succeeded."""
    verify: Literal["full", "sampled"] = "full"

    def patience(self, rules: RuleSet | None) -> float:
        """T in seconds, for the rules that are loaded."""
        if self.watch_seconds is not None:
            return self.watch_seconds
        longest = rules.longest_for if rules is not None else 0.0
        evaluation = max(self.evaluation_interval, rules.interval if rules is not None else 0.0)
        return longest + self.window_seconds + 2 * (self.scrape_interval + evaluation)


@dataclass(frozen=True, kw_only=True)
class WindowFacts:
    """What Prometheus answered about the window since the snapshot."""

    scrapes: float
    """Successful scrapes in W."""
    recent_scrapes: float
    """Successful scrapes in the last T seconds."""
    missing: tuple[str, ...]
    """Signals that were reported earlier in the run and are not any more."""
    firing: tuple[str, ...]
    """Trip alerts of this attempt (or without an attempt) that fired in W."""
    pending: tuple[str, ...]
    """Trip alerts of this attempt (or without an attempt) that were pending in the last T seconds; of a completed
    run: when its attempt was last scraped, or later."""
    unattributed: tuple[str, ...] = ()
    """Trip alerts that were active in W and name no run at all."""
    signals: tuple[str, ...] = ()
    """Signals present in W."""
    last_step: float | None = None
    """Of a completed run: highest ``rl_step`` of the attempt that Prometheus holds; None: none."""
    silence: float | None = None
    """Of a completed run: seconds since the attempt was last scraped; None: it was not in W."""


@dataclass(frozen=True, kw_only=True)
class GateFacts:
    """All that a verdict depends on. Times in seconds of the webhook's monotonic clock."""

    run: str
    snapshot: str
    step: int
    attempt: int
    clean_seconds: float
    """Since the snapshot was first seen, or since the watch as a whole was last in doubt."""
    window_seconds: float
    """W: since the snapshot was first seen, and how long it may have lain there unseen before."""
    alive_seconds: float
    """The part of W in which the attempt existed for certain, until now."""
    completed: bool = False
    """The run has finished: no more steps will come; T passes after the last ones."""
    final_step: int | None = None
    """Of a completed run: the last step, as the attempt's own files tell; None: they do not."""
    nonfinite: tuple[str, ...] = ()
    """Of a completed run: what its last values say against it."""
    paused: bool = False
    last_step: float | None = None
    """Highest ``rl_step`` of the attempt that Prometheus has seen; None: none yet."""
    rules: RuleSet | None = None
    fingerprint: str = ""
    """Of the trip rules when the snapshot was first seen; empty: not known yet."""
    firing: tuple[str, ...] = ()
    """Trip alerts that concern the attempt and fire now."""
    pending: tuple[str, ...] = ()
    """Trip alerts that concern the attempt and are pending now."""
    degraded: tuple[str, ...] = ()
    """What the dead man's switch says against the watch."""
    errors: tuple[str, ...] = ()
    """Questions that were not answered."""
    window: WindowFacts | None = None
    """None: not asked, because something cheaper said wait."""
    damage: tuple[str, ...] | None = None
    """What does not hold on disk; None: not looked at yet, because something cheaper said wait."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The gate's answer. Only ``pass`` promotes, only ``fail`` rejects."""

    answer: Answer
    reasons: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    final: bool = False
    """Nothing that could still come changes it: only a person promotes this snapshot."""


def judge(facts: GateFacts, policy: GatePolicy) -> Verdict:
    """The verdict on one snapshot.

    ``fail``: a trip alert fired or the files are damaged. ``error``: a question was not answered. ``inconclusive``:
    something is still missing, and waiting may bring it (unless the verdict is ``final``).
    """
    fails = tuple(_fails(facts))
    lacks = tuple(_lacks(facts, policy))
    waits = (*lacks, *_waits(facts, policy))
    evidence = _evidence(facts, policy)
    if fails:
        return Verdict(answer="fail", reasons=fails, evidence=evidence)
    if facts.errors:
        return Verdict(answer="error", reasons=facts.errors + waits, evidence=evidence)
    if waits:
        return Verdict(answer="inconclusive", reasons=waits, evidence=evidence, final=bool(lacks))
    asked = {UNASKED_RULES: facts.rules, UNASKED_WINDOW: facts.window, UNASKED_FILES: facts.damage}
    unasked = tuple(reason for reason, value in asked.items() if value is None)
    if unasked:
        return Verdict(answer="inconclusive", reasons=unasked, evidence=evidence)
    return Verdict(answer="pass", evidence=evidence)


def _fails(facts: GateFacts) -> Iterable[str]:
    fired = dict.fromkeys(facts.firing + (facts.window.firing if facts.window else ()))
    yield from (f"tripped: {name} fired after the snapshot" for name in fired)
    yield from (f"damaged: {text}" for text in facts.damage or ())


def _waits(facts: GateFacts, policy: GatePolicy) -> Iterable[str]:
    patience = policy.patience(facts.rules)
    # the watch as a whole
    yield from (f"degraded: {text}" for text in facts.degraded)
    if facts.paused:
        yield "paused: the run is paused"
    # condition 1: M steps and T seconds
    if not facts.completed:
        seen = 0.0 if facts.last_step is None else max(0.0, facts.last_step - facts.step)
        if facts.last_step is None or seen < policy.watch_steps:
            yield f"steps: Prometheus saw {seen:.0f} of {policy.watch_steps} steps after it"
    if facts.clean_seconds < patience:
        yield f"time: {facts.clean_seconds:.1f} of {patience:.1f} s passed"
    # condition 3: the rules
    if facts.rules is not None:
        yield from (f"rules: {problem}" for problem in facts.rules.problems)
        if facts.fingerprint and facts.rules.fingerprint != facts.fingerprint:
            yield "rules: the trip rules were changed after the snapshot"
    # condition 5, what is pending
    window = facts.window
    pending = dict.fromkeys(facts.pending + (window.pending if window and not facts.completed else ()))
    yield from (f"pending: {name} was pending within the last {patience:.1f} s" for name in pending)
    if window is None:
        return
    yield from (f"unattributed: {name} names no run; add the label to its rule" for name in window.unattributed)
    if facts.completed:
        return
    # condition 2: the scrapes, over the whole window and over its last part
    expected = facts.alive_seconds / policy.scrape_interval
    if window.scrapes < policy.coverage * expected:
        yield f"scrapes: {window.scrapes:.0f} of {expected:.0f} succeeded since the snapshot"
    recent = min(patience, facts.alive_seconds) / policy.scrape_interval
    if window.recent_scrapes < policy.coverage * recent:
        yield f"scrapes: {window.recent_scrapes:.0f} of {recent:.0f} succeeded in the last {patience:.1f} s"
    # condition 4: the signals
    yield from (f"signal: {name} is no longer reported" for name in window.missing)


def _lacks(facts: GateFacts, policy: GatePolicy) -> Iterable[str]:
    """What a completed run left unseen or in doubt at its end: nothing comes any more that could mend it."""
    window = facts.window
    if not facts.completed or window is None:
        return
    end = max(facts.step, facts.final_step or 0)
    if window.last_step is None or window.last_step < end:
        seen = "no step" if window.last_step is None else f"step {window.last_step:.0f} last"
        yield f"steps: Prometheus saw {seen}, the training ended at step {end}"
    yield from (f"values: {words}" for words in facts.nonfinite)
    if window.silence is None:
        yield "scrapes: none succeeded since the snapshot"
    else:
        # until the last scrape, with one of slack: the end lies between two
        expected = max(0.0, facts.alive_seconds - window.silence) / policy.scrape_interval
        if window.scrapes < policy.coverage * (expected - 1):
            yield f"scrapes: {window.scrapes:.0f} of {expected:.0f} succeeded between the snapshot and the end"
        yield from (f"signal: {name} was no longer reported at the end" for name in window.missing)
    yield from (f"pending: {name} was pending when the training ended" for name in window.pending)


def _evidence(facts: GateFacts, policy: GatePolicy) -> dict[str, Any]:
    window = facts.window
    return {
        "watch_seconds": round(policy.patience(facts.rules), 3),
        "watch_steps": policy.watch_steps,
        "clean_seconds": round(facts.clean_seconds, 3),
        "window_seconds": round(facts.window_seconds, 3),
        "last_step": window.last_step if window and facts.completed else facts.last_step,
        "completed": facts.completed,
        "rules": facts.rules.fingerprint if facts.rules else None,
        "trip_rules": facts.rules.trips if facts.rules else None,
        "scrapes": window.scrapes if window else None,
        "scrapes_expected": round(
            max(0.0, facts.alive_seconds - (window.silence or 0.0 if window else 0.0)) / policy.scrape_interval, 1
        ),
        "signals": list(window.signals) if window else None,
        "verify": policy.verify if facts.damage is not None else None,
    }


async def collect(
    facts: GateFacts, policy: GatePolicy, *, prometheus: Prometheus, known_signals: Iterable[str]
) -> GateFacts:
    """``facts`` completed by the costly questions about the window, unless the cheap ones settle it already.

    ``known_signals`` were reported earlier in the run. The files (``damage``) are for the caller to look at.
    """
    if _settled(facts, policy):
        return facts
    try:
        return replace(facts, window=await _ask_window(facts, policy, prometheus, known_signals))
    except PrometheusError as error:
        return replace(facts, errors=(*facts.errors, str(error)))


def _settled(facts: GateFacts, policy: GatePolicy) -> bool:
    """Would no further fact turn the verdict into a pass?"""
    return bool(facts.errors or facts.rules is None or [*_fails(facts), *_waits(facts, policy)])


async def _ask_window(
    facts: GateFacts, policy: GatePolicy, prometheus: Prometheus, known: Iterable[str]
) -> WindowFacts:
    run, attempt = label_value(facts.run), label_value(str(facts.attempt))
    attempts = f"run={run},attempt={attempt}"
    whole, last = facts.window_seconds, min(policy.patience(facts.rules), facts.window_seconds)
    step = policy.scrape_interval
    silence = await _silence(prometheus, attempts, whole, step) if facts.completed else None
    # a completed run is looked at as of its last scrape
    ago = silence or 0.0
    lately = max(last / 4, 5 * step)
    since = max(whole, ago + lately) if facts.completed else whole
    doubtful = ago + 2 * (step + policy.evaluation_interval) if facts.completed else last
    firing = await prometheus.query(_alerts_query("firing", run, facts.attempt, whole))
    pending = await prometheus.query(_alerts_query("pending", run, facts.attempt, doubtful))
    scrapes = await prometheus.query(_scrapes_query(attempts, whole))
    recent = await prometheus.query(_scrapes_query(attempts, last))
    # how often each signal was there: in a stretch before the snapshot, since it, and lately
    before = _counts(await prometheus.query(_signals_query(f"run={run}", last, step, offset=since)))
    within = _counts(await prometheus.query(_signals_query(attempts, since - ago, step, offset=ago)))
    late = _counts(await prometheus.query(_signals_query(attempts, lately, step, offset=ago)))
    reports = _counts(await prometheus.query(_reports_query(attempts, offset=ago)))
    reports_before = _counts(await prometheus.query(_reports_query(attempts, offset=since)))
    steps = await prometheus.query(last_step_query(facts.run, facts.attempt)) if facts.completed else []
    missing = missing_signals(known, before, within, late, dense_only=facts.completed)
    silent = silent_signals(reports_before, reports, least_updates=LEAST_UPDATES if facts.completed else 1)
    return WindowFacts(
        scrapes=max((sample.value for sample in scrapes), default=0.0),
        recent_scrapes=max((sample.value for sample in recent), default=0.0),
        missing=tuple(sorted({*missing, *silent})),
        firing=_names(sample for sample in firing if sample.labels.get("run")),
        pending=_names(sample for sample in pending if sample.labels.get("run")),
        unattributed=_names(sample for sample in firing + pending if not sample.labels.get("run")),
        signals=tuple(sorted(within.keys() - {"step"})),
        last_step=max((sample.value for sample in steps), default=None),
        silence=silence,
    )


async def _silence(prometheus: Prometheus, attempt: str, seconds: float, scrape_interval: float) -> float | None:
    """Since when nothing was scraped, in seconds; None: no scrape in the last ``seconds`` succeeded."""
    query = last_scrape_query(attempt, seconds, max(scrape_interval / 2, seconds / LAST_SCRAPE_LOOKS))
    samples = await prometheus.query(f"time() - {query}")
    return max(0.0, samples[0].value) if samples else None


def missing_signals(
    known: Iterable[str],
    before: Mapping[str, float],
    within: Mapping[str, float],
    lately: Mapping[str, float],
    *,
    dense_only: bool = False,
) -> tuple[str, ...]:
    """Signals that were reported earlier in the run and are not any more.

    The mappings count in how many looks each signal was there, before the snapshot, since it, and in the last part
    of the window; ``step`` counts the looks at which the attempt reported at all. A signal that is there in more
    than half of the looks must be there lately too; a rarer one (an evaluation) at least once since the snapshot,
    unless ``dense_only``: the end may have come before its time.
    """

    def dense(signal: str) -> bool:
        return any(2 * counts.get(signal, 0.0) > counts.get("step", 0.0) for counts in (before, within))

    earlier = (set(known) | before.keys() | within.keys()) - {"step"}
    return tuple(
        sorted(
            signal
            for signal in earlier
            if (signal not in within and not dense_only) or (dense(signal) and signal not in lately)
        )
    )


def present_signals_query(run: str) -> str:
    """Every signal that the run exports now, whichever attempt."""
    series = f'{{__name__=~"rl_.+_run_min",steps="1",run={label_value(run)}}}'
    return f'group by (signal) (label_replace({series}, "signal", "$1", "__name__", "rl_(.+)_run_min"))'


def silent_signals(
    before: Mapping[str, float], now: Mapping[str, float], *, least_updates: int = 1
) -> tuple[str, ...]:
    """Signals whose last value is still exported although the trainer stopped reporting them.

    The mappings are the reports of each signal up to the snapshot and up to now; ``""`` counts the updates. A
    signal that more than half of the updates reported must have come with more than half of those since, where
    there were at least ``least_updates``.
    """
    updates = now.get("", 0.0) - before.get("", 0.0)
    return tuple(
        sorted(
            signal
            for signal, reports in before.items()
            if signal
            and 2 * reports > before.get("", 0.0)
            and updates >= least_updates
            and 2 * (now.get(signal, 0.0) - reports) < updates
        )
    )


def _alerts_query(state: str, run: str, attempt: int, seconds: float) -> str:
    """Trip alerts of the attempt, of the run without an attempt, and without a run; hold alerts are pending."""
    kinds = [f'action="trip",alertstate="{state}"', *(['action="hold"'] if state == "pending" else [])]
    places = (f'run={run},attempt=~"{attempt}|"', 'run=""')
    counts = (
        f"count_over_time(ALERTS{{{kind},{place}}}[{duration(seconds)}])" for kind in kinds for place in places
    )
    return f"count by (run, alertname) ({' or '.join(counts)})"


def _scrapes_query(attempt: str, seconds: float) -> str:
    """Successful scrapes of the attempt's worst exporter; a sum, because an average is 1 across an outage."""
    return f"min(max without (instance) (sum_over_time(up{{{attempt}}}[{duration(seconds)}])))"


def last_step_query(run: str, attempt: int) -> str:
    """The furthest step of the attempt that was scraped within the last hour."""
    where = f"run={label_value(run)},attempt={label_value(str(attempt))}"
    return f"max(max_over_time(rl_step{{{where}}}[{duration(SEEN_SECONDS)}]))"


def _signals_query(where: str, seconds: float, step: float, offset: float = 0.0) -> str:
    """In how many looks, ``step`` seconds apart (at most 200), each signal and ``step`` itself was there."""
    look = max(step, seconds / 200)
    series = f'{{__name__=~"rl_step|rl_.+_run_min",steps=~"1|",{where}}}'
    named = f'label_replace({series}, "signal", "$1", "__name__", "rl_(.+?)(?:_run_min)?")'
    shifted = f" offset {duration(offset)}" if offset else ""
    return f"max by (signal) (count_over_time({named}[{duration(seconds)}:{duration(look)}]{shifted}))"


def _reports_query(attempt: str, offset: float = 0.0) -> str:
    """Reports of each signal by the attempt; without a ``signal``: its updates."""
    where = f"{{{attempt}}}" + (f" offset {duration(offset)}" if offset else "")
    return f"max by (signal) (rl_reports_total{where} or rl_updates_total{where})"


def _counts(samples: Iterable[Sample]) -> dict[str, float]:
    return {sample.labels.get("signal", ""): sample.value for sample in samples}


def _names(samples: Iterable[Sample]) -> tuple[str, ...]:
    return tuple(sorted({sample.labels.get("alertname", "") for sample in samples}))
