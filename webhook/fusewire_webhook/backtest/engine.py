"""The real rule engine: ``promtool test rules`` on what was scraped.

promtool loads the series, evaluates every rule at every interval exactly as a server does, and then answers
queries. Asked for ``ALERTS`` at each instant with the expectation of nothing, it prints every alert that was
pending or firing. One promtool process takes several runs at once: an evaluation costs little more for ten than
for one.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewire_webhook.backtest.exposure import expose
from fusewire_webhook.backtest.model import Exposure, Floats, RunLog
from fusewire_webhook.backtest.pack import Pack, left_out, relevant
from fusewire_webhook.backtest.pruning import LIMIT
from fusewire_webhook.errors import BacktestError, ConfigError
from fusewire_webhook.stack import leash

NEWS_SECONDS = 30.0
_REMEDY = "Most often that is the kernel, for lack of memory: take a smaller --jobs, or fewer logs at a time"

RUN_SHARE = 0.1
"""What each run adds to the cost of an evaluation, as a share of its fixed cost."""

_ALERTS = 'ALERTS{run!=""}'
_LIMITS = f' or {{__name__=~"{LIMIT.pattern}",run!=""}}'
_AT = re.compile(r'^\s*expr: "ALERTS.*", time: (\S+),$')
_SAMPLE = re.compile(r"\{((?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*)\} ([^\s,]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwy])")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One alert of one run at one evaluation."""

    scrape: int
    alert: str
    state: str
    """``pending`` or ``firing``."""
    action: str
    """Label ``action``: ``trip``, ``hold``, ``notify`` …"""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the rules said of one run."""

    alerts: list[Seen] = field(default_factory=list)
    """In order of time."""
    left_out: tuple[str, ...] = ()
    """Alerts that could say nothing, because the run shows none of their series."""
    limits: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """By signal the level at which a rule would have tripped: (scrape, level)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run and when its rows happen."""

    log: RunLog
    seconds: Floats
    """[rows], from 0 on."""
    seen: npt.NDArray[np.int64]
    """[scrapes], the number of rows that each scrape can see."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the runs are scraped and judged."""

    scrape_seconds: float
    window_seconds: float = 10.0
    """Of the exporter."""
    actions: tuple[str, ...] = ("trip", "hold")
    """Alerts with these labels ``action`` are evaluated."""
    limits: bool = False
    """Whether the levels at which rules trip are asked for, which takes longer."""
    promtool: str = "promtool"


def evaluate(
    plans: Sequence[Plan],
    packs: Sequence[Pack],
    setting: Setting,
    *,
    jobs: int = 2,
    waiting: Callable[[int], None] = lambda _runs: None,
) -> Iterator[tuple[Plan, list[Heard]]]:
    """Each run with what each pack said of it, as soon as that is known.

    Args:
        jobs: processes at once.
        waiting: called every ``NEWS_SECONDS`` in which no run was done, with the number of runs at work.

    Raises:
        ConfigError: promtool refuses the rules or is not installed.
        BacktestError: a process was killed.
    """
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        # the cheapest batch first: it has the most runs, and its news come soon
        batches = {pool.submit(_evaluate, b, packs, setting): b for b in reversed(_batches(plans, 2 * jobs))}
        left = dict(batches)
        try:
            while left:
                done, _ = wait(left, timeout=NEWS_SECONDS, return_when=FIRST_COMPLETED)
                if not done:
                    waiting(sum(len(batch) for batch in itertools.islice(left.values(), jobs)))
                for future in done:
                    found = future.result()
                    for plan in left.pop(future):
                        yield plan, [heard[plan.log.id] for heard in found]
        except BrokenProcessPool:
            raise BacktestError(
                f"a process that judged runs was killed; {sum(map(len, left.values()))} of {len(plans)} runs were "
                f"not judged. {_REMEDY}"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others if left else ():
                process.terminate()  # nobody waits for what is still judged


def check(pack: Pack, *, promtool: str = "promtool") -> None:
    """Let promtool read the rules.

    Raises:
        ConfigError: it refuses them; the message is promtool's.
    """
    done = _run([promtool, "check", "rules", *map(str, pack.files)])
    if done.returncode:
        raise ConfigError(f"promtool check rules: {' '.join(done.stderr.split()) or done.stdout}")


def _batches(plans: Sequence[Plan], count: int) -> list[list[Plan]]:
    """At most ``count`` batches of about equal cost, runs of like length together, the longest first.

    An evaluation costs a fixed part and a smaller one for each run, and a batch is as long as its longest run.
    """
    ordered = sorted(plans, key=lambda plan: -len(plan.seen))
    low, high = 0.0, sum(len(plan.seen) * (1 + RUN_SHARE) for plan in ordered)
    while high - low > 1:
        middle = (low + high) / 2
        if len(_filled(ordered, middle)) <= count:
            high = middle
        else:
            low = middle
    return _filled(ordered, high)


def _filled(ordered: Sequence[Plan], capacity: float) -> list[list[Plan]]:
    batches: list[list[Plan]] = []
    for plan in ordered:
        last = batches[-1] if batches else []
        if last and len(last[0].seen) * (1 + RUN_SHARE * (len(last) + 1)) <= capacity:
            last.append(plan)
        else:
            batches.append([plan])
    return batches


def _evaluate(batch: Sequence[Plan], packs: Sequence[Pack], setting: Setting) -> list[dict[str, Heard]]:
    names = frozenset().union(*(pack.names for pack in packs))
    exposures = [
        plan.log.stored
        or expose(
            plan.log,
            plan.seconds,
            scrape_seconds=setting.scrape_seconds,
            window_seconds=setting.window_seconds,
            names=names,
        )
        for plan in batch
    ]
    return [_judge(exposures, pack, setting) for pack in packs]


def _judge(exposures: Sequence[Exposure], pack: Pack, setting: Setting) -> dict[str, Heard]:
    shown = {
        exposure.run: frozenset(selector.partition("{")[0] for selector in exposure.series)
        for exposure in exposures
    }
    with tempfile.TemporaryDirectory(prefix="fusewire-backtest-") as name:
        folder = Path(name)
        exposed = frozenset().union(*shown.values())
        rules = relevant(pack, exposed, folder / "rules", actions=setting.actions, limits=setting.limits)
        path = folder / "test.yaml"
        path.write_text(json.dumps(_document(exposures, rules, setting)), encoding="utf-8")
        done = _run([setting.promtool, "test", "rules", str(path)])
    text = done.stdout + done.stderr
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        runs = "1 run" if len(exposures) == 1 else f"{len(exposures)} runs"
        raise BacktestError(f"promtool was ended by {name} while it judged {runs}. {_REMEDY}")
    if done.returncode and "got:" not in text:
        raise ConfigError(f"promtool test rules: {' '.join(text.split())[:500]}")
    silent = {names: left_out(pack, names, actions=setting.actions) for names in set(shown.values())}
    heard = {run: Heard(left_out=silent[names]) for run, names in shown.items()}
    lengths = {exposure.run: exposure.scrapes for exposure in exposures}
    for scrape, labels, value in _parse(text, setting.scrape_seconds):
        run = labels["run"]
        if scrape >= lengths.get(run, 0):
            continue
        if level := LIMIT.fullmatch(labels.get("__name__", "")):
            heard[run].limits.setdefault(level[1], []).append((scrape, value))
        elif (action := labels.get("action", "")) in setting.actions:
            heard[run].alerts.append(
                Seen(scrape=scrape, alert=labels["alertname"], state=labels["alertstate"], action=action)
            )
    return heard


def _document(exposures: Sequence[Exposure], rules: Pack, setting: Setting) -> dict[str, Any]:
    """promtool's unit test; JSON is YAML."""
    interval = f"{round(setting.scrape_seconds * 1000)}ms"
    question = _ALERTS + (_LIMITS if setting.limits else "")
    series = [
        {"series": selector, "values": values}
        for exposure in exposures
        for selector, values in exposure.series.items()
    ]
    questions = [
        {"expr": question, "eval_time": f"{round(scrape * setting.scrape_seconds * 1000)}ms"}
        for scrape in range(max(exposure.scrapes for exposure in exposures))
    ]
    return {
        "rule_files": [str(path.resolve()) for path in rules.files],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "promql_expr_test": questions}],
    }


def _parse(text: str, scrape_seconds: float) -> Iterable[tuple[int, dict[str, str], float]]:
    """(scrape, labels, value) of everything that promtool had not expected, in order of time."""
    scrape = 0
    for line in text.splitlines():
        if at := _AT.match(line):
            scrape = round(_seconds(at[1]) / scrape_seconds)
        elif line.lstrip().startswith("got: "):
            for sample in _SAMPLE.finditer(line):
                labels = {name: json.loads(f'"{value}"') for name, value in _LABEL.findall(sample[1])}
                yield scrape, labels, float(sample[2])


def _seconds(text: str) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it ends with this process, also where that is killed."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"{command[0]} is not installed; it comes with Prometheus")
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), program, *command[1:]]
    return subprocess.run(leashed, capture_output=True, text=True, check=False)
