"""Stopping, resuming, and what the supervisor asks for, on the real exporter and real snapshots."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

import fusewire
from fusewire import AttemptParameters, Run
from fusewire_trainer.errors import SettingError
from fusewire_trainer.faults import Faults, FaultSpec
from fusewire_trainer.ppo import PPOConfig, train
from fusewire_trainer.ppo.learner import Learner

from .environments import register

Attach = Callable[..., Run]


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Attach]:
    """Attach attempts of one run; each is closed in the end."""
    runs: list[Run] = []

    def attach_one(registry: CollectorRegistry | None = None, **parameters: Any) -> Run:
        given = {"run_dir": str(tmp_path), "snapshot_every_steps": 4, "seed": 5} | parameters
        environment = AttemptParameters(**given).environment()
        run = fusewire.attach(environ=environment, registry=registry, handle_signals=False)
        runs.append(run)
        return run

    yield attach_one
    for run in runs:
        run.close()


def config(**settings: Any) -> PPOConfig:
    """A few seconds' worth of CartPole."""
    given = {
        "updates": 8,
        "envs": 2,
        "steps": 16,
        "minibatches": 2,
        "hidden": 8,
        "device": "cpu",
        "return_window": 4,
    }
    return PPOConfig(**(given | settings))


def disturb() -> None:
    """Leave every generator where no trainer would expect it."""
    torch.manual_seed(99)
    np.random.seed(98)
    random.seed(97)


def assert_bit_equal(one: Learner, other: Learner) -> None:
    for (name, a), (_, b) in zip(one.model.named_parameters(), other.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_resumed_equals_undisturbed(attach: Attach, tmp_path: Path, env: str, schedule: str) -> None:
    """N updates, a new process's state, and N more give bit for bit the parameters of 2N updates."""
    settings = {"env": env, "schedule": schedule}
    run = attach(attempt=0)
    whole, whole_player = train(config(**settings), run, Faults())
    run.close()

    disturb()
    snapshot = tmp_path / "snapshots" / "step-000000000004-a000"
    resumed, player = train(config(**settings), attach(attempt=1, resume_from=str(snapshot)), Faults())

    assert_bit_equal(whole, resumed)
    assert list(player.recent) == list(whole_player.recent)
    assert (player.episodes, player.env_steps) == (whole_player.episodes, whole_player.env_steps)
    assert player.env_steps == 8 * 2 * 16


def test_reseed_takes_another_path(attach: Attach, tmp_path: Path) -> None:
    """With rng=reseed the stored generators count for nothing: the seed alone decides how it goes on."""
    train(config(), attach(attempt=0), Faults())
    snapshot = str(tmp_path / "snapshots" / "step-000000000004-a000")
    ways = [
        train(config(), attach(attempt=n, resume_from=snapshot, rng=rng, seed=seed), Faults())[0]
        for n, (rng, seed) in enumerate((("reseed", 6), ("reseed", 6), ("reseed", 7), ("restore", 5)), start=1)
    ]
    assert_bit_equal(ways[0], ways[1])
    first = [next(way.model.parameters()) for way in ways]
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[3])


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_scale_wins_over_restored_state(attach: Attach, tmp_path: Path, schedule: str) -> None:
    """The first reported rate after a resume is the scheduled one times the scale, and stays so."""
    settings = {"schedule": schedule, "learning_rate": 0.01}
    train(config(**settings), attach(attempt=0), Faults())
    snapshot = str(tmp_path / "snapshots" / "step-000000000004-a000")
    resumed = attach(attempt=1, resume_from=snapshot, lr_scale=0.25, snapshot_every_steps=2)
    rates = reported(resumed, "learning_rate")
    train(config(**settings), resumed, Faults())
    falling = [0.01 * (1 - step / 8) for step in range(4, 8)]
    assert rates == pytest.approx([0.25 * rate for rate in (falling if schedule == "linear" else [0.01] * 4)])

    again = attach(attempt=2, lr_scale=0.5, resume_from=str(tmp_path / "snapshots" / "step-000000000006-a001"))
    rates = reported(again, "learning_rate")
    train(config(**settings), again, Faults())
    assert rates[0] == pytest.approx(0.5 * (falling[2] if schedule == "linear" else 0.01))


def test_a_snapshot_of_another_network_is_refused(attach: Attach, tmp_path: Path) -> None:
    """One line names the snapshot and the flags, instead of a list of shapes."""
    train(config(), attach(), Faults())
    snapshot = str(tmp_path / "snapshots" / "step-000000000004-a000")
    with pytest.raises(SettingError, match=f"{snapshot}: does not fit; .*--hidden") as caught:
        train(config(hidden=16), attach(attempt=1, resume_from=snapshot), Faults())
    assert "\n" not in str(caught.value)


def reported(run: Run, signal_name: str) -> list[float]:
    """Values of one signal, as ``run.step`` gets them."""
    values: list[float] = []
    step = run.step

    def listen(number: int, /, **given: Any) -> None:
        values.append(float(given[signal_name]) if signal_name in given else float("nan"))
        step(number, **given)

    run.step = listen  # type: ignore[method-assign]
    return values


def test_a_spike_is_over_after_its_updates(attach: Attach) -> None:
    """The learning rate of a spike is really used and reported, and the schedule goes on as if it had not been."""
    run = attach()
    rates = reported(run, "learning_rate")
    spike = Faults([FaultSpec.parse("lr-spike:100:2@3")], say=lambda _: None)
    train(config(learning_rate=1e-4), run, spike)
    assert rates == pytest.approx([1e-4] * 3 + [1e-2] * 2 + [1e-4] * 3)


def test_every_signal_of_the_catalogue_that_ppo_has(attach: Attach) -> None:
    """They are all scraped, with the evaluation's return from the first evaluation on."""
    values = CollectorRegistry()
    train(config(evaluate_every=4, evaluation_episodes=1), attach(registry=values), Faults())
    for name in (
        "approx_kl", "policy_entropy", "value_loss", "policy_loss", "episode_return", "episode_length",
        "evaluation_return", "grad_norm", "learning_rate", "clip_fraction", "explained_variance", "advantage_std",
        "reward_std",
    ):  # fmt: skip
        assert values.get_sample_value(f"rl_{name}") is not None, name
    assert values.get_sample_value("rl_step") == 8
    assert values.get_sample_value("rl_env_steps_total") == 8 * 2 * 16


def test_an_evaluation_changes_nothing(attach: Attach) -> None:
    """Training with evaluations ends in the same parameters as training without."""
    plain, _ = train(config(), attach(), Faults())
    watched, _ = train(config(evaluate_every=2), attach(attempt=1), Faults())
    assert_bit_equal(plain, watched)


def test_complete_at_the_target(attach: Attach, tmp_path: Path) -> None:
    """Training ends on purpose as soon as the mean return of K finished episodes reaches the target."""
    register()
    run = attach()
    _, player = train(config(env="Terminating-v0", target_return=3.0, updates=1000), run, Faults())
    assert player.episodes >= 4
    assert json.loads((tmp_path / "attempts" / "000" / "completed.json").read_text())["step"] == 1


def test_a_stop_is_not_a_completion(attach: Attach, tmp_path: Path) -> None:
    """A run that was asked to stop ends at the next update and does not say that it has finished."""
    run = attach()
    run.request_stop()
    _, player = train(config(), run, Faults())
    assert player.env_steps == 0
    assert not (tmp_path / "attempts" / "000" / "completed.json").exists()


def test_ppo_learns_box_actions(attach: Attach) -> None:
    """On a task whose best actions are known the policy's mean gets near them."""
    register()
    settings = {"env": "Reach-v0", "updates": 60, "steps": 64, "learning_rate": 1e-2, "entropy_coefficient": 0.0}
    learner, _ = train(config(**settings), attach(snapshot_every_steps=0), Faults())
    mean = learner.model.actor(torch.tensor([0.0, 0, 0, 0, 1, 0])).detach()
    assert torch.allclose(mean, torch.tensor([0.5, -0.5]), atol=0.25), mean


def ppo(*arguments: str, run_dir: Path | None = None, **popen: Any) -> subprocess.Popen[str]:
    """The command line, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEWIRE_")}
    where = ("--run-dir", str(run_dir)) if run_dir else ()
    return subprocess.Popen(
        [sys.executable, "-m", "fusewire_trainer.ppo", "--envs", "2", "--steps", "16", *where, *arguments],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        **popen,
    )


def wait_for_step(run_dir: Path, child: subprocess.Popen[str]) -> None:
    """Return once the child has made its first snapshot."""
    while not list(run_dir.glob("snapshots/step-*")):
        assert child.poll() is None
        with_timeout(child, 0.05)


def with_timeout(child: subprocess.Popen[str], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def test_sigterm_ends_the_loop_with_143(tmp_path: Path) -> None:
    """SIGTERM sets a flag; the process ends in order with the code of a stop, also within a long pace."""
    with ppo("--updates", "100000", "--snapshot-every", "1", "--pace-seconds", "600", run_dir=tmp_path) as child:
        wait_for_step(tmp_path, child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(100) == 143


@pytest.mark.parametrize("updates", [3, 4])
def test_standalone_run_completes(tmp_path: Path, updates: int) -> None:
    """Without a supervisor the flags decide; the exit code of a finished training is 0, its last state is kept."""
    with ppo("--updates", str(updates), "--snapshot-every", "2", "--seed", "3", run_dir=tmp_path) as child:
        assert child.wait(100) == 0
    assert sorted(path.name for path in tmp_path.glob("snapshots/*")) == [
        "step-000000000002-a000",
        f"step-{updates:012d}-a000",
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--env", "Nope-v0"], "fusewire ppo: --env Nope-v0: "),
        (["--updates", "0"], "fusewire ppo: --updates 0: must be at least 1"),
        (["--fault", "hang"], "fusewire ppo: --fault hang: write "),
        (["--resume-from", "/nowhere"], "fusewire ppo: /nowhere/manifest.json: missing"),
    ],
)
def test_bad_settings_are_one_line(arguments: list[str], line: str) -> None:
    """Exit code 2, and the last line names the flag or file."""
    with ppo(*arguments) as child:
        _, errors = child.communicate(timeout=100)
        assert child.returncode == 2
    assert errors.strip().splitlines()[-1].startswith(line)
