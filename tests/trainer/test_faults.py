"""Faults: how they are written, when they strike, and that each really perturbs the training."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from fusewire.snapshots.layout import STABLE_LINK, snapshot_name
from fusewire_trainer.errors import SettingError
from fusewire_trainer.faults import FAULTS, Faults, FaultSpec, Trigger


def planned(text: str, run_dir: Path | None = None, attempt: int = 0, *, every: bool = False) -> Faults:
    return Faults(
        [FaultSpec.parse(text)], run_dir=run_dir, attempt=attempt, every_attempt=every, say=lambda _: None
    )


def spiked(faults: Faults, step: int) -> bool:
    """Whether an lr-spike is at work in the update after ``step``."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    faults.begin(step)
    with faults.learning_rate(optimizer):
        rate = optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[0]["lr"] == 1.0
    return bool(rate != 1.0)


def test_the_whole_form_is_read() -> None:
    """NAME:STRENGTH:UPDATES@WHEN."""
    assert FaultSpec.parse("lr-spike:50:3@promoted") == FaultSpec(
        name="lr-spike", trigger=Trigger(step=0, promoted=True), strength=50.0, updates=3
    )
    assert FaultSpec.parse("hang@7") == FaultSpec(name="hang", trigger=Trigger(step=7))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hang",
        "hang@",
        "hang@soon",
        "nonsense@3",
        "hang:x@3",
        "hang:1:2:3@4",
        "hang@promoted:",
        "hang@later:3",
        "lr-spike:nan@3",
        "lr-spike:0@3",
        "lr-spike:-2@3",
        "lr-spike:inf@3",
        "lr-spike:2:0@3",
        "hang@-1",
        "hang@promoted:-1",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    """One line that repeats what was given."""
    with pytest.raises(SettingError, match=f"--fault {text}: ") as caught:
        FaultSpec.parse(text)
    assert "\n" not in str(caught.value)


def test_every_fault_says_what_it_does() -> None:
    """Each fault has a description of its own that a person sees when it strikes."""
    assert len({cls.__doc__ for cls in FAULTS.values()}) == len(FAULTS)
    assert all(cls.__doc__ for cls in FAULTS.values())


def test_it_lasts_for_its_updates() -> None:
    """It starts at its update and is over after its number of updates."""
    faults = planned("lr-spike:10:3@5")
    assert [step for step in range(12) if spiked(faults, step)] == [5, 6, 7]


def test_it_strikes_in_one_attempt_only(tmp_path: Path) -> None:
    """Another attempt that passes the same update is left alone, and the first one is remembered."""
    assert spiked(planned("lr-spike@5", tmp_path, 0), 5)
    assert not spiked(planned("lr-spike@5", tmp_path, 1), 5)
    memory = json.loads((tmp_path / "fault-lr-spike.json").read_text())
    assert (memory["attempt"], memory["step"]) == (0, 5)


def test_two_faults_of_one_name_strike_each(tmp_path: Path) -> None:
    """Each is remembered by itself, across attempts too."""
    for attempt, struck in ((0, [5, 8]), (1, [])):
        faults = Faults(
            [FaultSpec.parse(f"lr-spike:10:1@{step}") for step in (5, 8)],
            run_dir=tmp_path,
            attempt=attempt,
            say=str,
        )
        assert [step for step in range(12) if spiked(faults, step)] == struck


def test_it_strikes_in_every_attempt_when_asked_to(tmp_path: Path) -> None:
    """A persistent fault comes back after each restart."""
    for attempt in range(3):
        assert spiked(planned("lr-spike@5", tmp_path, attempt, every=True), 5)
        assert json.loads((tmp_path / "fault-lr-spike.json").read_text())["attempt"] == attempt


def test_an_attempt_that_starts_beyond_its_update_is_hit_too() -> None:
    """A resumed attempt has passed the update in question: it is hit at once."""
    assert spiked(planned("lr-spike@5"), 9)


def test_promotion_arms_it(tmp_path: Path) -> None:
    """``promoted`` waits for the link to a stable snapshot."""
    early, late = planned("lr-spike@promoted", tmp_path), planned("lr-spike@promoted:60", tmp_path, every=True)
    link = tmp_path / STABLE_LINK
    assert not spiked(early, 0)
    link.symlink_to(f"snapshots/{snapshot_name(40, 0)}")
    assert spiked(early, 1)
    assert not spiked(late, 1)
    link.unlink()
    link.symlink_to(f"snapshots/{snapshot_name(60, 0)}")
    assert spiked(late, 2)


def test_promotion_never_comes_without_a_run_directory() -> None:
    """A standalone run has no promotions."""
    assert not spiked(planned("lr-spike@promoted"), 1000)


def test_nan_gradient_ruins_every_parameter() -> None:
    """One NaN in one gradient is in all parameters after clipping and the step."""
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    faults = planned("nan-gradient@0")
    faults.begin(0)
    model(torch.ones(3)).sum().backward()
    faults.gradients(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    assert all(bool(p.isnan().all()) for p in model.parameters())


def test_an_overflow_stops_learning_without_harm_to_a_parameter() -> None:
    """The norm is infinite, and clipping by it leaves nothing to step along."""
    model = nn.Linear(3, 2)
    before = [parameter.clone() for parameter in model.parameters()]
    faults = planned("gradient-overflow@0")
    faults.begin(0)
    model(torch.ones(3)).sum().backward()
    faults.gradients(model)
    assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) == math.inf
    SGD(model.parameters(), lr=0.1).step()
    assert all(bool((now == then).all()) for now, then in zip(model.parameters(), before, strict=True))


def test_rewards_and_entropy_bonus_are_perturbed_where_they_are_learnt_from() -> None:
    """The hooks change what the update sees and leave everything as it is when no fault is active."""
    rewards = torch.ones(2)
    for text, learnt, bonus in (
        ("reward-collapse@0", [-1.0, -1.0], 0.01),
        ("critic-explosion:1000@0", [1000.0, 1000.0], 0.01),
        ("entropy-collapse:1@0", [1.0, 1.0], -0.99),
        ("entropy-collapse:1@1", [1.0, 1.0], 0.01),
    ):
        faults = planned(text)
        faults.begin(0)
        assert faults.rewards(rewards).tolist() == learnt
        assert math.isclose(faults.entropy_coefficient(0.01), bonus)


def test_memory_leak_is_real_and_bounded() -> None:
    """It keeps so many MiB an update and stops after its number of updates."""
    faults = planned("memory-leak:1:3@0")
    for step in range(10):
        faults.begin(step)
    kept = faults._planned[0].fault._kept  # type: ignore[attr-defined]
    assert [tensor.nbytes for tensor in kept] == [2**20] * 3


def run_python(code: str) -> subprocess.Popen[str]:
    """A child that injects a fault and then says so."""
    head = "from fusewire_trainer.faults import *\nf = lambda t: Faults([FaultSpec.parse(t)], say=lambda _: None)\n"
    return subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True)


def test_crash_is_a_death_by_sigkill() -> None:
    """Nothing of the process runs after it."""
    with run_python("f('crash@0').begin(0); print('alive')") as child:
        assert child.communicate(timeout=100)[0] == ""
        assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["hang", "ignore-sigterm"])
def test_sigterm_does_not_end_it(name: str) -> None:
    """A hung trainer whose handler only sets a flag, and one that ignores SIGTERM, live until SIGKILL."""
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\nprint('ready', flush=True)\n"
        f"f('{name}@0').begin(0)\nprint('armed', flush=True)\ntime.sleep(60)"
    )
    with run_python(code) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if name == "ignore-sigterm":
            assert child.stdout.readline() == "armed\n"
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        child.kill()


def test_grandchildren_outlive_their_parent() -> None:
    """They live on in sessions of their own, whatever becomes of the trainer."""
    marker = f"fusewire-test-{os.getpid()}"
    code = f"import os; os.environ['MARKER'] = {marker!r}; f('grandchildren:2@0').begin(0)"
    with run_python(code) as child:
        assert child.wait(100) == 0
    found: list[int] = []
    deadline = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < deadline:
        found = [
            int(proc.name) for proc in Path("/proc").iterdir() if proc.name.isdigit() and _environ(proc, marker)
        ]
        time.sleep(0.05)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    assert len(found) == 2


def _environ(proc: Path, marker: str) -> bool:
    try:
        return f"MARKER={marker}".encode() in (proc / "environ").read_bytes()
    except OSError:
        return False
