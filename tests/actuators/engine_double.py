"""A small Docker engine for tests: the calls that the actuator makes, with real processes for containers.

What it answers was compared with dockerd 20.10: ``test_docker_real.py`` runs the same contract on a real one. It is
no sandbox: a container's files are those of this machine.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aiohttp import web

IMAGE = "trainer:1"
API_VERSION = "1.41"


@dataclass(kw_only=True)
class Container:
    """One container; ``body`` is what it was created from."""

    id: str
    name: str
    body: dict[str, Any]
    process: asyncio.subprocess.Process | None = None
    status: str = "created"
    exit_code: int = 0
    oom_killed: bool = False
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def inspected(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "State": {
                "Status": self.status,
                "Running": self.status == "running",
                "ExitCode": self.exit_code,
                "OOMKilled": self.oom_killed,
                "Pid": self.process.pid if self.process and self.status == "running" else 0,
            },
            "Config": {
                "Env": [*self.body["Env"], f"PATH={os.environ['PATH']}"],
                "Labels": self.body["Labels"],
                "WorkingDir": self.body.get("WorkingDir", ""),
            },
            "HostConfig": self.body["HostConfig"],
        }


class EngineDouble:
    """See the module's docstring. ``calls`` are the method and path of every request, without the version.

    Args:
        newest: API version that it offers.
        spoken: the one that it is asked in.
    """

    def __init__(self, *, newest: str = API_VERSION, spoken: str = API_VERSION) -> None:
        self._newest = newest
        self._prefix = f"/v{spoken}"
        self.containers: dict[str, Container] = {}
        self.calls: list[str] = []
        self.unstoppable = False
        """No signal ends a container (as in uninterruptible sleep)."""
        self.away = False
        """Every request is answered 503, as by a proxy whose engine is down."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    async def listen(self, path: Path) -> str:
        """Serve on a unix socket; the endpoint."""
        app = web.Application(middlewares=[self._counted])
        app.router.add_get("/_ping", self._ping)
        where = f"{self._prefix}/containers"
        app.router.add_post(f"{where}/create", self._create)
        app.router.add_get(f"{where}/json", self._list)
        app.router.add_get(f"{where}/{{id}}/json", self._inspect)
        app.router.add_post(f"{where}/{{id}}/start", self._start)
        app.router.add_post(f"{where}/{{id}}/kill", self._kill)
        app.router.add_post(f"{where}/{{id}}/wait", self._wait)
        app.router.add_get(f"{where}/{{id}}/logs", self._logs)
        app.router.add_head(f"{where}/{{id}}/archive", self._stat)
        app.router.add_delete(f"{where}/{{id}}", self._remove)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(path)).start()
        return f"unix://{path}"

    async def close(self) -> None:
        """Stop serving, and end every container."""
        self.unstoppable = False
        for container in self.containers.values():
            _signal(container, signal.SIGKILL)
        await asyncio.gather(*self._tasks)
        for container in self.containers.values():
            container.output.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def container(self, name: str) -> Container:
        """The container of this name."""
        return next(one for one in self.containers.values() if one.name == name)

    def lose(self) -> None:
        """Somebody removes every container that has ended."""
        for container in list(self.containers.values()):
            assert container.status == "exited"
            self.containers.pop(container.id).output.close()

    @web.middleware
    async def _counted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path.removeprefix(self._prefix)}")
        if self.away:
            return web.Response(status=503, text="<h1>503 Service Unavailable</h1>")
        response: web.StreamResponse = await handler(request)
        return response

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.Response(text="OK", headers={"Api-Version": self._newest})

    async def _create(self, request: web.Request) -> web.Response:
        name, body = request.query["name"], await request.json()
        if body["Image"] != IMAGE:
            return _said(404, f"No such image: {body['Image']}")
        if any(one.name == name for one in self.containers.values()):
            return _said(409, f'Conflict. The container name "/{name}" is already in use')
        container = Container(id=os.urandom(32).hex(), name=name, body=body)
        self.containers[container.id] = container
        return web.json_response({"Id": container.id, "Warnings": []}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = dict(label.split("=", 1) for label in json.loads(request.query["filters"])["label"])
        found = [one for one in self.containers.values() if wanted.items() <= one.body["Labels"].items()]
        return web.json_response(
            [{"Id": one.id, "State": one.status, "Labels": one.body["Labels"]} for one in found]
        )

    async def _inspect(self, request: web.Request) -> web.Response:
        container = self._named(request)
        return web.json_response(container.inspected()) if container else _none(request)

    async def _start(self, request: web.Request) -> web.Response:
        container = self._named(request)
        if container is None:
            return _none(request)
        if container.status != "created":
            return web.Response(status=304)
        environment = dict(entry.split("=", 1) for entry in container.body["Env"])
        container.status = "running"
        container.process = await asyncio.create_subprocess_exec(
            *container.body["Cmd"],
            env={"PATH": os.environ["PATH"], **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=container.output,
            stderr=container.output,
            start_new_session=True,
        )
        task = asyncio.create_task(_reap(container))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.Response(status=204)

    async def _kill(self, request: web.Request) -> web.Response:
        container = self._named(request)
        if container is None:
            return _none(request)
        if container.status != "running":
            return _said(409, f"Cannot kill container: {container.id}: is not running")
        if not self.unstoppable:
            _signal(container, signal.Signals[request.query["signal"]])
        return web.Response(status=204)

    async def _wait(self, request: web.Request) -> web.Response:
        container = self._named(request)
        if container is None:
            return _none(request)
        if container.status == "running":
            await container.ended.wait()
        return web.json_response({"StatusCode": container.exit_code})

    async def _logs(self, request: web.Request) -> web.Response:
        container = self._named(request)
        if container is None:
            return _none(request)
        container.output.seek(0)
        lines = container.output.readlines()[-int(request.query["tail"]) :]
        frames = [b"\1\0\0\0" + len(line).to_bytes(4, "big") + line for line in lines]
        return web.Response(body=b"".join(frames))

    async def _stat(self, request: web.Request) -> web.Response:
        path = Path(request.query["path"])
        if self._named(request) is None or not await asyncio.to_thread(os.path.lexists, path):
            return web.Response(status=404)
        found = await asyncio.to_thread(path.lstat)
        mode = found.st_mode & 0o777 | (1 << 31 if await asyncio.to_thread(path.is_dir) else 0)
        stat = base64.b64encode(json.dumps({"name": path.name, "mode": mode}).encode())
        return web.Response(headers={"X-Docker-Container-Path-Stat": stat.decode()})

    async def _remove(self, request: web.Request) -> web.Response:
        container = self._named(request)
        if container is None:
            return _none(request)
        if container.status == "running":
            return _said(409, "You cannot remove a running container")
        self.containers.pop(container.id).output.close()
        return web.Response(status=204)

    def _named(self, request: web.Request) -> Container | None:
        asked = request.match_info["id"]
        return next((one for one in self.containers.values() if asked in (one.id, one.name)), None)


async def _reap(container: Container) -> None:
    """The end of a container's first process is the end of all in it."""
    assert container.process is not None
    code = await container.process.wait()
    _signal(container, signal.SIGKILL)
    container.exit_code = code if code >= 0 else 128 - code
    container.status = "exited"
    container.ended.set()


def _signal(container: Container, number: signal.Signals) -> None:
    process = container.process
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def _said(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


def _none(request: web.Request) -> web.Response:
    return _said(404, f"No such container: {request.match_info['id']}")
