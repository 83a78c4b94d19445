"""Names are an API: the families of a sample run, their types and help texts, are held by a file.

Renaming a metric or a label breaks everybody's alert rules: when this test fails, CHANGELOG has a line to get.
After an intended change, take the text that the failing test prints.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import fusewire
from fusewire import metrics
from fusewire.signals import CATALOGUE

from .conftest import fetch

GOLDEN = Path(__file__).parent / "exposition.golden.txt"

MACHINE = ("gpu_", "torch_", "cgroup_", "process_")
"""What depends on the machine is not in the file."""


def sample_run(attach: Callable[..., fusewire.Run]) -> str:
    run = attach(signals=[fusewire.Signal(name="my_loss", help="A loss of mine.")])
    run.minibatch(approx_kl=0.5)
    for step in range(20):
        run.step(step, value_loss=1.0, episode_return=100.0, my_loss=2.0, env_steps=step, episodes=step)
    with run.phase("evaluate"):
        pass
    return fetch(run.port)[1]


def families(text: str) -> str:
    """HELP and TYPE lines, and each series without its value."""
    lines = []
    for line in text.splitlines():
        name = line.removeprefix("# HELP ").removeprefix("# TYPE ")
        if not name.startswith(MACHINE):
            lines.append(line if line.startswith("#") else line.rsplit(" ", 1)[0])
    return "\n".join(lines) + "\n"


def test_families(attach: Callable[..., fusewire.Run]) -> None:
    """Every name, type, help text and label of a sample run is what the file says."""
    seen = families(sample_run(attach))
    assert seen == GOLDEN.read_text(), f"{GOLDEN} should hold:\n{seen}"


def test_declared_names(attach: Callable[..., fusewire.Run]) -> None:
    """Every series of a run is one that fusewire.metrics declares: rules are checked against those."""
    known = metrics.sample_names([*CATALOGUE, fusewire.Signal(name="my_loss", help="Mine.")])
    seen = {
        sample.name for family in text_string_to_metric_families(sample_run(attach)) for sample in family.samples
    }
    assert seen <= known
