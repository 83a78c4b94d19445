"""A browser's session: a signed cookie that stands for the command token.

The cookie holds its own end and a signature by the token, so nothing is stored: sessions outlive a restart of the
webhook, and a new token ends all of them. It never holds the token. Cookies do not tell ports of one host apart, so
the name carries the port.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from aiohttp import hdrs, web

from fusewire_webhook.settings.redact import Secret

LIFETIME_SECONDS = 12 * 3600.0
"""A shift at the console. There is no sliding extension: who works on signs in again."""


def cookie_name(request: web.Request) -> str:
    """Name of the session cookie of the server that ``request`` asked."""
    return f"fusewire_session_{request.url.port}"


def cookie_of(request: web.Request) -> str:
    """The session cookie that came with the request; empty: none did."""
    return request.cookies.get(cookie_name(request), "") if hdrs.COOKIE in request.headers else ""


def issue(token: Secret, *, until: float) -> str:
    """A cookie value that is valid until ``until`` (Unix seconds)."""
    text = f"{int(until)}.{secrets.token_hex(8)}"
    return f"{text}.{_signature(token, text)}"


def seconds_left(request: web.Request, token: Secret, *, clock: Callable[[], float] = time.time) -> float | None:
    """How long the request's session goes on; None: it has none, or one of another token, or an expired one."""
    text, _, signature = cookie_of(request).rpartition(".")
    until = text.partition(".")[0]
    if not (until.isascii() and until.isdecimal()):
        return None
    if not hmac.compare_digest(_signature(token, text).encode(), signature.encode(errors="surrogateescape")):
        return None
    left = int(until) - clock()
    return left if left > 0 else None


def _signature(token: Secret, text: str) -> str:
    return hmac.new(token.reveal().encode(), b"fusewire session " + text.encode(), hashlib.sha256).hexdigest()
