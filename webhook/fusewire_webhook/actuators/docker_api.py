"""The few calls of the Docker Engine API that an actuator needs: https://docs.docker.com/reference/api/engine/

Over a unix socket, or TCP to a socket proxy. Nothing here knows what a run is. ``fusewire_webhook.socket_proxy``
allows exactly these calls: change both together.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from fusewire_webhook.errors import ActuatorError

NEWEST_VERSION = (1, 51)
"""Newest API version that is asked for; an older engine is spoken to in its own."""
LOG_LINES = 20_000
"""Most lines of a container's output that are fetched."""
_DIRECTORY = 1 << 31
"""Of Go's os.FileMode."""
_STAT_HEADER = "X-Docker-Container-Path-Stat"


class EngineError(ActuatorError):
    """The Docker engine refused, or did not answer (``status`` 0)."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def away(self) -> bool:
        """Nobody answered, or a proxy in place of the engine: it may be back in a moment."""
        return self.status in (0, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise EngineError(f"the Docker engine answered something else than JSON ({error})") from error


class EngineApi:
    """A client of one engine. Connections are not kept: a proxy may close them at any time.

    Args:
        endpoint: ``unix:///path/docker.sock`` or ``tcp://host:port``.
        seconds: bound on every call but :meth:`wait`.
    """

    def __init__(self, endpoint: str, *, seconds: float = 30.0) -> None:
        self.endpoint = endpoint
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None
        self._version = ""

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create a container.

        Raises:
            EngineError: 404 no such image or network, 409 the name is taken.
        """
        await self._call("POST", "/containers/create", params={"name": name}, body=body, ok=(201,))

    async def start(self, container: str) -> None:
        """Start a created container; nothing where it runs.

        Raises:
            EngineError: it cannot be started.
        """
        await self._call("POST", f"/containers/{quote(container)}/start", ok=(204, 304))

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """All that is known of a container, by name or id; None: there is none."""
        answer = await self._call("GET", f"/containers/{quote(container)}/json", ok=(200, 404))
        found: dict[str, Any] | None = answer.json() if answer.status == 200 else None
        return found

    async def labelled(self, label: str, value: str) -> list[dict[str, Any]]:
        """Every container with this label, whatever its state."""
        filters = json.dumps({"label": [f"{label}={value}"]}, separators=(",", ":"))
        answer = await self._call("GET", "/containers/json", params={"all": "1", "filters": filters}, ok=(200,))
        found: list[dict[str, Any]] = answer.json()
        return found

    async def wait(self, container: str) -> None:
        """Return once the container does not run. Takes as long as it takes; the connection may break before."""
        path = f"/containers/{quote(container)}/wait"
        await self._call("POST", path, params={"condition": "not-running"}, ok=(200, 404), seconds=None)

    async def kill(self, container: str, signal: str) -> None:
        """Send a signal to its first process; nothing where it does not run."""
        path = f"/containers/{quote(container)}/kill"
        await self._call("POST", path, params={"signal": signal}, ok=(204, 404, 409))

    async def output(self, container: str) -> bytes:
        """Its last :data:`LOG_LINES` lines of stdout and stderr."""
        params = {"stdout": "1", "stderr": "1", "tail": str(LOG_LINES)}
        answer = await self._call("GET", f"/containers/{quote(container)}/logs", params=params, ok=(200, 404))
        return unframed(answer.body) if answer.status == 200 else b""

    async def executable(self, container: str, path: str) -> bool:
        """Is there a file (or link) inside the container that somebody may execute?"""
        where = f"/containers/{quote(container)}/archive"
        answer = await self._call("HEAD", where, params={"path": path}, ok=(200, 404))
        try:
            mode = int(json.loads(base64.b64decode(answer.headers[_STAT_HEADER]))["mode"])
        except (KeyError, ValueError, TypeError):
            return False
        return not mode & _DIRECTORY and bool(mode & 0o111)

    async def remove(self, container: str) -> None:
        """Remove a container that does not run."""
        await self._call("DELETE", f"/containers/{quote(container)}", params={"v": "1"}, ok=(204, 404))

    async def close(self) -> None:
        """Close the client."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        ok: tuple[int, ...],
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        seconds: float | None = -1.0,
    ) -> _Answer:
        if not self._version:
            ping = await self._send("GET", "/_ping", seconds=self._seconds)
            self._version = _version(ping.headers.get("Api-Version", ""))
        bound = self._seconds if seconds == -1.0 else seconds
        answer = await self._send(method, f"/v{self._version}{path}", params=params, body=body, seconds=bound)
        if answer.status == 403:  # the engine itself never says so
            raise EngineError(
                f"{method} {path} is refused by the socket proxy at {self.endpoint}: {_said(answer.body)}",
                status=403,
            )
        if answer.status not in ok:
            raise EngineError(_said(answer.body) or f"HTTP {answer.status}", status=answer.status)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        seconds: float | None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> _Answer:
        if self._session is None:
            self._session = _session(self.endpoint)
        base = "http://docker" if self.endpoint.startswith("unix://") else f"http://{_after_scheme(self.endpoint)}"
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                base + path,
                params=params,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=self._seconds),
            ) as answer:
                return _Answer(status=answer.status, body=await answer.read(), headers=answer.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise EngineError(f"the Docker engine at {self.endpoint} does not answer: {why}") from error


def unframed(stream: bytes) -> bytes:
    """Both streams of a container's output, without the 8-byte frame headers of the API."""
    parts, at = [], 0
    while at + 8 <= len(stream):
        size = int.from_bytes(stream[at + 4 : at + 8], "big")
        parts.append(stream[at + 8 : at + 8 + size])
        at += 8 + size
    return b"".join(parts)


def _session(endpoint: str) -> aiohttp.ClientSession:
    connector: aiohttp.BaseConnector
    if endpoint.startswith("unix://"):
        connector = aiohttp.UnixConnector(path=_after_scheme(endpoint), limit=0, force_close=True)
    else:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector)


def _after_scheme(endpoint: str) -> str:
    return endpoint.partition("://")[2]


def _version(text: str) -> str:
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match is None:
        raise EngineError(f"something else than a Docker engine answers (Api-Version: {text!r})")
    return "{}.{}".format(*min((int(match[1]), int(match[2])), NEWEST_VERSION))


def _said(body: bytes) -> str:
    try:
        text = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = re.sub(r"<[^>]*>", " ", body.decode(errors="replace"))
    return " ".join(text.split())[:500]
