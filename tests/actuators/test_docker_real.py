"""The contract of all actuators on a real Docker engine, and what only a kernel can show."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewire_webhook.actuators.docker import DockerActuator
from fusewire_webhook.settings.config import DockerConfig

from .contract import soon
from .docker_engine import SHELL_IMAGE, Engine, running_engine
from .docker_programs import DockerContract
from .programs import appears, shell

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def real() -> Iterator[Engine]:
    with running_engine() as engine:
        engine.import_shell()
        yield engine


@pytest.fixture
def docker(real: Engine, tmp_path: Path) -> Iterator[DockerConfig]:
    yield DockerConfig(
        image=SHELL_IMAGE, endpoint=real.endpoint, network="host", volumes=(f"{tmp_path}:{tmp_path}",)
    )
    real.clear()


class TestRealEngine(DockerContract):
    """DockerActuator keeps the contract with dockerd."""


async def test_grandchildren_end_with_the_container(docker: DockerConfig, tmp_path: Path) -> None:
    """Nothing that a trainer has started survives its stop, even what ignores SIGTERM in a session of its own."""
    actuator = DockerActuator({"r": docker})
    script = 'sh -c \'trap "" TERM; echo up >"$T/up"; while :; do echo x >>"$T/beats"; sleep 0.05; done\' & wait'
    handle = await actuator.start(shell(tmp_path, script))
    await appears(tmp_path / "up")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert gone.confirmed
    before = await asyncio.to_thread((tmp_path / "beats").read_text)
    await asyncio.sleep(0.3)
    assert await asyncio.to_thread((tmp_path / "beats").read_text) == before
    await actuator.close()


async def test_out_of_memory(docker: DockerConfig, tmp_path: Path) -> None:
    """A trainer beyond its memory limit is an OOM kill, and nothing else on the machine is touched."""
    actuator = DockerActuator({"r": dataclasses.replace(docker, memory_bytes=32 * 1024**2)})
    handle = await actuator.start(shell(tmp_path, "exec tail /dev/zero"))
    status = await soon(actuator.wait(handle))
    assert (status.exit_code, status.reason) == (137, "oom_kill")
    await actuator.close()


async def test_output_of_a_real_container(docker: DockerConfig, tmp_path: Path) -> None:
    """stdout and stderr lie in the attempt's folder once the container has ended."""
    actuator = DockerActuator({"r": docker})
    handle = await actuator.start(shell(tmp_path, "echo one; echo two >&2; exit 4"))
    assert (await soon(actuator.wait(handle))).exit_code == 4
    output = await asyncio.to_thread((tmp_path / "r" / "attempts" / "000" / "output.log").read_text)
    assert sorted(output.splitlines()) == ["one", "two"]
    await actuator.close()
