"""The webhook's listener: a socket that is taken before anything else starts, and TLS on it.

Prometheus and Alertmanager need the webhook's port in their configuration, so the port is taken first and served
last: connections that come in between wait in the socket's queue, and are never answered wrongly.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.config import ListenConfig, TlsConfig

_SHUTDOWN_SECONDS = 5.0
_BACKLOG = 1024


def bind(listen: ListenConfig, *, default_port: int) -> socket.socket:
    """A listening socket from which nobody accepts yet; port 0 takes a free one.

    Args:
        default_port: for a configuration that names none.

    Raises:
        ConfigError: the address is in use, not this host's, or not permitted.
    """
    port = listen.port if listen.port is not None else default_port
    where = f"{listen.host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"listen.host: {listen.host}: {error.strerror}; take an address of this host") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        remedy = {
            errno.EADDRINUSE: "another process has it; set another listen.port, or 0 for a free one",
            errno.EACCES: "ports below 1024 need a privilege; set another listen.port",
            errno.EADDRNOTAVAIL: "not an address of this host; set listen.host",
        }.get(error.errno or 0, str(error))
        raise ConfigError(f"listen.port: {where}: {remedy}") from error
    return bound


def tls_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """The server's side of TLS 1.2 or newer; with ``client_ca_file`` clients must show a certificate.

    Raises:
        ConfigError: a file is not what its key says.
    """
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"listen.tls: {tls.cert_file}, {tls.key_file}: not a PEM certificate with its key: {error}"
        ) from error
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"listen.tls.client_ca_file: {tls.client_ca_file}: no PEM: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, bound: socket.socket, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Start the application's resources, then serve it on ``bound``; yields the base URL, such as
    ``http://127.0.0.1:9095``. On leaving, requests in flight get five seconds, then the resources are released."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handle_signals=False)
    try:
        await runner.setup()
        await web.SockSite(runner, bound, ssl_context=tls, backlog=_BACKLOG).start()
        yield url_of(bound, tls=tls is not None)
    finally:
        await asyncio.shield(runner.cleanup())


def url_of(bound: socket.socket, *, tls: bool) -> str:
    """Base URL of a bound socket; a wildcard address is reached on loopback."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
