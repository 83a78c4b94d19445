"""PromQL that several dashboards share. Numbers of the rules are read from the rules, never typed here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

RULES = Path(__file__).parents[1] / "rules"

STATES = ("closed", "half_open", "open", "locked", "completed")
"""States of the breaker; the number of a state in the dashboards is its place here."""

RUN = 'run="$run"'
ATTEMPTS = f'{RUN},attempt=~"$attempt"'
RUNS = 'run=~"$run"'


def per_attempt(metric: str, labels: str = "") -> str:
    """The metric of the chosen attempts, the ranks of an attempt taken together."""
    return f"max by (run, attempt) ({select(metric, ATTEMPTS, labels)})"


def label(name: str, value: str) -> str:
    """``name="value"``."""
    return f'{name}="{value}"'


def select(metric: str, *labels: str) -> str:
    """``metric{labels}``."""
    given = ",".join(label for label in labels if label)
    return f"{metric}{{{given}}}" if given else metric


def limit(signal: str) -> str:
    """Where the loaded rules trip by ``rl_<signal>``; nothing where they do not record it."""
    return per_attempt(f"fusewire:{signal}:limit")


def notice(signal: str) -> str:
    """Where the loaded rules tell people of ``rl_<signal>``; nothing where they do not record it."""
    return per_attempt(f"fusewire:{signal}:notice")


def state_number(labels: str) -> str:
    """The state of each run as its place in :data:`STATES`."""
    in_state = [select("fusewire_run_state", labels, label("state", state)) for state in STATES]
    return " + ".join(f"sum by (run) ({series}) * {number}" for number, series in enumerate(in_state) if number)


def worst_state(labels: str) -> str:
    """The highest number of :func:`state_number` since the last point of the graph: a short OPEN is not missed."""
    in_state = [select("fusewire_run_state", labels, label("state", state)) for state in STATES]
    numbered = [f"max_over_time({series}[$__interval]) * {number}" for number, series in enumerate(in_state)]
    return f"max by (run) ({' or '.join(numbered)})"


def quantile(share: float, histogram: str, span: str = "$__range", labels: str = "") -> str:
    """A quantile of a histogram over a span of time."""
    series = f"{histogram}_bucket{{{labels}}}" if labels else f"{histogram}_bucket"
    return f"histogram_quantile({share:g}, sum by (le) (increase({series}[{span}])))"


def grown(counter: str, *labels: str) -> str:
    """By how much a counter that never goes back (the journal keeps it) has grown in the time shown: exact."""
    series = select(counter, *labels)
    return f"(max_over_time({series}[$__range]) - min_over_time({series}[$__range]))"


def new(counter: str, *labels: str, by: str) -> str:
    """What a counter gained since the last point of the graph: no event falls between two points."""
    now = f"sum by ({by}) ({select(counter, *labels)})"
    before = f"sum by ({by}) ({select(counter, *labels)} offset $__interval)"
    return f"clamp_min({now} - {before}, 0)"


def began(series: str) -> str:
    """A single mark where the series begins."""
    return f"{series} unless {series} offset $__interval"


# GPU hours -------------------------------------------------------------------------------------------------------

TICK = 15
"""Resolution of the sums over time, in seconds."""

GPUS = (
    "(max by (run) (count by (run, attempt) (group by (run, attempt, gpu, host) (label_replace("
    f'last_over_time(gpu_memory_total_bytes{{{RUNS}}}[$__range]), "host", "$1", "instance", "(.*):[0-9]+")))) '
    f"or on (run) group by (run) (fusewire_run_state{{{RUNS}}}))"
)
"""GPUs of each run: the most that one attempt had (each may have had a host name of its own), and at least one."""

_SPAN = f"[$__range:{TICK}s]"


def gpu_hours_used() -> str:
    """Time in which an attempt answered, times its GPUs."""
    running = f'sum_over_time(group by (run) (up{{job="fusewire",{RUNS}}} == 1){_SPAN})'
    return f"{running} * {TICK} / 3600 * on (run) {GPUS}"


def gpu_hours_lost() -> str:
    """At each trip the updates since the promoted snapshot, at the usual pace, and the time in OPEN."""
    trips = f"sum by (run) (fusewire_trips_total{{{RUNS}}})"
    before = f"sum by (run) (fusewire_trips_total{{{RUNS}}} offset {TICK}s)"
    reached = f"max by (run) (max_over_time(rl_step{{{RUNS}}}[1m]))"
    kept = f"(max by (run) (fusewire_snapshot_promoted_step{{{RUNS}}}) or on (run) 0 * {reached})"
    pace = f"max by (run) (last_over_time(rl_step_duration_usual_seconds{{{RUNS}}}[1m]))"
    work = f"({reached} - on (run) {kept}) * on (run) {pace} * on (run) ({trips} - {before} > 0)"
    discarded = f"sum_over_time(({work}){_SPAN})"
    idle = f'sum_over_time(sum by (run) (fusewire_run_state{{{RUNS},state="open"}}){_SPAN}) * {TICK}'
    return f"(({discarded} or on (run) 0 * {idle}) + on (run) {idle}) / 3600 * on (run) {GPUS}"


def gpu_hours_saved() -> str:
    """For each divergence the hours after which a person would have seen it (``$hours``), times the GPUs."""
    trips = grown("fusewire_trips_total", RUNS, 'failure_class="divergence"')
    return f"sum by (run) {trips} * $hours * on (run) {GPUS}"


# Where the rules have a literal number ---------------------------------------------------------------------------


@cache
def alert_expressions() -> dict[str, str]:
    """Expression of every alert of the default pack."""
    found: dict[str, str] = {}
    for path in sorted(RULES.glob("*.rules.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found.update((rule["alert"], rule["expr"]) for rule in group["rules"] if "alert" in rule)
    return found


def alert_number(alert: str) -> float:
    """The number that the rule compares with.

    Raises:
        ValueError: it compares with none, or with several.
    """
    numbers = {
        node.rhs.val
        for node in _operators(promql.parse(alert_expressions()[alert]))
        if str(node.op) in {">", "<", ">=", "<="} and isinstance(node.rhs, promql.NumberLiteral)
    }
    if len(numbers) != 1:
        raise ValueError(f"alert {alert} compares with {len(numbers)} numbers: draw its threshold in another way")
    return float(numbers.pop())


def alert_value(alert: str) -> str:
    """The left side of the rule's comparison: what it watches."""
    expression = promql.parse(alert_expressions()[alert])
    if not isinstance(expression, promql.BinaryExpr):
        raise ValueError(f"alert {alert} is no comparison")
    return " ".join(str(expression.lhs.prettify()).split())


def _operators(node: Any) -> Iterator[promql.BinaryExpr]:
    if isinstance(node, promql.BinaryExpr):
        yield node
        yield from _operators(node.lhs)
        yield from _operators(node.rhs)
    elif isinstance(node, promql.ParenExpr | promql.AggregateExpr):
        yield from _operators(node.expr)
