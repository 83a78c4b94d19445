"""Asks a live Prometheus every query of the dashboards, as Grafana would.

    python -m grafana.verify http://127.0.0.1:9090 [--dashboards FOLDER] [--minutes 5]

Variables get the values that Grafana would offer. A query without data is excused only where the series that it
needs cannot exist there (no GPU, no memory limit, rules without thresholds, servers that are not scraped).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import promql_parser as promql

FOLDER = Path(__file__).with_name("dashboards")
POINTS = 300
"""About as many as a panel on a laptop asks for."""
LEAST_STEP = 1.0

CONDITIONAL = {
    "gpu_": "no GPU",
    "torch_cuda_": "no CUDA device in torch",
    "cgroup_memory_": "no cgroup with memory accounting, or none with a limit",
    "cgroup_oom_": "no cgroup with memory accounting",
    "fusewire:": "the loaded rules do not record it",
    "prometheus_": "Prometheus is not scraped itself",
    "alertmanager_": "Alertmanager is not scraped",
    "rl_episode_return": "the trainer reports no return",
    "rl_explained_variance": "the trainer reports none",
    "rl_clip_fraction": "the trainer reports none",
    "rl_value_loss": "the trainer has no critic",
    "rl_policy_entropy": "the trainer reports none",
    "rl_approx_kl": "the trainer reports none",
    "rl_grad_norm": "the trainer reports none",
    "rl_env_steps": "the trainer counts none",
    "rl_snapshot_last_step": "no snapshot was written yet",
    "rl_step_duration_usual_seconds": "no second step yet",
    "fusewire_snapshot_promoted": "no snapshot was promoted yet",
}
"""Series that may be missing altogether, by the start of their names, and why."""

Ask = Callable[[str, Mapping[str, str]], Any]
"""Path of Prometheus' API and parameters → ``data`` of the answer."""


class VerifyError(Exception):
    """Prometheus did not answer, or refused a query."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one query of a panel gave."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    """As it was asked, variables filled in."""
    series: int = 0
    """Series with at least one value that is a number."""
    excuse: str = ""
    """Why it may be empty; empty: it may not."""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it has data, or a reason to have none."""
        return not self.error and (self.series > 0 or bool(self.excuse))

    def __str__(self) -> str:
        said = self.error or (f"{self.series} series" if self.series else self.excuse or "NO DATA")
        return f"{self.dashboard} / {self.panel} / {self.ref}: {said}"


def http(url: str) -> Ask:
    """Ask this Prometheus."""

    def ask(path: str, parameters: Mapping[str, str]) -> Any:
        address = f"{url.rstrip('/')}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise VerifyError(f"Prometheus refuses: {error.read().decode(errors='replace')[:300]}") from error
        except OSError as error:
            raise VerifyError(f"Prometheus at {url} does not answer: {error}") from error

    return ask


def verify(
    dashboards: Path, url: str, *, minutes: float = 5.0, now: float | None = None, ask: Ask | None = None
) -> list[Answer]:
    """The answer of every query of every dashboard.

    Args:
        dashboards: folder of Grafana's JSON.
        url: of a Prometheus.
        ask: asks it; None: over HTTP.
        minutes: length of the time range shown.
        now: its end, in Unix seconds; None: this moment.

    Raises:
        VerifyError: Prometheus does not answer.
    """
    board = _Board(ask or http(url), seconds=minutes * 60, now=time.time() if now is None else now)
    return [answer for path in sorted(dashboards.glob("*.json")) for answer in board.answers(path)]


def panels(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The panels of a dashboard that are no rows, also those inside of collapsed rows."""
    for panel in content.get("panels", []):
        if panel["type"] == "row":
            yield from panels(panel)
        else:
            yield panel


def empty_panels(answers: Sequence[Answer]) -> dict[str, str]:
    """Panels without any data, with the excuse (empty: none)."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(f"{answer.dashboard} / {answer.panel}", []).append(answer)
    return {
        name: next((one.excuse for one in asked if one.excuse), "")
        for name, asked in found.items()
        if not any(one.series for one in asked)
    }


def series_names(expr: str) -> set[str]:
    """Names of the series that an expression without variables reads."""
    return {name for name in _names(promql.parse(expr)) if name}


def fill(expr: str, values: Mapping[str, str]) -> str:
    """Put values in the place of ``$name`` and ``${name}``."""
    return re.sub(r"\$(?:\{([a-zA-Z_]\w*)\}|([a-zA-Z_]\w*))", lambda match: values[match[1] or match[2]], expr)


class _Board:
    """Dashboards over one range of time of one Prometheus."""

    def __init__(self, ask: Ask, *, seconds: float, now: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._now = now
        self._step = max(LEAST_STEP, seconds / POINTS)
        self._known = set(ask("/api/v1/label/__name__/values", self._span()))

    def answers(self, path: Path) -> Iterator[Answer]:
        content = json.loads(path.read_text(encoding="utf-8"))
        values = self._variables(content)
        for panel in panels(content):
            repeat = panel.get("repeat")
            for one in values[repeat].split("|") if repeat else [""]:
                filled = {**values, repeat: one} if repeat else values
                for target in panel.get("targets", []):
                    yield self._answer(path.stem, fill(panel["title"], filled), target, filled)
        for mark in content["annotations"].get("list", []):
            yield self._mark(path.stem, mark, values)

    def _answer(self, dashboard: str, panel: str, target: Mapping[str, Any], values: Mapping[str, str]) -> Answer:
        expr = fill(target["expr"], values)
        answer = Answer(dashboard=dashboard, panel=panel, ref=str(target["refId"]), expr=expr)
        try:
            count = self._count(expr, instant=bool(target.get("instant")))
        except VerifyError as error:
            return replace(answer, error=str(error))
        return replace(answer, series=count, excuse="" if count else self._excuse(expr))

    def _mark(self, dashboard: str, mark: Mapping[str, Any], values: Mapping[str, str]) -> Answer:
        """An annotation: what never happened leaves no mark, so only errors count."""
        answer = self._answer(dashboard, f"annotation {mark['name']}", mark["target"], values)
        if answer.ok:
            return answer
        return Answer(**{**vars(answer), "excuse": (answer.error and "") or "it did not happen"})

    def _count(self, expr: str, *, instant: bool) -> int:
        if instant:
            found = self._ask("/api/v1/query", {"query": expr, "time": f"{self._now:.3f}"})
        else:
            found = self._ask("/api/v1/query_range", {"query": expr, "step": f"{self._step:g}", **self._span()})
        if found["resultType"] == "scalar":
            return 1
        return sum(
            any(not math.isnan(float(value)) for _, value in one.get("values", [one.get("value")]))
            for one in found["result"]
        )

    def _excuse(self, expr: str) -> str:
        missing = sorted(series_names(expr) - self._known)
        reasons = (
            f"{why} ({name})" for name in missing for start, why in CONDITIONAL.items() if name.startswith(start)
        )
        return next(reasons, "")

    def _variables(self, content: Mapping[str, Any]) -> dict[str, str]:
        values = {
            "__rate_interval": f"{max(4.0, 4 * self._step):g}s",
            "__interval": f"{self._step:g}s",
            "__range": f"{self._seconds:g}s",
            "__range_s": f"{self._seconds:g}",
        }
        for variable in content["templating"]["list"]:
            if variable["type"] == "query":
                values[variable["name"]] = self._offered(variable, values)
            else:
                values[variable["name"]] = str(variable.get("query", ""))
        return values

    def _offered(self, variable: Mapping[str, Any], values: Mapping[str, str]) -> str:
        """The first value that Grafana would offer, or all of them as it joins them."""
        asked = re.fullmatch(r"(label_values|query_result)\((.*)\)", fill(variable["query"], values))
        assert asked is not None, variable["query"]
        if asked[1] == "label_values":
            selector, _, label = asked[2].rpartition(", ")
            found = self._ask(f"/api/v1/label/{label}/values", {"match[]": selector, **self._span()})
        else:
            result = self._ask("/api/v1/query", {"query": asked[2], "time": f"{self._now:.3f}"})["result"]
            found = [_as_text(one["metric"]) for one in result]
        if variable.get("regex"):
            matches = (re.search(variable["regex"].strip("/"), text) for text in found)
            found = [match[1] for match in matches if match]
        if not found:
            raise VerifyError(f"the variable {variable['name']} has no value: {asked[0]} finds nothing")
        return "|".join(found) if variable.get("multi") else str(found[0])

    def _span(self) -> dict[str, str]:
        return {"start": f"{self._now - self._seconds:.3f}", "end": f"{self._now:.3f}"}


def _as_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _names(node: Any) -> Iterator[str | None]:
    if isinstance(node, promql.VectorSelector):
        yield node.name
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector.name
    elif isinstance(node, promql.BinaryExpr):
        yield from _names(node.lhs)
        yield from _names(node.rhs)
    elif isinstance(node, promql.Call):
        for argument in node.args:
            yield from _names(argument)
    elif hasattr(node, "expr"):
        yield from _names(node.expr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what every query gave; exit code 1 if one is wrong or empty without an excuse."""
    parser = argparse.ArgumentParser(
        prog="python -m grafana.verify", description="Ask every query of the dashboards."
    )
    parser.add_argument("url", help="address of a Prometheus")
    parser.add_argument(
        "--dashboards", type=Path, default=FOLDER, help="folder of JSON (default: grafana/dashboards)"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="time range shown (default: 5)")
    parser.add_argument("--verbose", action="store_true", help="print the queries too")
    given = parser.parse_args(arguments)
    try:
        answers = verify(given.dashboards, given.url, minutes=given.minutes)
    except VerifyError as error:
        parser.exit(1, f"{error}\n")
    for answer in answers:
        print(answer)
        if given.verbose or not answer.ok:
            print(f"    {answer.expr}")
    bad = [answer for answer in answers if not answer.ok]
    print(f"{len(answers)} queries, {len(bad)} without data or wrong")
    for name, excuse in empty_panels(answers).items():
        print(f"empty: {name}: {excuse or 'no excuse'}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
