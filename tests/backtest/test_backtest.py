"""The verdicts of real promtool on whole runs, and what the breaker would have done."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fusewire_webhook.backtest import engine
from fusewire_webhook.backtest.clock import RowClock
from fusewire_webhook.backtest.dryrun import dry_run
from fusewire_webhook.backtest.model import RunLog
from fusewire_webhook.backtest.pack import Pack, load
from fusewire_webhook.backtest.session import Options, Progress, backtest, sweep
from fusewire_webhook.backtest.verdict import Verdict, by_label, score
from fusewire_webhook.errors import BacktestError, ConfigError
from tests.backtest.conftest import make_log

ONE = Options(jobs=1)

ODD = """
groups:
  - name: g
    interval: 1s
    rules:
      - alert: Warn
        expr: max by (run, attempt) (last_over_time(rl_approx_kl[4s])) > 1
        labels: {action: notify}
      - alert: OnAlerts
        expr: count by (run, attempt) (ALERTS{alertname="Warn",alertstate="firing"}) > 0
        labels: {action: trip, class: divergence}
      - alert: ByName
        expr: max by (run, attempt) ({__name__=~"rl_approx_kl_run_m.*",steps="3"} < Inf) > 1
        labels: {action: trip, class: divergence}
      - alert: Unparsed
        expr: max by (run, attempt) (holt_winters(rl_approx_kl[9s], 0.9, 0.9)) > 1
        labels: {action: trip, class: divergence}
"""

FOR = """
groups:
  - name: g
    interval: 1s
    rules:
      - alert: Patient
        expr: max by (run, attempt) (last_over_time(rl_approx_kl[4s])) > 1
        for: 3s
        labels: {action: trip, class: infrastructure}
      - alert: Unrelated
        expr: absent(rl_approx_kl)
        labels: {action: trip}
"""


@pytest.fixture
def patient(tmp_path: Path) -> Pack:
    path = tmp_path / "patient.rules.yaml"
    path.write_text(FOR)
    return load([path])


def run_of(verdicts: list[Verdict], name: str) -> Verdict:
    (found,) = [verdict for verdict in verdicts if verdict.log.id == name]
    return found


def noise(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, rows)


def test_the_default_pack_catches_what_is_broken_and_spares_what_is_not(default_pack: Pack) -> None:
    """A collapse, an infinity and a KL without end trip at the right row; growth, noise and a dip do not."""
    rise = np.linspace(0, 100, 60)
    logs = [
        make_log("collapse", label="collapsed_reward", first_bad_row=60, episode_return=[*rise, *[5.0] * 40]),
        make_log(
            "infinite", label="nonfinite", first_bad_row=7, policy_loss=[0.1] * 7 + [float("inf")] + [0.1] * 5
        ),
        make_log("kl", label="diverged", first_bad_row=20, approx_kl=[0.01] * 20 + [40.0] * 30),
        make_log("growth", label="healthy", episode_return=np.linspace(-50, 50, 120) + noise(0, 120)),
        make_log("noise", label="noisy_but_fine", episode_return=noise(1, 120)),
        make_log("dip", label="healthy", episode_return=[*rise, *[0.0] * 6, *[100.0] * 40]),
        make_log("late", label="healthy", episode_return=[float("nan")] * 30 + [5.0] * 30),
    ]
    verdicts, errors = backtest(logs, default_pack, ONE)
    assert not errors
    tripped = {verdict.log.id: (verdict.tripped_rule, verdict.tripped_row) for verdict in verdicts}
    assert tripped["infinite"] == ("NonFiniteValue", 7)
    assert tripped["kl"] == ("KLSpike", 29)
    rule, row = tripped["collapse"]
    assert rule == "ReturnCollapse"
    assert row is not None
    assert 69 <= row <= 75
    assert [tripped[name] for name in ("growth", "noise", "dip", "late")] == [(None, None)] * 4
    found = score(verdicts)
    assert found is not None
    assert (found.spared, found.noisy, found.caught, found.early) == ((0, 3), (0, 1), (3, 3), 0)
    assert by_label(verdicts)["healthy"] == (0, 3)


def test_pending_rows_and_the_breaker_are_told(patient: Pack) -> None:
    """``for:`` is pending first; the JSON form has the documented keys, rows counted from 0."""
    log = make_log("r", label="bad", first_bad_row=5, approx_kl=[0.0] * 5 + [2.0] * 10)
    (verdict,), _ = backtest([log], patient, ONE)
    document = verdict.to_json()
    assert document["tripped_row"] == 8
    assert document["tripped_rule"] == "Patient"
    assert document["pending_rows"] == [5, 6, 7]
    assert document["delay_rows"] == 3
    assert document["delay_seconds"] == 3.0
    assert document["breaker"]["lr_scale"] == 1.0, "an infrastructure failure keeps the learning rate"
    assert document["breaker"]["journal"][0].startswith("trip alert Patient")


HOLD = """
groups:
  - name: g
    interval: 1s
    rules:
      - alert: Doubt
        expr: max by (run, attempt) (last_over_time(rl_approx_kl[4s])) > 1
        labels: {action: hold}
      - alert: Trip
        expr: max by (run, attempt) (last_over_time(rl_approx_kl[4s])) > 5
        labels: {action: trip, class: divergence}
      - alert: Elsewhere
        expr: max by (run, attempt) (last_over_time(rl_grad_norm[4s])) > 5
        labels: {action: trip, class: divergence}
      - record: fusewire:approx_kl:limit
        expr: 5 * max by (run, attempt) (last_over_time(rl_updates_total[4s])) ^ 0
"""


def test_every_row_of_a_hold_is_doubt_and_a_rule_without_its_series_is_named(tmp_path: Path) -> None:
    """A hold is told in all its rows before the trip, and so is silence for want of a signal."""
    path = tmp_path / "hold.rules.yaml"
    path.write_text(HOLD)
    log = make_log("r", approx_kl=[0.0] * 3 + [2.0] * 4 + [0.0] + [9.0] * 4)
    (verdict,), _ = backtest([log], load([path]), Options(jobs=1, limits=True))
    document = verdict.to_json()
    assert document["pending_rows"] == [3, 4, 5, 6]
    assert document["tripped_row"] == 8
    assert document["rules"][0]["firing_rows"] == [3, 4, 5, 6, 8, 9, 10, 11]
    assert document["left_out"] == ["Elsewhere"]
    assert verdict.limits == {"approx_kl": (list(range(12)), [5.0] * 12)}


def test_a_trip_may_read_other_alerts_and_series_without_a_fixed_name(tmp_path: Path) -> None:
    """What the backtest leaves out to be fast never changes a verdict."""
    path = tmp_path / "odd.rules.yaml"
    path.write_text(ODD)
    (verdict,), _ = backtest([make_log("r", approx_kl=[0.0] * 3 + [2.0] * 9)], load([path]), ONE)
    assert {rule.rule: rule.firing_row for rule in verdict.rules} == {"OnAlerts": 3, "ByName": 5, "Unparsed": 3}


def test_a_run_that_never_trips_has_null(patient: Pack) -> None:
    """``tripped_row`` is null, not 0."""
    (verdict,), _ = backtest([make_log("r", approx_kl=[0.0] * 4)], patient, ONE)
    assert verdict.to_json()["tripped_row"] is None
    assert verdict.to_json()["breaker"] is None
    assert score([verdict]) is None


def test_runs_of_one_batch_do_not_touch_each_other_and_keep_their_order(patient: Pack) -> None:
    """Each run ends with its own last row, however long the others are."""
    logs = [make_log(f"r{n}", approx_kl=[0.0] * n + [2.0] * (20 - n)) for n in (3, 9, 6)]
    verdicts, _ = backtest(logs, patient, ONE)
    assert [(verdict.log.id, verdict.tripped_row) for verdict in verdicts] == [("r3", 6), ("r9", 12), ("r6", 9)]


def test_row_time_changes_patience_in_time(patient: Pack) -> None:
    """The same log trips later, in rows, when a row takes a quarter of a scrape."""
    log = make_log("r", approx_kl=[0.0] * 4 + [2.0] * 40)
    (fast,), _ = backtest([log], patient, Options(jobs=1, clock=RowClock(kind="fixed", step_seconds=0.25)))
    assert fast.tripped_seconds == 4.0
    assert fast.tripped_row == 16


def test_an_unplayable_log_and_a_second_of_the_same_name_leave_the_others(patient: Pack) -> None:
    """One bad log does not take the rest along."""
    good = make_log("good", approx_kl=[2.0] * 9)
    bare = RunLog(id="bare", columns=good.columns, steps=good.steps)
    timed = RunLog(id="timed", columns=good.columns, steps=good.steps, seconds=np.arange(9.0))
    verdicts, errors = backtest([bare, timed, timed], patient, Options(jobs=1, clock=RowClock(kind="log")))
    assert [verdict.log.id for verdict in verdicts] == ["timed"]
    assert [str(error).split(":")[0] for error in errors] == ["bare", "timed"]


def test_rules_that_promtool_refuses_are_an_error_of_the_configuration(tmp_path: Path) -> None:
    """The message is promtool's."""
    path = tmp_path / "x.rules.yaml"
    path.write_text(FOR.replace("max by (run, attempt)", "max by (run, attempt"))
    with pytest.raises(ConfigError, match="promtool check rules"):
        backtest([make_log("r", approx_kl=[0.0])], load([path]), ONE)


def test_a_missing_promtool_is_named(patient: Pack) -> None:
    """Without promtool there is no verdict, and no guess."""
    with pytest.raises(ConfigError, match="no-such-tool is not installed"):
        backtest([make_log("r", approx_kl=[0.0])], patient, Options(jobs=1, promtool="no-such-tool"))


def test_a_sweep_changes_one_number_and_shows_what_it_does(patient: Pack, tmp_path: Path) -> None:
    """Longer patience trips later; what trips too early hides no delay; a number that the pack lacks is refused."""
    log = make_log("r", label="bad", first_bad_row=5, approx_kl=[0.0] * 5 + [2.0] * 10)
    points, _ = sweep([log], patient, ONE, key="Patient.for", values=["0s", "5s"], folder=tmp_path / "s")
    delays = [(point.score.median_delay_rows, point.score.in_time_delay_rows) for point in points if point.score]
    assert delays == [(0, 0), (5, 5)]
    late = make_log("late", label="bad", first_bad_row=14, approx_kl=[0.0] * 5 + [2.0] * 10)
    ((point,), _) = sweep([log, late], patient, ONE, key="Patient.for", values=["0s"], folder=tmp_path / "l")
    assert point.score is not None
    assert (point.score.early, point.score.median_delay_rows, point.score.in_time_delay_rows) == (1, -4.5, 0)
    with pytest.raises(ConfigError, match="no such number"):
        sweep([log], patient, ONE, key="nonsense", values=["1"], folder=tmp_path / "t")


def test_a_threshold_of_the_default_pack_can_be_swept(default_pack: Pack, tmp_path: Path) -> None:
    """The number is changed for every run, whatever else the pack says."""
    log = make_log("r", approx_kl=[0.01] * 10 + [3.0] * 20)
    points, _ = sweep([log], default_pack, ONE, key="approx_kl", values=["2", "5"], folder=tmp_path)
    assert [point.verdicts[0].tripped_row for point in points] == [19, None]


def test_the_dry_run_goes_back_to_the_last_snapshot_without_doubt() -> None:
    """Doubt before the trip keeps snapshots from being promoted; a divergence halves the learning rate."""
    clean = dry_run(alert="A", failure_class="divergence", row=520, doubtful_rows=[])
    assert (clean.rollback_row, clean.lr_scale) == (400, 0.5)
    doubted = dry_run(alert="A", failure_class="divergence", row=520, doubtful_rows=[450])
    assert doubted.rollback_row == 300
    young = dry_run(alert="A", failure_class="divergence", row=50, doubtful_rows=[])
    assert young.rollback_row is None
    assert any("scratch" in line for line in young.lines)


def killing(folder: Path, victim: str) -> str:
    """A promtool that finds no fault with the rules, and kills when it is to judge by them."""
    path = folder / "promtool"
    path.write_text(f'#!/bin/sh\n[ "$1" = check ] || {{ kill -9 {victim}; exec tail -f {path}; }}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("$PPID", "a process that judged runs was killed; 3 of 3 runs were not judged. "),
        ("$$", "promtool was ended by SIGKILL while it judged "),
    ],
)
def test_a_process_that_is_killed_is_named_with_the_remedy(
    tmp_path: Path, patient: Pack, victim: str, words: str
) -> None:
    """As the kernel does it for lack of memory: one sentence, at once, and nothing is left running."""
    logs = [make_log(f"r{number}", approx_kl=[0.0] * 4) for number in range(3)]
    began = time.monotonic()
    with pytest.raises(BacktestError, match=words) as caught:
        backtest(logs, patient, Options(jobs=2, promtool=killing(tmp_path, victim)))
    assert "take a smaller --jobs, or fewer logs at a time" in str(caught.value)
    assert time.monotonic() - began < 50
    end = time.monotonic() + 20
    while left := [pid for pid in _started_by(str(tmp_path)) if pid != os.getpid()]:
        assert time.monotonic() < end, f"{left} are left"
        time.sleep(0.1)


def _started_by(text: str) -> list[int]:
    """Processes that have it in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_each_run_is_told_as_it_is_judged(patient: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run once, with its verdict; in between, how many are at work."""

    class Told(Progress):
        def __init__(self) -> None:
            self.names: list[tuple[str, bool]] = []
            self.at_work: set[int] = set()

        def judged(self, verdicts: Sequence[Verdict]) -> None:
            self.names += [(verdict.log.id, verdict.tripped_row is not None) for verdict in verdicts]

        def waiting(self, runs: int) -> None:
            self.at_work.add(runs)

    monkeypatch.setattr(engine, "NEWS_SECONDS", 0.05)
    logs = [make_log(f"r{number}", approx_kl=[0.0] * 4 + [2.0 * (number % 2)] * 9) for number in range(5)]
    told = Told()
    verdicts, _ = backtest(logs, patient, Options(jobs=2), progress=told)
    assert sorted(told.names) == [(one.log.id, one.tripped_row is not None) for one in verdicts]
    assert {tripped for _, tripped in told.names} == {True, False}
    assert told.at_work
    assert max(told.at_work) <= 5
