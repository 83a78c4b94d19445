"""The exporter's HTTP server: ``/metrics``, ``/healthz``, ``/readyz``.

``/metrics?attempt=3`` asked of another attempt is answered 409, so that a re-used port is never scraped under the
wrong name; ``/metrics?window=15`` sets the window that completed runs of steps stay visible for.
"""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry

from fusewire.guard import Errors
from fusewire.text import CONTENT_TYPE, TextEncoder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LONGEST_WINDOW = 86400.0
"""Seconds."""


class MetricsApp:
    """The WSGI application."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        attempt: int,
        ready: Callable[[], tuple[bool, str]],
        set_window: Callable[[float], None],
        scraped: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``scraped`` is called with the begin of each scrape once it was answered in full."""
        self._registry = registry
        self._encoder = TextEncoder()
        self._attempt = attempt
        self._ready = ready
        self._set_window = set_window
        self._scraped = scraped
        self._clock = clock

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._answer_metrics(environ, start_response)
        if path == "/healthz":
            return _text(start_response, HTTPStatus.OK, "alive")
        if path == "/readyz":
            ready, why = self._ready()
            return _text(start_response, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, why)
        return _text(start_response, HTTPStatus.NOT_FOUND, "see /metrics, /healthz and /readyz")

    def _answer_metrics(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        begun = self._clock()
        query = parse_qs(environ.get("QUERY_STRING", ""))
        asked = query.get("attempt", [""])[-1]
        if asked and asked != str(self._attempt):
            text = f"this is attempt {self._attempt}, not {asked}"
            return _text(start_response, HTTPStatus.CONFLICT, text)
        if window := query.get("window", [""])[-1]:
            seconds = _seconds(window)
            if seconds is None:
                text = f"window={window!r}: give seconds, more than 0 and at most {LONGEST_WINDOW:g}"
                return _text(start_response, HTTPStatus.BAD_REQUEST, text)
            self._set_window(seconds)
        # Not compressed: on one host gzip costs the trainer's CPU and saves nobody anything.
        body = self._encoder.encode(self._registry)
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return _Answer([body], lambda: self._scraped(begun))


class _Answer:
    """A response body that tells when the server has sent it (WSGI calls ``close`` then)."""

    def __init__(self, body: Iterable[bytes], sent: Callable[[], None]) -> None:
        self._body = body
        self._sent = sent

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        self._sent()


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0 < seconds <= LONGEST_WINDOW else None


def _text(start_response: StartResponse, status: HTTPStatus, text: str) -> list[bytes]:
    start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds that a silent client may hold a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a trainer's output is the user's."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking DNS for our own name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is not the trainer's business."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class ExporterServer:
    """Serves in daemon threads. A busy port is tried again for a while, then any free one is taken."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        host: str,
        port: int,
        listening: Callable[[str, int], None],
        errors: Errors,
        retry_seconds: float = 3.0,
    ) -> None:
        """``listening`` is called with the host and the port once they are known."""
        self._app = app
        self._host = host
        self._port = port
        self._listening = listening
        self._errors = errors
        self._retry_seconds = retry_seconds
        self._server: _Server | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="fusewire-exporter", daemon=True)

    @property
    def port(self) -> int | None:
        """The port; None while it is not known yet."""
        return self._server.server_port if self._server else None

    def start(self) -> None:
        """Listen at once if the port is free, else from the background; never raises."""
        self._try(self._port)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        while self._thread.is_alive():
            if self._server is not None:
                self._server.shutdown()
            self._thread.join(0.05)
        if self._server is not None:
            self._server.server_close()

    def abandon(self) -> None:
        """In a forked child: drop the listening socket that it inherited, and serve nothing."""
        if self._server is not None:
            self._server.socket.close()

    def _serve(self) -> None:
        end = time.monotonic() + self._retry_seconds
        while self._server is None and time.monotonic() < end and not self._closed.wait(0.1):
            self._try(self._port)
        if self._server is None and not self._closed.is_set():
            self._errors.note("exporter", f"port {self._port} on {self._host} cannot be had: taking a free one")
            self._try(0)
        if self._server is not None:
            self._server.serve_forever(poll_interval=0.1)

    def _try(self, port: int) -> None:
        cls = _Server6 if ":" in self._host else _Server
        try:
            server = cls((self._host, port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                self._errors.note("exporter", error)
            return
        server.set_app(self._app)
        self._server = server
        try:
            self._listening(self._host, server.server_port)
        except Exception as error:
            self._errors.note("files", error)
