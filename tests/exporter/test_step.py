"""What a trainer reports arrives in a scrape, whatever it reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import fusewire

from .conftest import Clock, scrape

Attach = Callable[..., fusewire.Run]


def test_last_values_and_runs(attach: Attach) -> None:
    """A step's values are shown as they came, with runs only as long as there are reports."""
    run = attach()
    for step, kl in enumerate((0.5, 0.1, 0.4)):
        run.step(step, approx_kl=kl, grad_norm=1, env_steps=100 * step, episodes=step)
    seen = scrape(run)
    assert seen["rl_approx_kl"] == 0.4
    assert seen['rl_approx_kl_run_min{steps="1"}'] == 0.5
    assert seen['rl_approx_kl_run_min{steps="3"}'] == 0.1
    assert seen['rl_approx_kl_run_max{steps="3"}'] == 0.5
    assert 'rl_approx_kl_run_min{steps="10"}' not in seen
    assert (seen["rl_step"], seen["rl_updates_total"]) == (2, 3)
    assert (seen["rl_env_steps_total"], seen["rl_episodes_total"]) == (200, 2)
    assert "rl_value_loss" not in seen


@pytest.mark.parametrize(
    "value",
    [3, True + 2, np.float32(3), np.float64(3), np.int64(3), np.array(3.0), Decimal(3), torch.tensor(3.0),
     torch.tensor([3.0]), torch.tensor(3, dtype=torch.int64), torch.tensor(3.0, dtype=torch.bfloat16),
     torch.tensor(3.0, requires_grad=True)],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}-{getattr(value, 'shape', '')}",
)  # fmt: skip
def test_kinds_of_scalars(attach: Attach, value: Any) -> None:
    """Numbers, numpy scalars and CPU tensors of one element are all scalars."""
    run = attach()
    run.step(0, value_loss=value, approx_kl=0.5)
    seen = scrape(run)
    assert (seen["rl_value_loss"], seen["rl_approx_kl"]) == (3.0, 0.5)
    assert not any(run.errors.counts.values())


def test_a_tensor_is_copied_at_once(attach: Attach) -> None:
    """A CPU tensor that the trainer overwrites afterwards was reported with its old value."""
    run = attach()
    loss = torch.tensor(1.0)
    run.step(0, value_loss=loss)
    loss.fill_(99.0)
    assert scrape(run)["rl_value_loss"] == 1.0


@pytest.mark.parametrize(
    ("value", "where"), [("high", "value"), (torch.zeros(3), "value"), (object(), "value"), ([1.0], "value")]
)
def test_what_is_no_scalar(attach: Attach, value: Any, where: str) -> None:
    """It is counted and warned of once, and the step's other signals arrive."""
    run = attach()
    for step in range(3):
        run.step(step, value_loss=value, approx_kl=0.5)
    seen = scrape(run)
    assert seen["rl_approx_kl"] == 0.5
    assert seen["rl_updates_total"] == 3
    assert "rl_value_loss" not in seen
    assert seen[f'fusewire_exporter_errors_total{{where="{where}"}}'] == 3


def test_one_warning_per_kind(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    """The same mistake in each step is logged once, by the name of the signal."""
    run = attach()
    with caplog.at_level(logging.WARNING, "fusewire"):
        for step in range(5):
            run.step(step, value_loss="high")
    assert [record.getMessage().count("'value_loss'") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aprox_kl", ": did you mean 'approx_kl'?"),
        ("kl", ": did you mean 'approx_kl' or 'reference_kl'?"),
        ("entropy", ": did you mean 'policy_entropy'?"),
        ("temperatur", ": did you mean 'temperature'?"),
        ("board_score", ";"),
    ],
)
def test_a_misspelt_signal(attach: Attach, caplog: pytest.LogCaptureFixture, name: str, meant: str) -> None:
    """The warning about a signal that is not declared names the one that was meant, if any is like it."""
    run = attach()
    with caplog.at_level(logging.WARNING, "fusewire"):
        run.step(1, **{name: 0.1})
        scrape(run)
    assert f"signal {name!r} is not declared and not exported{meant}" in caplog.text


def test_none_is_no_report(attach: Attach) -> None:
    """A signal given as None is not reported by that step, and no error."""
    run = attach()
    run.step(0, value_loss=1.0, approx_kl=None)
    run.step(1, value_loss=None, approx_kl=2.0)
    seen = scrape(run)
    assert (seen["rl_value_loss"], seen["rl_approx_kl"]) == (1.0, 2.0)
    assert not any(run.errors.counts.values())


def test_an_undeclared_signal(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    """It is not exported; the warning says how to declare it."""
    run = attach()
    with caplog.at_level(logging.WARNING, "fusewire"):
        run.step(0, my_loss=1.0, approx_kl=0.5)
        seen = scrape(run)
    assert seen["rl_approx_kl"] == 0.5
    assert "rl_my_loss" not in seen
    assert "Signal(name='my_loss'" in caplog.text


def test_a_declared_signal(attach: Attach) -> None:
    """A signal that the user declares is treated like those of the catalogue."""
    run = attach(signals=[fusewire.Signal(name="my_loss", help="A loss of mine.")])
    assert scrape(run)['rl_nonfinite_total{signal="my_loss"}'] == 0
    run.step(0, my_loss=1.0)
    assert scrape(run)['rl_my_loss_run_min{steps="1"}'] == 1.0


def test_a_step_that_is_no_number(attach: Attach) -> None:
    """A step number of a wrong type costs rl_step only."""
    run = attach()
    run.step("first", approx_kl=0.5)  # type: ignore[arg-type]
    seen = scrape(run)
    assert seen["rl_approx_kl"] == 0.5
    assert "rl_step" not in seen
    assert seen['fusewire_exporter_errors_total{where="value"}'] >= 1


def test_nonfinite(attach: Attach) -> None:
    """Non-finite values are counted from 0, keep their value in the gauge, and their streak is seen."""
    run = attach()
    assert scrape(run)['rl_nonfinite_total{signal="grad_norm"}'] == 0
    for step, value in enumerate((1.0, math.inf, math.nan, 1.0, -math.inf)):
        run.step(step, grad_norm=value, approx_kl=0.5)
    seen = scrape(run)
    assert seen["rl_grad_norm"] == -math.inf
    assert seen['rl_nonfinite_total{signal="grad_norm"}'] == 3
    assert seen['rl_nonfinite_streak{signal="grad_norm"}'] == 2
    assert seen['rl_nonfinite_total{signal="approx_kl"}'] == 0


def test_a_return_before_the_first_episode(attach: Attach) -> None:
    """It is absent, not NaN and not counted; once there was one, NaN is evidence."""
    run = attach()
    for step in range(3):
        run.step(step, episode_return=math.nan, approx_kl=0.5)
    seen = scrape(run)
    assert "rl_episode_return" not in seen
    assert 'rl_episode_return_run_min{steps="1"}' not in seen
    assert seen['rl_nonfinite_total{signal="episode_return"}'] == 0
    run.step(3, episode_return=20.0, approx_kl=0.5)
    assert scrape(run)["rl_episode_return"] == 20.0
    run.step(4, episode_return=math.nan, approx_kl=0.5)
    seen = scrape(run)
    assert math.isnan(seen["rl_episode_return"])
    assert seen['rl_nonfinite_total{signal="episode_return"}'] == 1


@pytest.mark.parametrize("folded", [False, True])
def test_a_return_that_was_finite_from_the_start(attach: Attach, folded: bool) -> None:
    """Its first NaN is evidence, whether the finite ones have been folded by then or not."""
    run = attach()
    run.step(0, episode_return=20.0)
    if folded:
        scrape(run)
    run.step(1, episode_return=math.nan)
    assert scrape(run)['rl_nonfinite_total{signal="episode_return"}'] == 1


def test_minibatches(attach: Attach) -> None:
    """The step reports their mean, and their largest is shown; what the step is given itself stands."""
    run = attach()
    for kl in (0.0, 1.0, torch.tensor(5.0)):
        run.minibatch(approx_kl=kl, grad_norm=7.0)
    run.step(0, grad_norm=3.0)
    run.step(1, grad_norm=4.0)
    seen = scrape(run)
    assert seen["rl_approx_kl"] == 2.0
    assert seen["rl_approx_kl_minibatch_max"] == 5.0
    assert seen["rl_grad_norm"] == 4.0
    assert 'rl_approx_kl_run_min{steps="3"}' not in seen


def test_a_nan_minibatch(attach: Attach) -> None:
    """One NaN among the minibatches makes the update non-finite, and does not hide the largest."""
    run = attach()
    for loss in (1.0, math.nan, 3.0):
        run.minibatch(value_loss=loss)
    run.step(0)
    seen = scrape(run)
    assert math.isnan(seen["rl_value_loss"])
    assert seen["rl_value_loss_minibatch_max"] == 3.0
    assert seen['rl_nonfinite_total{signal="value_loss"}'] == 1


def test_alternating_signals(attach: Attach) -> None:
    """A signal's steps are its own reports, also over many folds of steps that report different signals."""
    run = attach()
    for step in range(5000):
        extra = {"evaluation_return": float(step)} if step % 3 == 0 else {}
        run.step(step, approx_kl=float(step), **extra)
    seen = scrape(run)
    assert seen["rl_updates_total"] == 5000
    assert seen['rl_approx_kl_run_min{steps="10"}'] == 4990.0
    assert seen['rl_evaluation_return_run_min{steps="3"}'] == 4998.0 - 6


def test_durations_and_phases(attach: Attach, clock: Clock) -> None:
    """A declared phase is no part of a step's duration nor of the time since the last step."""
    run = attach(clock=clock)
    clock.advance(7)
    assert scrape(run)["rl_seconds_since_step"] == 7
    for step in range(5):
        clock.advance(2)
        run.step(step)
    with run.phase("evaluate", expect_seconds=600):
        clock.advance(500)
        seen = scrape(run)
        assert seen['rl_phase{phase="evaluate"}'] == 1
        assert (seen["rl_phase_seconds"], seen["rl_phase_expected_seconds"]) == (500, 600)
        assert seen["rl_seconds_since_step"] == 0
    clock.advance(2)
    assert scrape(run)["rl_seconds_since_step"] == 2
    run.step(5)
    seen = scrape(run)
    assert seen['rl_phase{phase="evaluate"}'] == 0
    assert (seen["rl_phase_seconds"], seen["rl_phase_expected_seconds"]) == (0, 0)
    assert seen["rl_step_duration_seconds_sum"] == 10
    assert seen["rl_step_duration_seconds_count"] == 5
    assert seen["rl_step_duration_usual_seconds"] == 2


def test_phases_within_phases(attach: Attach, clock: Clock) -> None:
    """The inner one is the present one, both are entered, and the pause is counted once."""
    run = attach(clock=clock)
    run.step(0)
    with run.phase("outer"):
        clock.advance(10)
        with run.phase("inner"):
            clock.advance(5)
            seen = scrape(run)
            assert (seen['rl_phase{phase="outer"}'], seen['rl_phase{phase="inner"}']) == (1, 1)
            assert seen["rl_phase_seconds"] == 5
        clock.advance(10)
    clock.advance(1)
    assert scrape(run)["rl_seconds_since_step"] == 1


def test_steps_within_a_phase(attach: Attach, clock: Clock) -> None:
    """Steps reported inside a phase (a warm-up) keep the time since the last step small."""
    run = attach(clock=clock)
    with run.phase("warm-up"):
        for step in range(3):
            clock.advance(10)
            run.step(step)
    assert scrape(run)["rl_seconds_since_step"] == 0


def test_an_exception_in_a_phase(attach: Attach) -> None:
    """It ends the phase and is the trainer's own."""
    run = attach()
    with pytest.raises(KeyError), run.phase("evaluate"):
        raise KeyError
    assert scrape(run)['rl_phase{phase="evaluate"}'] == 0


def test_after_close(attach: Attach) -> None:
    """A closed run can still be called: nothing happens."""
    run = attach()
    run.close()
    run.step(0, approx_kl=1.0)
    run.minibatch(approx_kl=1.0)
    with run.phase("evaluate"):
        pass
    run.complete()
    assert not run.should_stop
    assert not any(run.errors.counts.values())


def test_other_ranks_are_silent() -> None:
    """Without a rank of its own choice, a process of another rank has no exporter, and everything else works."""
    run = fusewire.attach(environ={"RANK": "2", "WORLD_SIZE": "4"}, handle_signals=False)
    run.step(0, approx_kl=1.0)
    run.request_stop()
    assert run.port is None
    assert run.should_stop
    run.close()
