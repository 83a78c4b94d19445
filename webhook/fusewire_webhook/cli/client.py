"""How the command line talks to the webhook that serves a runs folder."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import aiohttp

from fusewire_webhook.errors import CommandError, ConfigError
from fusewire_webhook.settings.redact import read_secret
from fusewire_webhook.settings.runs_folder import RunsFolder, ServingAddress

_TIMEOUT_SECONDS = 30.0


def ask(folder: RunsFolder, method: str, path: str, body: Any = None) -> Any:
    """The JSON answer of the serving webhook; None where none serves this folder.

    Raises:
        CommandError: it refused; the message is its own.
        ConfigError: its command token cannot be read here.
    """
    address = folder.address()
    if address is None or not _lives(address.pid):
        return None
    return asyncio.run(_ask(address, method, path, body))


async def _ask(address: ServingAddress, method: str, path: str, body: Any) -> Any:
    headers = {}
    if address.command_token_file is not None:
        token = read_secret(address.command_token_file, key="auth.command_token_file")
        headers["Authorization"] = f"Bearer {token.reveal()}"
    connector = aiohttp.TCPConnector(ssl=_trust(address))
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        try:
            async with session.request(method, address.url + path, json=body, headers=headers) as response:
                answer = await response.json(content_type=None)
                if response.status == 200:
                    return answer
        except aiohttp.ClientConnectorError:
            return None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise CommandError(f"{address.url}{path}: no answer: {error or type(error).__name__}") from error
    raise CommandError(answer.get("error") or f"{address.url}{path}: {response.status}")


def _trust(address: ServingAddress) -> ssl.SSLContext | bool:
    if address.ca_file is None:
        return True
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"listen.tls.cert_file: {address.ca_file}: cannot be read: {error}") from error
    context.check_hostname = False  # the one certificate that is trusted is the listener's own
    return context


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
