"""What a run in observe mode tells on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import AlertReported

from .site import call, configured, served, until


async def test_what_would_have_tripped_is_shown_and_logged_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``status`` names the alerts, with and without a webhook; ``log`` tells each once."""
    config = configured(tmp_path)
    config = replace(config, runs={"cartpole": replace(config.runs["cartpole"], mode="observe")})
    actuator = FakeActuator()

    async def say(*words: str) -> str:
        assert await call(*words, "--runs", config.runs_dir) == 0
        return capsys.readouterr().out

    async with served(config, actuator) as service:
        assert "CLOSED (observing) " in await say("status")
        for name in ("KLSpike", "ReturnCollapse", "KLSpike"):
            alert = AlertReported(alertname=name, status="firing", attempt=0, action="trip")
            await service.engine.submit("cartpole", alert)
        await until(lambda: not service.engine.state("cartpole").would_have)
        serving = await say("status", "cartpole")
    told = "cartpole: observing; would have tripped: KLSpike 1×, ReturnCollapse 1×\n"
    for said in (serving, await say("status")):
        assert "CLOSED (observing) " in said
        assert " 0 (2 observed) " in said
        assert told in said
    log = await say("log", "cartpole")
    assert log.count("would have stopped attempt 0 and rolled back to the start: KLSpike") == 1
    assert log.count("would have stopped attempt 0 and rolled back to the start: ReturnCollapse") == 1
    assert (await say("log", "cartpole", "--all")).count("observing: would have stopped attempt 0") == 2
    assert actuator.stops == []
