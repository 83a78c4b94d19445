"""The listener: TLS, client certificates, and what it says when it cannot listen."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.config import AuthConfig, ListenConfig, TlsConfig
from fusewire_webhook.web.server import bind, listening, tls_context, url_of

from .site import COMMAND_TOKEN, call, certificate, configured, served

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")


async def alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def app() -> web.Application:
    application = web.Application()
    application.router.add_get("/healthz", alive)
    return application


def client(cert: Path, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cert)
    if own is not None:
        context.load_cert_chain(*own)
    return context


async def get(url: str, context: ssl.SSLContext) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz", ssl=context) as response:
        return response.status


async def test_tls(tmp_path: Path) -> None:
    """Who trusts the certificate is served; plain HTTP is not."""
    cert, key = certificate(tmp_path)
    tls = tls_context(TlsConfig(cert_file=str(cert), key_file=str(key)))
    with contextlib.closing(bind(ListenConfig(port=0), default_port=0)) as bound:
        async with listening(app(), bound, tls=tls) as url:
            assert url.startswith("https://127.0.0.1:")
            assert await get(url, client(cert)) == 200
            with pytest.raises(aiohttp.ClientConnectionError):
                await get(url, ssl.create_default_context())
            with pytest.raises(aiohttp.ClientError):
                await get(url.replace("https", "http"), client(cert))


async def test_client_certificates(tmp_path: Path) -> None:
    """With ``client_ca_file`` a client without a certificate of that authority gets nothing."""
    cert, key = certificate(tmp_path)
    tls = tls_context(TlsConfig(cert_file=str(cert), key_file=str(key), client_ca_file=str(cert)))
    with contextlib.closing(bind(ListenConfig(port=0), default_port=0)) as bound:
        async with listening(app(), bound, tls=tls) as url:
            assert await get(url, client(cert, own=(cert, key))) == 200
            with pytest.raises(aiohttp.ClientError):
                await get(url, client(cert))


@pytest.mark.parametrize("name", ["cert_file", "client_ca_file"])
def test_a_file_that_is_no_certificate(tmp_path: Path, name: str) -> None:
    """The key and the file are named."""
    cert, key = certificate(tmp_path)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    tls = replace(TlsConfig(cert_file=str(cert), key_file=str(key)), **{name: str(garbage)})
    with pytest.raises(ConfigError, match=r"garbage\.pem"):
        tls_context(tls)


async def test_the_command_line_speaks_tls_and_shows_its_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands reach a webhook with TLS and a command token; with another token they are refused in one line."""
    cert, key = certificate(tmp_path)
    token = tmp_path / "command.token"
    token.write_text(COMMAND_TOKEN)
    listen = ListenConfig(port=0, tls=TlsConfig(cert_file=str(cert), key_file=str(key)))
    config = configured(tmp_path, listen=listen, auth=AuthConfig(command_token_file=str(token)))
    async with served(config, FakeActuator()) as service:
        assert await call("pause", "cartpole", "--why", "looking", "--runs", config.runs_dir) == 0
        assert service.engine.view("cartpole").paused
        token.write_text("another-token-0123456789")
        capsys.readouterr()
        assert await call("resume", "cartpole", "--why", "looked", "--runs", config.runs_dir) == 2
        assert service.engine.view("cartpole").paused
    error = capsys.readouterr().err
    assert error.startswith("fusewire: ")
    assert error.count("\n") == 1


def test_a_wildcard_address_is_reached_on_loopback() -> None:
    """The address for the command line is one that can be connected to."""
    with contextlib.closing(bind(ListenConfig(host="0.0.0.0", port=0), default_port=0)) as bound:
        assert url_of(bound, tls=False).startswith("http://127.0.0.1:")


def test_the_default_port_is_for_a_configuration_without_one() -> None:
    """A configured port wins over the command's default."""
    with contextlib.closing(bind(ListenConfig(), default_port=0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(ConfigError, match=f":{port}: another process has it"):
            bind(ListenConfig(port=port), default_port=0)
