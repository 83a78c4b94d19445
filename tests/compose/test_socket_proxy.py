"""The socket proxy over the wire: it lets through what the docker actuator does, and says everything anew."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from actuators.docker_programs import DockerContract
from actuators.engine_double import IMAGE, EngineDouble
from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.docker import DockerActuator
from fusewire_webhook.actuators.docker_spec import container
from fusewire_webhook.errors import ActuatorError
from fusewire_webhook.settings.config import DockerConfig
from fusewire_webhook.socket_proxy.calls import said_anew
from fusewire_webhook.socket_proxy.creation import Allowed, Creation
from fusewire_webhook.socket_proxy.server import SocketProxy
from fusewire_webhook.socket_proxy.shapes import Refused

ALLOWED = Allowed(images=IMAGE, volumes="fusewire-runs", network="fusewire-trainers")
SECTION = DockerConfig(image=IMAGE, network="fusewire-trainers", volumes=("fusewire-runs:/runs",))
LAUNCH = Launch(run="r", attempt=0, argv=("true",), environment={"A": "1"}, run_dir="/runs/r")
BODY = json.dumps(container(LAUNCH, SECTION, start="mark"))
CREATE = "/v1.41/containers/create?name=fusewire-r-0"


class Wiretap:
    """In place of an engine: keeps every byte that it is sent, and answers 201."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), b":0")
        self.heard.append(head + await reader.readexactly(int(length.partition(b":")[2])))
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nServer: x\r\nConnection: close\r\n\r\n{}")
        writer.close()


@contextlib.asynccontextmanager
async def proxied(path: Path, said: list[str]) -> AsyncIterator[str]:
    proxy = SocketProxy(socket=str(path), allowed=ALLOWED, say=said.append)
    port = await proxy.listen("127.0.0.1", 0)
    yield f"127.0.0.1:{port}"
    await proxy.close()


@pytest.fixture
def said() -> list[str]:
    """What the proxy has logged."""
    return []


@pytest.fixture
async def engine() -> AsyncIterator[EngineDouble]:
    double = EngineDouble()
    yield double
    await double.close()


@pytest.fixture
async def proxy(engine: EngineDouble, short_path: Path, said: list[str]) -> AsyncIterator[str]:
    """``host:port`` of a proxy in front of the engine."""
    await engine.listen(short_path / "docker.sock")
    async with proxied(short_path / "docker.sock", said) as address:
        yield address


@pytest.fixture
async def wire(short_path: Path) -> AsyncIterator[Wiretap]:
    tap = Wiretap()
    server = await asyncio.start_unix_server(tap, short_path / "wire.sock")
    yield tap
    server.close()
    await server.wait_closed()


@pytest.fixture
async def tapped(wire: Wiretap, short_path: Path, said: list[str]) -> AsyncIterator[str]:
    """``host:port`` of a proxy in front of the wiretap."""
    async with proxied(short_path / "wire.sock", said) as address:
        yield address


async def send(address: str, *raw: bytes) -> bytes:
    """All that is answered to these bytes; no client tidies them."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):  # refused before all was sent
        for part in raw:
            writer.write(part)
            await writer.drain()
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def request(target: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *(headers or (f"Content-Length: {len(body)}",))]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


class TestThroughTheProxy(DockerContract):
    """DockerActuator keeps the contract through the proxy: every call that it makes is let through."""

    @pytest.fixture
    def docker(self, proxy: str) -> DockerConfig:
        return dataclasses.replace(SECTION, endpoint=f"tcp://{proxy}")


async def test_the_engine_hears_only_what_the_proxy_says(tapped: str, wire: Wiretap, said: list[str]) -> None:
    """Neither a header nor a byte of the body is passed on: the call is written anew, and logged."""
    sent = BODY.replace(", ", " ,\n ").encode()
    headers = (f"Content-Length: {len(sent)}", "X-Registry-Auth: x", "Content-Type: text/evil", "Upgrade: tcp")
    answer = await send(tapped, request(CREATE, sent, *headers))
    assert status(answer) == 201
    assert b"Server: x" not in answer
    (heard,) = wire.heard
    head, _, body = heard.partition(b"\r\n\r\n")
    names = {line.partition(b":")[0].decode() for line in head.split(b"\r\n")[1:]}
    assert names <= {
        "Host",
        "Accept",
        "Accept-Encoding",
        "User-Agent",
        "Content-Length",
        "Content-Type",
        "Connection",
    }
    assert b"Content-Type: application/json" in head
    assert body == BODY.encode()
    assert said == [f"POST {CREATE}"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("headers", [0, 6_000, 60_000])
@pytest.mark.parametrize("padding", [10, 90_000, 1_500_000])
async def test_a_forbidden_key_behind_much_else(
    tapped: str, wire: Wiretap, headers: int, padding: int, chunked: bool
) -> None:
    """However long headers and body are and however they are sent, nothing of a body goes unread."""
    body = (BODY[:-1] + ', "HostConfig": {"Privileged": true}' + " " * padding + "}").encode()
    late = (BODY[:-1] + " " * padding + ', "HostConfig": {"Privileged": true}}').encode()
    many = [f"X-{n}: {'x' * 1000}" for n in range(headers // 1000)]
    for one in (body, late):
        if chunked:
            parts = [one[at : at + 30_000] for at in range(0, len(one), 30_000)]
            sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            answer = await send(tapped, request(CREATE, sent, *many, "Transfer-Encoding: chunked"))
        else:
            answer = await send(tapped, request(CREATE, one, *many, f"Content-Length: {len(one)}"))
        assert status(answer) in {0, 400, 403, 413}
    assert wire.heard == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4", b"5\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
        ("Transfer-Encoding : chunked", b"0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"0;x\n\r\n\r\n"),
        ("Content-Length: 3\r\nContent-Length: 0", b"abc"),
        ("Content-Length: +3", b"abc"),
        ("X: a\nContent-Length: 10", b""),
        ("X: a\r\n Content-Length: 10", b""),
        ("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings, close\r\nHTTP2-Settings: x", b""),
        ("Expect: 100-continue\r\nContent-Length: 0", b""),
    ],
)
async def test_a_second_request_inside_the_first(tapped: str, wire: Wiretap, headers: str, body: bytes) -> None:
    """Whatever two readers could take for the end of a request, the engine hears at most one plain ``_ping``."""
    first = f"GET /_ping HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode() + body
    answer = await send(tapped, first + request("/v1.41/containers/create?name=x", BODY.encode()))
    assert status(answer) in {100, 201, 400}
    assert len(wire.heard) <= 1
    for heard in wire.heard:
        assert heard.startswith(b"GET /_ping HTTP/1.1\r\n")
        assert heard.endswith(b"\r\n\r\n")
        assert b"upgrade" not in heard.lower()


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1.41/info"),
        ("GET", "/v1.41/images/json"),
        ("POST", "/v1.41/images/create?fromImage=evil"),
        ("POST", "/v1.41/build"),
        ("POST", "/v1.41/session"),
        ("POST", "/v1.41/grpc"),
        ("GET", "/v1.41/containers/json?all=1"),
        ("GET", "/v1.41/containers/json?all=1&filters=" + quote('{"label":["fusewire.run=r"],"label":["x"]}')),
        ("GET", "/v1.41/containers/json?all=1&filters=" + quote('{"label":["fusewire.run=r"],"name":["x"]}')),
        ("GET", "/v1.41/containers/database/json"),
        ("POST", "/v1.41/containers/database/kill?signal=SIGKILL"),
        ("DELETE", "/v1.41/containers/database?v=1"),
        ("DELETE", "/v1.41/containers/fusewire-r-0?v=1&force=1"),
        ("POST", "/v1.41/containers/fusewire_stack-webhook-1/kill?signal=SIGKILL"),
        ("POST", "/v1.41/containers/fusewire-r-0/kill?signal=SIGSTOP"),
        ("POST", "/v1.41/containers/fusewire-r-0/exec"),
        ("POST", "/v1.41/containers/fusewire-r-0/attach?stream=1&stdin=1"),
        ("GET", "/v1.41/containers/fusewire-r-0/attach/ws"),
        ("GET", "/v1.41/containers/fusewire-r-0/export"),
        ("POST", "/v1.41/containers/fusewire-r-0/update"),
        ("POST", "/v1.41/containers/fusewire-r-0/rename?name=x"),
        ("GET", "/v1.41/containers/fusewire-r-0/archive?path=/"),
        ("PUT", "/v1.41/containers/fusewire-r-0/archive?path=/"),
        ("HEAD", "/v1.41/containers/fusewire-r-0/archive?path=/é"),
        ("HEAD", "/v1.41/containers/fusewire-r-0/archive?path=%ff"),
        ("GET", "/v1.41/containers/fusewire-r-0/logs?stdout=1&stderr=1&tail=1&follow=1"),
        ("GET", "/v1.41/containers/fusewire-r-0/../../info"),
        ("GET", "/v1.41/containers/fusewire-r-0%2f..%2f../json"),
        ("GET", "/v1.41/containers/fusewire-r-0/%6ason"),
        ("GET", "//v1.41/containers/fusewire-r-0/json"),
        ("GET", "/v1.41//containers/fusewire-r-0/json"),
        ("GET", "/v1.41/containers/fusewire-r-0/json/"),
        ("GET", "/v1.41/containers/fusewire-r-0/json?size=1"),
        ("GET", "/v1.41/containers/fusewire-r-0/json#"),
        ("GET", "http://docker/v1.41/containers/fusewire-r-0/json"),
        ("GET", "/containers/fusewire-r-0/json"),
        ("GET", "/v1.24/containers/fusewire-r-0/json"),
        ("GET", "/v1.99/containers/fusewire-r-0/json"),
        ("POST", "/v1.23/containers/fusewire-r-0/start"),
        ("POST", "/v1.41/exec/1/start"),
        ("GET", "/v1.41/volumes"),
        ("POST", "/v1.41/volumes/create"),
        ("POST", "/v1.41/networks/create"),
        ("POST", "/v1.41/networks/fusewire_stack_watch/connect"),
        ("POST", "/v1.41/containers/create"),
        ("POST", "/v1.41/containers/create?name=database"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0&name=db"),
        ("POST", "/v1.41/containers/create?%6eame=db&name=fusewire-r-0"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0&platform=x"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0%00"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0%0a"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0;x"),
        ("POST", "/v1.41/containers/create?name=fusewire-r-0&x"),
        ("post", "/v1.41/containers/create?name=fusewire-r-0"),
        ("HEAD", "/_ping"),
        ("GET", "/_ping?x"),
        ("CONNECT", "docker:80"),
        ("OPTIONS", "*"),
    ],
)
async def test_other_calls(method: str, target: str, tapped: str, wire: Wiretap, said: list[str]) -> None:
    """Calls that the actuator does not make are refused, and never reach the engine."""
    with pytest.raises(Refused):
        said_anew(method, target, BODY.encode(), Creation(ALLOWED))
    answer = await send(tapped, request(target, BODY.encode(), method=method))
    assert status(answer) in {400, 403}
    assert (status(answer) == 403) == bool(said)
    assert wire.heard == []


async def test_what_is_not_json_reaches_no_engine(tapped: str, wire: Wiretap) -> None:
    """A creation that asks for more is refused with the key's name; no other call has a body."""
    answer = await send(tapped, request(CREATE, b'{"HostConfig": {"Privileged": true}}'))
    assert status(answer) == 403
    assert b"Image must be given" in answer
    assert wire.heard == []
    assert status(await send(tapped, request("/v1.41/containers/fusewire-r-0/start", BODY.encode()))) == 201
    assert wire.heard[0].endswith(b"\r\n\r\n")


async def test_a_refusal_is_one_line(tapped: str, said: list[str]) -> None:
    """What is refused cannot write lines of its own into the log, nor long ones."""
    evil = "x\nPOST /v1.41/containers/create?name=innocent" + "y" * 1000
    for changed in ({evil: 1}, {"Labels": {evil: ""}}, {"Labels": {evil: 1}}):
        body = json.dumps(json.loads(BODY) | changed).encode()
        assert status(await send(tapped, request(CREATE, body))) == 403
    assert status(await send(tapped, request("/v1.41/info?é" + "y" * 1000))) in {400, 403}
    assert len(said) >= 3
    assert all("\n" not in line and len(line) < 1000 for line in said)


async def test_the_refusal_is_understood(proxy: str, tmp_path: Path) -> None:
    """An image that the proxy does not allow is an attempt that was never started, and the message says why."""
    section = dataclasses.replace(SECTION, endpoint=f"tcp://{proxy}", image="other:1")
    actuator = DockerActuator({"r": section})
    launch = dataclasses.replace(LAUNCH, run_dir=str(tmp_path / "r"))
    with pytest.raises(ActuatorError, match=r"POST /containers/create is refused .*: Image: .* by ALLOWED_IMAGES"):
        await actuator.start(launch)
    assert await actuator.find("r", 0, launch.run_dir) is None
    await actuator.close()


async def test_an_engine_that_is_away(short_path: Path, said: list[str]) -> None:
    """Without the engine the proxy answers 503, which the actuator takes for a moment's absence."""
    async with proxied(short_path / "nothing.sock", said) as address:
        assert status(await send(address, request("/_ping", method="GET"))) == 503


async def test_half_an_answer(short_path: Path, said: list[str]) -> None:
    """Where the engine is cut off in the middle of an answer, so is the caller: a part is no whole."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        writer.close()

    async with await asyncio.start_unix_server(half, short_path / "half.sock"):
        async with proxied(short_path / "half.sock", said) as address:
            target = "/v1.41/containers/fusewire-r-0/json"
            answer = await send(address, request(target, method="GET"))
        assert not answer.endswith(b"0\r\n\r\n")
        assert b"Content-Length: 4" not in answer


async def started(**environment: str) -> asyncio.subprocess.Process:
    """The proxy as the stack starts it."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("ALLOWED_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fusewire_webhook.socket_proxy", env=bare | environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_process_without_settings() -> None:
    """What must be set and is not, is named, and nothing is served."""
    process = await started(ALLOWED_IMAGES="(")
    said = (await process.communicate())[1].decode()
    assert process.returncode == 2
    assert "ALLOWED_IMAGES is no regular expression" in said
    assert "ALLOWED_VOLUMES is not set" in said


async def test_the_process(engine: EngineDouble, short_path: Path) -> None:
    """It serves, logs what it refuses, and ends by SIGTERM at once although somebody waits."""
    await engine.listen(short_path / "docker.sock")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = await started(
        LISTEN=address,
        DOCKER_SOCKET=str(short_path / "docker.sock"),
        ALLOWED_IMAGES=IMAGE,
        ALLOWED_VOLUMES="fusewire-runs",
        ALLOWED_NETWORK="fusewire-trainers",
    )
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError):
                assert status(await send(address, request("/_ping", method="GET"))) == 200
                break
            await asyncio.sleep(0.05)
        assert status(await send(address, request("/v1.41/info", method="GET"))) == 403
        asleep = json.dumps(container(dataclasses.replace(LAUNCH, argv=("sleep", "60")), SECTION, start="mark"))
        assert status(await send(address, request(CREATE, asleep.encode()))) == 201
        assert status(await send(address, request("/v1.41/containers/fusewire-r-0/start"))) == 204
        wait = request("/v1.41/containers/fusewire-r-0/wait?condition=not-running")
        waiting = asyncio.create_task(send(address, wait))
        while True:
            if "POST /containers/fusewire-r-0/wait" in engine.calls:
                break
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, errors = await process.communicate()
        assert status(await waiting) == 0
    assert process.returncode == 0
    assert errors == b""
    assert b"refused: GET '/v1.41/info'" in out
    assert b"POST /v1.41/containers/fusewire-r-0/start" in out
