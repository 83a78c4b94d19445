"""``/api/runs/{run}/postmortems``: the list, and each file, behind the command token like the rest of ``/api``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from fusewire_webhook.errors import UnknownRunError
from fusewire_webhook.postmortem import FOLDER, html, parse_name
from fusewire_webhook.web.deps import DEPS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TYPES = {
    "md": "text/markdown; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
    "incident.svg": "image/svg+xml; charset=utf-8",
    "json": "application/json; charset=utf-8",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": f"sandbox; {html.POLICY}",
}


def routes() -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of what is served here."""
    return [
        ("GET", "/api/runs/{run}/postmortems", _list),
        ("GET", "/api/runs/{run}/postmortems/{file}", _file),
    ]


async def _list(request: web.Request) -> web.StreamResponse:
    """The run's postmortems by attempt, oldest first: ``{"attempt", "written_at", "files"}``."""
    folder = _folder(request)
    found = await asyncio.to_thread(listing, folder)
    body = {"run": request.match_info["run"], "postmortems": found}
    return web.json_response(body, headers={"Cache-Control": "no-store"})


async def _file(request: web.Request) -> web.StreamResponse:
    folder, name = _folder(request), request.match_info["file"]
    parsed = parse_name(name)
    if parsed is None:
        raise _missing(f"{name!r} is no postmortem: take one of GET /api/runs/{{run}}/postmortems")
    try:
        body = await asyncio.to_thread((folder / name).read_bytes)
    except OSError as error:
        raise _missing(f"there is no {name}; fusewire postmortem writes it") from error
    return web.Response(body=body, headers={"Content-Type": _TYPES[parsed[1]], **_HEADERS})


def listing(folder: Path) -> list[dict[str, Any]]:
    """What lies in a folder of postmortems; ``written_at`` is Unix seconds."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        parsed = parse_name(path.name)
        if parsed is not None and path.is_file():
            entry = found.setdefault(parsed[0], {"attempt": parsed[0], "written_at": 0.0, "files": []})
            entry["files"].append(path.name)
            entry["written_at"] = max(entry["written_at"], path.stat().st_mtime)
    return [found[attempt] for attempt in sorted(found)]


def _folder(request: web.Request) -> Path:
    """Of a run that is guarded here: its name is then one that stays within the runs folder."""
    deps, run = request.app[DEPS], request.match_info["run"]
    try:
        known = deps.engine.view(run).run
    except UnknownRunError as error:
        raise _missing(str(error)) from error
    if deps.runs_dir is None:
        raise _missing("this webhook keeps no run directories")
    return deps.runs_dir / known / FOLDER


def _missing(text: str) -> web.HTTPNotFound:
    body = web.json_response({"error": text, "reason": "unknown"}).text
    return web.HTTPNotFound(text=body, content_type="application/json", headers={"Cache-Control": "no-store"})
