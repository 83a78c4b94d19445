"""The socket proxy lets through what the docker actuator does and nothing else: HAProxy itself on the real file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actuators.docker_programs import DockerContract
from actuators.engine_double import IMAGE, EngineDouble
from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.docker import DockerActuator
from fusewire_webhook.actuators.docker_spec import container
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import DockerConfig

CONFIG = Path(__file__).parents[2] / "compose" / "socket-proxy" / "haproxy.cfg"
SECTION = DockerConfig(
    image=IMAGE, network="fusewire-trainers", volumes=("fusewire-runs:/runs",), user="10001:10001",
    memory_bytes=10**9, shm_bytes=10**9, cpus=2, gpus="all", read_only=True, tmpfs=("/tmp",), labels={"team": "rl"},
)  # fmt: skip
LAUNCH = Launch(
    run="r", attempt=0, argv=("true",), environment={"GREETING": 'ünïcode, "privileged": true'}, run_dir="/runs/r"
)


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    double = EngineDouble()
    yield double
    await double.close()


@pytest.fixture
async def proxy(engine: EngineDouble, tmp_path: Path) -> AsyncIterator[str]:
    """``host:port`` of a proxy in front of the engine."""
    if shutil.which("haproxy") is None:
        if os.environ.get("FUSEWIRE_TEST_DOCKER") == "1":
            pytest.fail("haproxy is not installed; tests/compose/setup.sh does")
        pytest.skip("haproxy is not installed; tests/compose/setup.sh does")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    await engine.listen(tmp_path / "docker.sock")
    environment = {
        **os.environ,
        "LISTEN": address,
        "DOCKER_SOCKET": str(tmp_path / "docker.sock"),
        "ALLOWED_IMAGES": IMAGE,
        "ALLOWED_VOLUMES": "fusewire-runs",
        "ALLOWED_NETWORK": "fusewire-trainers",
    }
    process = await asyncio.create_subprocess_exec(
        "haproxy", "-db", "-f", str(CONFIG), env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    host, port = address.split(":")
    for _ in range(200):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            break
        await asyncio.sleep(0.05)
    yield address
    process.terminate()
    await process.wait()


class TestThroughTheProxy(DockerContract):
    """DockerActuator keeps the contract through the proxy: every call that it makes is let through."""

    @pytest.fixture
    def docker(self, proxy: str) -> DockerConfig:
        return DockerConfig(
            image=IMAGE, endpoint=f"tcp://{proxy}", network="fusewire-trainers", volumes=("fusewire-runs:/runs",)
        )


def body() -> dict[str, Any]:
    return container(LAUNCH, SECTION, start="mark")


def written(value: Any) -> str:
    """As the actuator writes it; escapes alone would be a reason to refuse."""
    return json.dumps(value, ensure_ascii=False)


async def post(proxy: str, data: str, name: str = "fusewire-r-0") -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://{proxy}/v1.41/containers/create",
            params={"name": name},
            data=data.encode(),
            headers={"Content-Type": "application/json"},
        ) as answer,
    ):
        return answer.status


async def test_every_setting_passes(proxy: str) -> None:
    """A container with all that the configuration can ask for may be created, whatever its environment says."""
    assert await post(proxy, written(body())) == 201


ABUSES: dict[str, dict[str, Any]] = {
    "privileged": {"Privileged": True},
    "in another case": {"priVILEGED": True},
    "the host's folders": {"Binds": ["/:/host"]},
    "a bind mount": {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}]},
    "another volume": {"Mounts": [{"Type": "volume", "Source": "secrets", "Target": "/secrets"}]},
    "a volume that is a folder": {
        "Mounts": [{"Type": "volume", "Source": "fusewire-runs", "VolumeOptions": {"DriverConfig": {}}}]
    },
    "another's volumes": {"VolumesFrom": ["fusewire_stack-webhook-1"]},
    "the host's processes": {"PidMode": "host"},
    "the host's network": {"NetworkMode": "host"},
    "capabilities": {"CapAdd": ["SYS_ADMIN"]},
    "no capability dropped": {"CapDrop": []},
    "devices": {"Devices": [{"PathOnHost": "/dev/sda"}]},
    "no confinement": {"SecurityOpt": ["seccomp=unconfined"]},
    "another runtime": {"Runtime": "other"},
}


@pytest.mark.parametrize("abuse", ABUSES)
async def test_what_would_make_root_of_the_webhook(proxy: str, engine: EngineDouble, abuse: str) -> None:
    """A container that reaches beyond itself is refused, also where the forbidden key stands a second time."""
    plain = body()
    changed = plain | {"HostConfig": plain["HostConfig"] | ABUSES[abuse]}
    assert await post(proxy, written(changed)) == 403
    twice = written(plain)[:-1] + f', "HostConfig": {written(ABUSES[abuse])}}}'
    assert await post(proxy, twice) == 403
    assert not engine.containers


@pytest.mark.parametrize(
    "data",
    [
        written(body())[:-1] + r', "\u0048ostConfig": {"Privile\u0067ed": true}}',
        written(body())[:-1] + ', "HostConfig": {"Device\u017f": [{"PathOnHost": "/dev/sda"}]}}',
        written(body() | {"Image": "other:1"}),
        written(body())[:-1] + ', "image": "other:1"}',
        "{}",
    ],
    ids=["escaped", "long s", "another image", "another image twice", "nothing"],
)
async def test_disguises(proxy: str, engine: EngineDouble, data: str) -> None:
    """What Docker would read as a forbidden key, or another image, is refused however it is written."""
    assert await post(proxy, data) == 403
    assert not engine.containers


async def test_a_body_that_is_too_long_to_be_looked_at(proxy: str, engine: EngineDouble) -> None:
    """A forbidden key behind more than the proxy can hold does not get through."""
    long = written(body() | {"Env": ["A=" + "x" * 300_000]})[:-1] + ', "HostConfig": {"Privileged": true}}'
    assert await post(proxy, long) in {400, 403, 413}
    assert not engine.containers


async def test_the_refusal_is_understood(proxy: str, tmp_path: Path) -> None:
    """An image that the proxy does not allow is an attempt that was never started, and the message says why."""
    section = dataclasses.replace(SECTION, endpoint=f"tcp://{proxy}", image="other:1")
    actuator = DockerActuator({"r": section})
    launch = dataclasses.replace(LAUNCH, run_dir=str(tmp_path / "r"))
    with pytest.raises(ActuatorError, match=r"POST /containers/create is refused by the socket proxy"):
        await actuator.start(launch)
    assert await actuator.find("r", 0, launch.run_dir) is None
    await actuator.close()


async def test_names_of_others(proxy: str, engine: EngineDouble) -> None:
    """Only containers named fusewire-… are created."""
    assert await post(proxy, written(body()), name="database") == 403
    assert not engine.containers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/info"),
        ("GET", "/images/json"),
        ("POST", "/images/create?fromImage=evil"),
        ("POST", "/build"),
        ("GET", "/containers/json?all=1"),
        ("GET", "/containers/database/json"),
        ("POST", "/containers/database/kill"),
        ("DELETE", "/containers/database"),
        ("POST", "/containers/fusewire_stack-webhook-1/kill"),
        ("POST", "/containers/fusewire-r-0/exec"),
        ("POST", "/containers/fusewire-r-0/update"),
        ("GET", "/containers/fusewire-r-0/archive?path=/"),
        ("PUT", "/containers/fusewire-r-0/archive?path=/"),
        ("GET", "/containers/fusewire-r-0/../../info"),
        ("GET", "/containers/fusewire-r-0%2f..%2f../json"),
        ("POST", "/exec/1/start"),
        ("GET", "/volumes"),
        ("POST", "/volumes/create"),
        ("POST", "/networks/create"),
    ],
)
async def test_other_calls(proxy: str, engine: EngineDouble, method: str, path: str) -> None:
    """Calls that the actuator does not make are refused, and never reach the engine."""
    host, port = proxy.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))  # as written: no client tidies the path
    writer.write(
        f"{method} /v1.41{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    assert (await reader.read()).startswith(b"HTTP/1.1 403")
    writer.close()
    assert engine.calls == []
