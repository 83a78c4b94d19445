"""What ``fusewire run`` finds of a run that was completed before."""

from __future__ import annotations

import shlex
from pathlib import Path

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import SnapshotJudged, SnapshotSeen
from fusewire_webhook.cli.completed import completed
from fusewire_webhook.settings.config import Config
from tests.snapshots.support import write

from .site import call, configured, served, until


async def ended(config: Config, actuator: FakeActuator) -> None:
    """Leave a completed run behind, with nobody serving."""
    async with served(config, actuator) as service:
        actuator.exit("cartpole", 0, 0)
        assert (await service.engine.wait_finished("cartpole")).state == "completed"


async def test_only_a_completed_run_is_told_of(tmp_path: Path) -> None:
    """A folder that was never used, a run that is not completed, and one that was reopened are started."""
    config = configured(tmp_path)
    assert completed(config) == {}
    actuator = FakeActuator()
    async with served(config, actuator):
        pass
    assert completed(config) == {}
    await ended(config, actuator)
    assert completed(config)["cartpole"].words.startswith("cartpole: COMPLETED before, on ")
    assert await call("reopen", "cartpole", "--why", "more", "--runs", config.runs_dir) == 0
    assert completed(config) == {}
    async with served(config, actuator) as service:
        await until(lambda: actuator.alive("cartpole") == [1])
        assert service.engine.view("cartpole").state == "closed"


async def test_a_verdict_that_can_still_come_is_waited_for(tmp_path: Path) -> None:
    """A last snapshot that nobody has judged is left to do; one that waits for nothing or was overtaken is not."""
    config = configured(tmp_path)
    actuator = FakeActuator()
    await ended(config, actuator)
    assert not completed(config)["cartpole"].left
    run_dir = Path(config.runs_dir) / "cartpole"
    name = write(run_dir, 7)
    assert completed(config)["cartpole"].left
    async with served(config, actuator) as service:
        await service.engine.submit("cartpole", SnapshotSeen(name=name, step=7, attempt=0))
        judged = SnapshotJudged(
            name=name, step=7, attempt=0, answer="inconclusive", reasons=("values: kl was not finite",), final=True
        )
        await service.engine.submit("cartpole", judged)
    found = completed(config)["cartpole"]
    assert not found.left
    assert f"{name} is not stable: values: kl was not finite" in found.words
    (hint,) = (line for line in found.words.splitlines() if f"to go on from {name}, first: " in line)
    assert await call(*shlex.split(hint.partition(": fusewire ")[2])) == 0
    assert completed(config)["cartpole"].left, "the promotion is to be done"
    async with served(config, actuator) as service:
        await until(lambda: bool(service.engine.view("cartpole").promoted))
    write(run_dir, 5)
    assert not completed(config)["cartpole"].left


async def test_what_is_promoted_before_a_reopening_is_gone_on_from(tmp_path: Path) -> None:
    """Both are journaled while nobody serves: the promotion is done first, though nobody knows it to be clean."""
    config = configured(tmp_path)
    actuator = FakeActuator()
    await ended(config, actuator)
    name = write(Path(config.runs_dir) / "cartpole", 7)
    for words in (("promote", "--snapshot", "7"), ("reopen",)):
        assert await call(*words, "cartpole", "--why", "so", "--runs", config.runs_dir) == 0
    async with served(config, actuator) as service:
        await until(lambda: actuator.alive("cartpole") == [1])
        view = service.engine.view("cartpole")
        assert (view.resumed_from, view.promoted[-1]["name"]) == (name, name)


async def test_of_several_runs_those_are_told_of_that_are_completed(tmp_path: Path) -> None:
    """The others start: nothing is skipped because of them."""
    config = configured(tmp_path, "cartpole", "acrobot")
    actuator = FakeActuator()
    async with served(config, actuator) as service:
        actuator.exit("cartpole", 0, 0)
        await service.engine.wait_finished("cartpole")
    assert list(completed(config)) == ["cartpole"]
