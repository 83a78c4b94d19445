"""Every query of the dashboards, asked of the Prometheus of a demonstration that is running."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

import nvml_fake
from fusewire_webhook.demo.driver import Watcher
from fusewire_webhook.demo.guarded import GuardedRun
from fusewire_webhook.demo.scenarios import SCENARIOS, Pace, config
from grafana.verify import FOLDER, Answer, empty_panels, verify

pytestmark = [pytest.mark.e2e, pytest.mark.stack, pytest.mark.timeout(400)]

GIB = 1 << 30
CANNOT_BE = ("no CUDA device in torch", "no GPU (gpu_process_memory_bytes)", "no cgroup with memory accounting")
"""What even this demonstration lacks: torch has no GPU here, and the cgroup may have no limit."""


async def test_no_panel_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was tripped and recovered, on a machine with a GPU, has data for every query of every panel."""
    control = nvml_fake.Control(tmp_path / "gpus")
    control.write(gpus=[nvml_fake.Gpu(used=5 * GIB, utilization=60, temperature=61, energy=1_000_000)])
    library = nvml_fake.build(tmp_path)
    for name, value in nvml_fake.environment(library, control).items():
        monkeypatch.setitem(os.environ, name, value)
    scenario = SCENARIOS["lr-spike"]
    async with GuardedRun(tmp_path / "demo", config(scenario, Pace())) as guarded:
        watcher = Watcher(guarded, scenario)
        async with asyncio.timeout(270):
            while (done := await watcher.look()) is None:
                assert guarded.exit_code is None, guarded.last_words()
                await asyncio.sleep(0.25)
        assert done, guarded.last_words()
        found = re.search(r"Prometheus (http://[^\s,]+)", guarded.log.read_text())
        assert found is not None
        answers = await asyncio.to_thread(verify, FOLDER, found[1], minutes=4)
    assert [str(answer) for answer in answers if not answer.ok] == []
    assert {
        name: why for name, why in empty_panels(figures(answers)).items() if not why.startswith(CANNOT_BE)
    } == {}
    limits = [answer for answer in answers if re.search("fusewire:.+:limit", answer.expr)]
    assert len(limits) == 7
    assert [str(answer) for answer in limits if not answer.series] == []
    assert len(answers) > 100


def figures(answers: list[Answer]) -> list[Answer]:
    """Without annotations: what never happened leaves no mark."""
    return [answer for answer in answers if not answer.panel.startswith("annotation ")]
