"""Who may talk to the webhook: two tokens, and no web page of a browser.

The alert token (Alertmanager, Prometheus) opens ``/alerts`` and ``/sd``; the command token (people) opens ``/api``.
A token comes as ``Authorization: Bearer TOKEN``, as the password of basic authentication (any user name), or as a
session cookie that was signed with it (``session.py``).
Without a token the listener is on loopback only (the loader sees to that), where any process of this host may
call; a web page may not: its requests carry a foreign ``Origin``, or a foreign ``Host`` after DNS rebinding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Literal
from urllib.parse import urlsplit

from aiohttp import web

from fusewire_webhook.settings.checks import is_loopback
from fusewire_webhook.settings.redact import Secret
from fusewire_webhook.web.session import seconds_left

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AuthReason = Literal["unauthorized", "forbidden"]
Refused = Callable[[AuthReason], None]
"""Called for each refused request, so that it is counted."""


def guard(token: Secret | None, handler: Handler, *, refused: Refused) -> Handler:
    """``handler``, behind ``token``: 401 without credentials, 403 with wrong ones."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        if not same_site(request) or (token is None and not _loopback_host(request)):
            refused("forbidden")
            raise web.HTTPForbidden(text="requests of web pages from elsewhere are refused\n")
        if token is not None and seconds_left(request, token) is None:
            credentials = _credentials(request.headers.get("Authorization", ""))
            if credentials is None:
                refused("unauthorized")
                raise web.HTTPUnauthorized(
                    headers={"WWW-Authenticate": 'Bearer realm="fusewire"'}, text="a token is needed\n"
                )
            if not token.matches(credentials):
                refused("forbidden")
                raise web.HTTPForbidden(text="the token is not the one of this path\n")
        return await handler(request)

    return guarded


def _credentials(header: str) -> str | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            _, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return password if colon else None
    return None


def same_site(request: web.Request) -> bool:
    """Whether no page of another origin sent the request."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


def _loopback_host(request: web.Request) -> bool:
    return is_loopback(urlsplit(f"//{request.host}").hostname or "")
