"""The contract of all actuators, and what is the docker actuator's own, on a small engine with real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.docker import DockerActuator
from fusewire_webhook.actuators.docker_api import EngineError
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import DockerConfig

from .contract import soon
from .docker_programs import DockerContract
from .engine_double import IMAGE, EngineDouble
from .programs import appears, shell

DOCKER = DockerConfig(image=IMAGE, network="trainers", volumes=("runs:/runs",))


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    double = EngineDouble()
    yield double
    await double.close()


@pytest.fixture
async def docker(engine: EngineDouble, short_path: Path) -> DockerConfig:
    return dataclasses.replace(DOCKER, endpoint=await engine.listen(short_path / "docker.sock"))


@pytest.fixture
async def actuator(docker: DockerConfig) -> AsyncIterator[DockerActuator]:
    one = DockerActuator({"r": docker, "s": docker}, kill_seconds=2.0)
    yield one
    await one.close()


class TestDockerActuator(DockerContract):
    """DockerActuator keeps the contract."""


def folder(tmp_path: Path, attempt: int = 0) -> Path:
    return tmp_path / "r" / "attempts" / f"{attempt:03d}"


async def test_a_container_bears_the_name_of_its_attempt(
    actuator: DockerActuator, engine: EngineDouble, tmp_path: Path
) -> None:
    """Containers are named fusewire-<run>-<attempt> and labelled, so that people find them."""
    await actuator.start(shell(tmp_path, "sleep 600", attempt=3))
    labels = engine.container("fusewire-r-3").body["Labels"]
    assert (labels["fusewire.run"], labels["fusewire.attempt"]) == ("r", "3")


async def test_output_and_exit_lie_in_the_run_directory(
    actuator: DockerActuator, engine: EngineDouble, tmp_path: Path
) -> None:
    """What an ended container wrote and how it ended outlive the container."""
    handle = await actuator.start(shell(tmp_path, "echo to stdout; echo to stderr >&2; exit 7"))
    before = await soon(actuator.wait(handle))
    engine.lose()
    assert await asyncio.to_thread((folder(tmp_path) / "output.log").read_text) == "to stdout\nto stderr\n"
    assert await actuator.status(handle) == before
    assert before.exit_code == 7


async def test_oom_kill(actuator: DockerActuator, engine: EngineDouble, tmp_path: Path) -> None:
    """A container that the kernel killed for its memory is told apart from other kills."""
    handle = await actuator.start(shell(tmp_path, "kill -KILL $$"))
    await soon(engine.container("fusewire-r-0").ended.wait())
    engine.container("fusewire-r-0").oom_killed = True
    status = await actuator.status(handle)
    assert (status.exit_code, status.reason) == (137, "oom_kill")


async def test_a_container_that_somebody_removed(
    actuator: DockerActuator, engine: EngineDouble, tmp_path: Path
) -> None:
    """An attempt whose container is gone has ended with an unknown code, and is not started a second time."""
    launch = shell(tmp_path, "exit 3")
    handle = await actuator.start(launch)
    await soon(engine.container("fusewire-r-0").ended.wait())
    engine.lose()
    status = await actuator.status(handle)
    assert (status.phase, status.exit_code) == ("exited", None)
    assert (await actuator.stop(handle, grace_seconds=0)).confirmed
    assert await actuator.start(launch) == handle
    assert not engine.containers


@pytest.mark.parametrize("last", ["POST /containers/create", "POST /containers/{id}/start"])
async def test_a_webhook_killed_in_the_middle_of_a_start(
    actuator: DockerActuator, docker: DockerConfig, engine: EngineDouble, tmp_path: Path, last: str
) -> None:
    """Whatever call was the last, the next webhook starts the attempt exactly once."""
    launch = shell(tmp_path, 'echo up >>"$T/up"; sleep 600')
    handle = await actuator.start(launch)
    await appears(tmp_path / "up")
    # As the kill leaves it: docker.json without the id; after a creation alone, nothing runs.
    mark = folder(tmp_path) / "docker.json"
    known = json.loads(await asyncio.to_thread(mark.read_text))
    await asyncio.to_thread(mark.write_text, json.dumps(known | {"id": ""}))
    if last.endswith("create"):
        await actuator.stop(handle, grace_seconds=0)
        await asyncio.to_thread((tmp_path / "up").unlink)
        for name in ("exit.json", "stop.json"):
            await asyncio.to_thread((folder(tmp_path) / name).unlink)
        container = engine.container("fusewire-r-0")
        container.status, container.process = "created", None
        container.ended.clear()
    successor = DockerActuator({"r": docker})
    found = await successor.find("r", 0, launch.run_dir)
    assert found == (None if last.endswith("create") else handle)
    assert await successor.start(launch) == handle
    assert await appears(tmp_path / "up") == "up\n"
    assert len(engine.containers) == 1
    await successor.close()


async def test_a_container_of_an_earlier_life(
    actuator: DockerActuator, engine: EngineDouble, tmp_path: Path
) -> None:
    """An ended container of the same name that this runs folder does not know makes way; one that runs does not."""
    await actuator.start(shell(tmp_path, "sleep 600"))
    old = engine.container("fusewire-r-0")
    elsewhere = tmp_path / "elsewhere"
    launch = shell(elsewhere, "sleep 600")
    with pytest.raises(ActuatorError, match="fusewire-r-0 runs that is not of"):
        await actuator.start(launch)
    assert await actuator.find("r", 0, launch.run_dir) is None
    assert old.process is not None
    old.process.kill()
    await soon(old.ended.wait())
    await actuator.start(launch)
    assert engine.container("fusewire-r-0") is not old


async def test_ended_containers_are_cleared_away(
    actuator: DockerActuator, engine: EngineDouble, tmp_path: Path
) -> None:
    """The next attempt's start removes the containers of earlier ones of its run, and of no other."""
    for attempt in (0, 1):
        await soon(actuator.wait(await actuator.start(shell(tmp_path, "exit 0", attempt=attempt))))
    other = Launch(run="s", attempt=0, argv=("true",), environment={}, run_dir=str(tmp_path / "s"))
    await soon(actuator.wait(await actuator.start(other)))
    await actuator.start(shell(tmp_path, "sleep 600", attempt=2))
    assert {one.name for one in engine.containers.values()} == {"fusewire-s-0", "fusewire-r-2"}


async def test_no_two_attempts_at_once(actuator: DockerActuator, engine: EngineDouble, tmp_path: Path) -> None:
    """While another attempt's container runs, none is started beside it."""
    await actuator.start(shell(tmp_path, "sleep 600"))
    with pytest.raises(ActuatorError, match="attempt 0 still runs in fusewire-r-0"):
        await actuator.start(shell(tmp_path, "sleep 600", attempt=1))
    assert len(engine.containers) == 1


async def test_what_cannot_be_stopped(actuator: DockerActuator, engine: EngineDouble, tmp_path: Path) -> None:
    """A container that survives SIGKILL is a stop that is not confirmed, within a bounded time."""
    handle = await actuator.start(shell(tmp_path, "sleep 600"))
    engine.unstoppable = True
    gone = await soon(actuator.stop(handle, grace_seconds=0.1))
    assert not gone.confirmed
    assert gone.reason == "container fusewire-r-0 is running after SIGKILL"
    engine.unstoppable = False
    assert (await soon(actuator.stop(handle, grace_seconds=0.1))).confirmed


async def test_an_image_that_is_not_there(docker: DockerConfig, tmp_path: Path) -> None:
    """A missing image is said with its remedy, and counts as never started."""
    actuator = DockerActuator({"r": dataclasses.replace(docker, image="nobody/has:it")})
    with pytest.raises(ActuatorError, match="build or pull nobody/has:it on the Docker host first"):
        await actuator.start(shell(tmp_path, "true"))
    assert await actuator.find("r", 0, str(tmp_path / "r")) is None
    await actuator.close()


async def test_an_engine_that_is_away(actuator: DockerActuator, engine: EngineDouble, tmp_path: Path) -> None:
    """While the engine does not answer nothing is said about an attempt, and everything else waits for it."""
    handle = await actuator.start(shell(tmp_path, "sleep 600"))
    engine.away = True
    with pytest.raises(EngineError, match="503 Service Unavailable"):
        await actuator.status(handle)
    waiting = asyncio.create_task(actuator.wait(handle))
    stopping = asyncio.create_task(actuator.stop(handle, grace_seconds=30))
    other = Launch(run="s", attempt=0, argv=("sleep", "600"), environment={}, run_dir=str(tmp_path / "s"))
    starting = asyncio.create_task(actuator.start(other))
    await asyncio.sleep(0.5)
    assert not stopping.done()
    assert not starting.done()
    engine.away = False
    assert (await soon(stopping)).confirmed
    assert (await soon(waiting)).exit_code == 143
    assert (await actuator.status(await soon(starting))).phase == "running"


async def test_a_newer_engine(tmp_path: Path, short_path: Path) -> None:
    """A newer engine is spoken to in the newest version that is known here."""
    newer = EngineDouble(newest="1.99", spoken="1.51")
    actuator = DockerActuator(
        {"r": dataclasses.replace(DOCKER, endpoint=await newer.listen(short_path / "newer.sock"))}
    )
    handle = await actuator.start(shell(tmp_path, "exit 3"))
    assert (await soon(actuator.wait(handle))).exit_code == 3
    await actuator.close()
    await newer.close()


async def test_something_else_than_an_engine(tmp_path: Path, short_path: Path) -> None:
    """A server that is no Docker engine is told apart, in one line."""
    other = EngineDouble(newest="")
    endpoint = await other.listen(short_path / "other.sock")
    actuator = DockerActuator({"r": dataclasses.replace(DOCKER, endpoint=endpoint)}, away_seconds=0.1)
    with pytest.raises(ActuatorError, match="something else than a Docker engine answers"):
        await actuator.start(shell(tmp_path, "true"))
    await actuator.close()
    await other.close()


async def test_an_endpoint_where_nobody_listens(tmp_path: Path, short_path: Path) -> None:
    """An engine that cannot be reached is named in one line, and nothing counts as started."""
    actuator = DockerActuator(
        {"r": dataclasses.replace(DOCKER, endpoint=f"unix://{short_path}/none.sock")}, away_seconds=0.1
    )
    with pytest.raises(ActuatorError, match=r"the Docker engine at unix://.*/none\.sock does not answer"):
        await actuator.start(shell(tmp_path, "true"))
    await actuator.close()
