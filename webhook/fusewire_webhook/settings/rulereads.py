"""Does a rule read what exists, and does it hold under a missed scrape?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from functools import cache

import promql_parser as promql

from fusewire.metrics import sample_names
from fusewire.signals import STEPS
from fusewire_webhook.settings.rulefile import Problem, Recorded, Rule, Severity, behind, problem
from fusewire_webhook.web.metrics import Metrics

SCRAPES = 3
"""A range must span more than three intervals to hold a sample when one scrape in three is missed."""
OVERRIDE = "fusewire:override"

_FROM_PROMETHEUS = frozenset({"up", "ALERTS", "ALERTS_FOR_STATE", OVERRIDE})
_FOLDED = re.compile(r"rl_\w+_run_(min|max)")
_ALTERNATIVES = re.compile(r"\w+(\|\w+)*")


def read_problems(
    rules: Sequence[Rule], recorded: Recorded, *, metrics: Collection[str], scrape: timedelta
) -> Iterator[Problem]:
    """What is wrong with what the rules read.

    Args:
        metrics: series that exist beside those of fusewire and of the rules.
        scrape: the interval of the scrapes; 0: not known.
    """
    exported = _exported() | set(metrics)
    yield from unknown_problems(rules, recorded, metrics=metrics)
    for rule, severity in _weighed(rules, recorded):
        if severity == "error":
            yield from _fragile(rule, recorded, scrape)
        elif severity == "warning":
            yield from _raw(rule, recorded, exported)
    yield from range_problems(rules, recorded, scrape=scrape)


def unknown_problems(
    rules: Sequence[Rule], recorded: Recorded, *, metrics: Collection[str] = ()
) -> Iterator[Problem]:
    """The series and labels that rules read and nothing makes; ``metrics`` as in :func:`read_problems`."""
    known = _exported() | set(metrics) | _FROM_PROMETHEUS | recorded.keys()
    for rule, severity in _weighed(rules, recorded):
        yield from _unknown(rule, known, trusted=severity == "error")
        yield from _unknown_label(rule, known)


def range_problems(rules: Sequence[Rule], recorded: Recorded, *, scrape: timedelta) -> Iterator[Problem]:
    """The files whose alerts one missed scrape in three would blind at this interval of the scrapes."""
    weighed = [(rule, severity) for rule, severity in _weighed(rules, recorded) if severity]
    for file in dict.fromkeys(rule.file for rule, _ in weighed):
        short = [
            (rule.name, span, severity)
            for rule, severity in weighed
            if rule.file == file
            for _, span in _gauges(rule, recorded)
            if span is not None and span <= SCRAPES * scrape
        ]
        if short:
            least = min(span for _, span, _ in short).total_seconds()
            yield Problem(
                file=file,
                rule=", ".join(dict.fromkeys(name for name, _, _ in short)),
                message=f"ranges of {least:g} s are too little for one missed scrape in three at one scrape every "
                f"{scrape.total_seconds():g} s",
                remedy=f"set prometheus.scrape_interval_seconds to less than {least / SCRAPES:.3g}, or write "
                f"ranges of more than {SCRAPES * scrape.total_seconds():g} s in a copy of the file",
                severity="error" if any(severity == "error" for _, _, severity in short) else "warning",
            )


def _weighed(rules: Sequence[Rule], recorded: Recorded) -> Iterator[tuple[Rule, Severity | None]]:
    """How a fault of each rule counts: error where a trip depends on it, warning where another alert does."""
    trips = behind((rule for rule in rules if rule.is_trip), recorded)
    alerts = behind((rule for rule in rules if rule.is_alert), recorded)
    for rule in rules:
        if rule.is_trip or rule.name in trips:
            yield rule, "error"
        else:
            yield rule, "warning" if rule.is_alert or rule.name in alerts else None


@cache
def _exported() -> frozenset[str]:
    names = set(sample_names())
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names.update(family.name + suffix for suffix in suffixes)
    return frozenset(names)


def _unknown(rule: Rule, known: Collection[str], *, trusted: bool) -> Iterator[Problem]:
    for name in sorted(rule.reads - set(known)):
        ours = name.startswith(("rl_", "fusewire_", "fusewire:"))
        if name.startswith("scrape_") or not (trusted or ours):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        yield problem(
            rule,
            f"no series is called {name}",
            f"did you mean {close[0]}?" if close else "right only if your trainer declares such a signal",
            "error" if close or name.startswith(("fusewire_", "fusewire:")) else "warning",
        )


def _unknown_label(rule: Rule, known: Collection[str]) -> Iterator[Problem]:
    """Matchers that name a signal or a number of steps which no series carries."""
    for selector, _ in rule.selectors:
        name = selector.name or ""
        for matcher in selector.matchers.matchers:
            for value in _wanted(matcher):
                if matcher.name == "steps" and _FOLDED.fullmatch(name) and value not in map(str, STEPS):
                    yield problem(
                        rule,
                        f'there is no {name}{{steps="{value}"}}',
                        f"take one of {', '.join(map(str, STEPS))}",
                    )
                if matcher.name == "signal" and name.startswith(("rl_", "fusewire")) and f"rl_{value}" not in known:
                    close = difflib.get_close_matches(f"rl_{value}", known, n=1, cutoff=0.8)
                    meant = f"did you mean {close[0].removeprefix('rl_')}?" if close else ""
                    yield problem(
                        rule,
                        f"no signal is called {value}",
                        meant or "right only if your trainer declares it",
                        "error" if close else "warning",
                    )


def _wanted(matcher: promql.Matcher) -> Sequence[str]:
    """The values that a matcher lists; none where it excludes some or is a true pattern."""
    listed = matcher.op in (promql.MatchOp.Equal, promql.MatchOp.Re) and _ALTERNATIVES.fullmatch(matcher.value)
    return matcher.value.split("|") if listed else ()


def _gauges(rule: Rule, recorded: Collection[str]) -> Iterator[tuple[str, timedelta | None]]:
    """What it reads of scraped series, with the range; None: raw."""
    for selector, span in rule.selectors:
        name = selector.name or ""
        if name not in recorded and name not in _FROM_PROMETHEUS:
            yield name, span


def _fragile(rule: Rule, recorded: Collection[str], scrape: timedelta) -> Iterator[Problem]:
    yield from _raw(rule, recorded, None)
    for name, span in _gauges(rule, recorded):
        if span is not None and SCRAPES * scrape < span <= SCRAPES * rule.interval:
            yield problem(
                rule,
                f"looks back {span.total_seconds():g} s at {name}, too little for one missed scrape in three",
                f"take more than {SCRAPES} intervals of {rule.interval.total_seconds():g} s",
            )


def _raw(rule: Rule, recorded: Collection[str], of: Collection[str] | None) -> Iterator[Problem]:
    for name, span in _gauges(rule, recorded):
        if span is None and (of is None or name in of):
            remedy = f"write last_over_time({name}{{…}}[{SCRAPES + 1} scrape intervals])"
            if rule.name == OVERRIDE:
                remedy = f"write the number itself, such as vector(0.8), or {remedy.removeprefix('write ')}"
            yield problem(
                rule,
                f"reads {name} as it is: a single missed scrape makes it vanish and starts for: again",
                remedy,
                "error" if of is None else "warning",
            )
