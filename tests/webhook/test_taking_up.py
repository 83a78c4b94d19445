"""How the webhook takes its runs up: all of them, or nothing is started."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.postmortem.background import PostmortemWriter
from fusewire_webhook.service import serving
from tests.breaker.doubles import SetEvidence

from .site import configured, served, until


async def test_one_run_that_cannot_be_taken_up_starts_none_of_the_others(tmp_path: Path) -> None:
    """A run whose folder cannot be made leaves no other's trainer started and unguarded."""
    config, actuator = configured(tmp_path, "a", "b", "c"), FakeActuator()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "b").write_text("a file")
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        engine = Engine(
            runs_dir=tmp_path / "runs", runs=config.runs, journal=journal, actuator=actuator, evidence=SetEvidence()
        )
        with pytest.raises(OSError, match="runs/b"):
            await engine.start()
        await asyncio.sleep(0.5)
        await engine.close(stop_runs=False)
    assert actuator.processes == {}


async def test_a_webhook_whose_runs_cannot_be_taken_up_starts_them_once_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins nothing that it could not end, and the next start goes on."""
    config, actuator = configured(tmp_path, "a", "b", "c"), FakeActuator()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "b").write_text("a file")
    with pytest.raises(OSError, match="runs/b"):
        async with served(config, actuator):
            pytest.fail("it serves")
    assert (actuator.processes, [one.message for one in caplog.records if one.levelname == "ERROR"]) == ({}, [])
    (tmp_path / "runs" / "b").unlink()
    async with served(config, actuator):
        assert {run for run, _ in actuator.processes} == {"a", "b", "c"}


async def test_no_trainer_starts_before_all_that_guards_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt, or a fault, that comes while the webhook starts finds no trainer that was started meanwhile."""
    missing = PostmortemWriter._missing

    def slow(*arguments: object) -> object:
        time.sleep(0.5)  # a busy disk
        return missing(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PostmortemWriter, "_missing", slow)
    actuator, stood = FakeActuator(), list[bool]()
    actuator.on_start = lambda _: stood.append(entering.done())
    async with contextlib.AsyncExitStack() as stack:
        serves = serving(configured(tmp_path), default_port=0, actuator=actuator)
        entering = asyncio.ensure_future(stack.enter_async_context(serves))
        await entering
        await until(lambda: bool(stood))
    assert stood == [True]
