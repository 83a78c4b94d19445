"""A second Ctrl-C: whoever presses twice waits for nothing, and loses nothing by it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from fusewire_webhook.actuators import Gone, Handle
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.cli import guarding
from fusewire_webhook.cli.guarding import Interrupts, stop
from fusewire_webhook.errors import CommandError

from .process_site import LEAVES, STAYS, Site, site
from .site import configured, served, until

__all__ = ["site"]

PATIENT_STOP = "{grace_seconds: 600, kill_seconds: 600, gpu_release_seconds: 1}"


async def test_it_kills_at_once_and_is_journaled_as_any_other_end(site: Site) -> None:
    """A trainer that ignores SIGTERM is gone and journaled, without a traceback; the same command trains on."""
    site.configure(site.trainer(STAYS), stop=PATIENT_STOP)
    process = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    await process.stdout.readuntil(b"(again: kill them at once)")
    process.send_signal(signal.SIGINT)
    code, out, error = await site.end(process)
    assert code == 130
    assert site.left() == []
    assert "Traceback" not in out + error
    assert "toy: attempt 0 is gone" in out
    assert "the same command goes on" in out
    site.configure(site.trainer(LEAVES), stop=PATIENT_STOP)
    again = await site.start("run")
    await until(lambda: len(site.pids()) == 2)
    again.send_signal(signal.SIGINT)
    code, out, _ = await site.end(again)
    assert (code, "attempt 1 runs" in out) == (130, True)


class Undying(FakeActuator):
    """Nothing that is done to its processes ends."""

    async def stop(self, handle: Handle, *, grace_seconds: float, at_once: bool = False) -> Gone:
        del handle, grace_seconds, at_once
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_trainer_that_does_not_die_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second signal ends the wait within its bound; what is left is named, and is for the next start to end."""
    monkeypatch.setattr(guarding, "HURRIED_SECONDS", 0.2)
    config, said = configured(tmp_path, "a"), list[str]()
    async with served(config, Undying()) as service:
        taken, began = Interrupts(), time.monotonic()
        taken.take(signal.SIGINT)
        ending = asyncio.create_task(stop(service, config, taken, said.append))
        await asyncio.sleep(0.2)
        assert not ending.done()
        taken.take(signal.SIGINT)
        await asyncio.wait_for(ending, 20)
        assert time.monotonic() - began < 20
        assert said == ["stopping a without a journal entry"]
        with pytest.raises(CommandError, match="is ending"):  # what the gate meets that is in the middle of a round
            await service.engine.promote("a", "step-000000000001-a000", by="gate", evidence={}, baselines={})
