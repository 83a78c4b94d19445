"""The proxy as a server: every effect of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import aiohttp
from aiohttp import web
from yarl import URL

from fusewire_webhook.socket_proxy.calls import Call, said_anew
from fusewire_webhook.socket_proxy.creation import Allowed, Creation
from fusewire_webhook.socket_proxy.shapes import Refused

_KEPT = ("Content-Type", "Api-Version", "X-Docker-Container-Path-Stat")
"""Headers of an answer that are passed on. None of a request is."""
_CONNECT_SECONDS = 5.0

log = logging.getLogger("socket-proxy")


class SocketProxy:
    """Serves what :mod:`.calls` allows of the engine behind a unix socket.

    Args:
        socket: path of the engine's socket.
        say: takes a line for each creation, start, kill, removal and refusal.
    """

    def __init__(self, *, socket: str, allowed: Allowed, say: Callable[[str], None] = log.info) -> None:
        self._socket = socket
        self._creation = Creation(allowed)
        self._say = say
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None

    async def listen(self, host: str | None, port: int) -> int:
        """Serve until :meth:`close`; the port, where 0 was given.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=self._socket, limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,
        )
        # A caller that goes away while it waits for the end of a container is not waited for.
        server = web.Server(self._handle, handler_cancellation=True, access_log=None, auto_decompress=False)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop serving; calls that are under way are cut off."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = f"{request.method} {request.raw_path!r:.300}"
        try:
            call = said_anew(request.method, request.raw_path, await request.read(), self._creation)
        except Refused as refused:
            self._say(f"refused: {asked}: {refused!s:.300}")
            return web.json_response({"message": str(refused)}, status=403)
        if call.changes:
            self._say(f"{call.method} {call.target}")
        return await self._forward(request, call)

    async def _forward(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        assert self._session is not None
        headers = {} if call.body is None else {"Content-Type": "application/json"}
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                call.method,
                URL(f"http://docker{call.target}", encoded=True),
                data=call.body,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is not None:  # half an answer is no answer: the caller must not take it for a whole one
                raise
            self._say(f"the engine does not answer: {error}")
            return web.json_response({"message": "the engine does not answer"}, status=503)
