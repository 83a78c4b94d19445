"""The console's own files: read once, served with a strict Content-Security-Policy and an entity tag."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

from fusewire_webhook.settings import packs

_TYPES = {
    ".md": "text/plain",
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Of every file: scripts and styles from here only, no markup made of text, no other site in a frame."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file."""

    body: bytes
    content_type: str
    etag: str


def load() -> dict[str, Asset]:
    """Every file of ``static/`` by its name."""
    folder = resources.files(__package__).joinpath("static")
    found = {}
    for file in folder.iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _TYPES:
            found[file.name] = _asset(file.read_bytes(), suffix)
    return found


def runbooks() -> dict[str, Asset]:
    """Every runbook of the pack by its file's name."""
    return {path.name: _asset(path.read_bytes(), ".md") for path in packs.runbooks().glob("*.md")}


def _asset(body: bytes, suffix: str) -> Asset:
    return Asset(body=body, content_type=_TYPES[suffix], etag=hashlib.sha256(body).hexdigest()[:32])


def respond(request: web.Request, asset: Asset) -> web.Response:
    """The file, or 304 where the browser has it already."""
    known = request.if_none_match or ()
    if any(tag.value == asset.etag for tag in known):
        response = web.Response(status=304, headers=HEADERS)
    else:
        response = web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=HEADERS)
    response.etag = asset.etag
    return response
