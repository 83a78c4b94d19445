"""Puts the console into the application: its files, signing in and out, and the data of a run's page."""

from __future__ import annotations

import asyncio
import math

from aiohttp import web

from fusewire.errors import FusewireError
from fusewire.snapshots import SnapshotStore
from fusewire_webhook.console import assets, signals
from fusewire_webhook.console.ladder import ladder
from fusewire_webhook.console.timeline import timeline
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.web import session
from fusewire_webhook.web.api import answer, errors_as_json
from fusewire_webhook.web.auth import guard, same_site
from fusewire_webhook.web.deps import DEPS, Deps
from fusewire_webhook.web.stream import end_streams

_FILES, _RUNBOOKS = assets.load(), assets.runbooks()
"""Read when the webhook is imported: its event loop never waits for the disk."""
_LARGEST_PAGE = 1000


def add_routes(app: web.Application, deps: Deps) -> None:
    """Serve the console at ``/``."""
    app.router.add_get("/", _index)
    app.router.add_get("/console/files/{name}", _file)
    app.router.add_get("/console/runbooks/{name}", _runbook)
    app.router.add_get("/console/session", errors_as_json(_session))
    app.router.add_post("/console/session", errors_as_json(_sign_in))
    app.router.add_delete("/console/session", errors_as_json(_sign_out))
    for path, handler in (
        ("timeline", _timeline),
        ("snapshots", _snapshots),
        ("signals", _signals),
        ("signals/{signal}", _signal),
    ):
        guarded = guard(deps.command_token, errors_as_json(handler), refused=deps.metrics.intake_error)
        app.router.add_get(f"/api/runs/{{run}}/{path}", guarded)


async def _index(request: web.Request) -> web.StreamResponse:
    return assets.respond(request, _FILES["index.html"])


async def _file(request: web.Request) -> web.StreamResponse:
    asset = _FILES.get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound(text="the console has no such file\n")
    return assets.respond(request, asset)


async def _runbook(request: web.Request) -> web.StreamResponse:
    asset = _RUNBOOKS.get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound(text="the pack has no such runbook\n")
    return assets.respond(request, asset)


# Session ----------------------------------------------------------------------------------------------------


async def _session(request: web.Request) -> web.StreamResponse:
    """Whether a token is needed, and how long the session still goes on (seconds; null: none is open)."""
    token = request.app[DEPS].command_token
    left = None if token is None else session.seconds_left(request, token)
    return answer({"needed": token is not None, "seconds_left": left})


async def _sign_in(request: web.Request) -> web.StreamResponse:
    """Exchange the command token for a session cookie."""
    deps = request.app[DEPS]
    if not same_site(request) or request.content_type != "application/json":
        deps.metrics.intake_error("forbidden")
        raise web.HTTPForbidden(text="sign in on the console's own page")
    try:
        body = await request.json()
        given = body["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise web.HTTPBadRequest(text='send {"token": "…"}') from error
    token = deps.command_token
    if token is None:
        return answer({"needed": False, "seconds_left": None})
    if not isinstance(given, str) or not token.matches(given.strip()):
        deps.metrics.intake_error("forbidden")
        raise web.HTTPForbidden(text="This is not the command token.")
    lifetime = deps.session_seconds
    response = answer({"needed": True, "seconds_left": lifetime})
    response.set_cookie(
        session.cookie_name(request),
        session.issue(token, until=deps.clock() + lifetime),
        max_age=math.ceil(lifetime),
        httponly=True,
        samesite="Strict",
        secure=request.secure,
    )
    return response


async def _sign_out(request: web.Request) -> web.StreamResponse:
    if not same_site(request):
        raise web.HTTPForbidden(text="sign out on the console's own page")
    if cookie := session.cookie_of(request):
        await end_streams(request.app, cookie=cookie)
    response = answer({"needed": request.app[DEPS].command_token is not None, "seconds_left": None})
    response.del_cookie(session.cookie_name(request), httponly=True, samesite="Strict", secure=request.secure)
    return response


# A run's page -----------------------------------------------------------------------------------------------


async def _timeline(request: web.Request) -> web.StreamResponse:
    """Journal entries newest first; ``before``: only older ones than this number."""
    deps = request.app[DEPS]
    view = deps.engine.view(request.match_info["run"])
    before = int(_number(request, "before", default=view.seq + 1))
    limit = min(int(_number(request, "limit", default=200)), _LARGEST_PAGE)
    return answer(await timeline(deps.read_log, view.run, before=before, limit=limit))


async def _snapshots(request: web.Request) -> web.StreamResponse:
    """The snapshot ladder, newest first."""
    deps = request.app[DEPS]
    run = deps.engine.view(request.match_info["run"]).run
    if deps.runs_dir is None:
        return answer({"run": run, "snapshots": []})
    try:
        found = await asyncio.to_thread(ladder, SnapshotStore(deps.runs_dir / run), deps.verdicts(run))
    except (FusewireError, OSError) as error:
        raise web.HTTPServiceUnavailable(text=f"the snapshots of {run} cannot be read: {error}") from error
    return answer({"run": run, "snapshots": found})


async def _signals(request: web.Request) -> web.StreamResponse:
    """What can be plotted, and which signals each alert's rule names."""
    deps = request.app[DEPS]
    run = deps.engine.view(request.match_info["run"]).run
    named: dict[str, list[str]] = {}
    problem = "" if deps.prometheus is not None else "no Prometheus is connected"
    if deps.prometheus is not None:
        try:
            named = signals.named_by_alerts(await deps.prometheus.rules())
        except PrometheusError as error:
            problem = str(error)
    return answer({"run": run, "signals": signals.catalogue(), "alerts": named, "problem": problem})


async def _signal(request: web.Request) -> web.StreamResponse:
    """One signal from ``start`` to ``end``, in Unix seconds."""
    deps = request.app[DEPS]
    run, signal = deps.engine.view(request.match_info["run"]).run, request.match_info["signal"]
    if not signals.known(signal):
        raise web.HTTPNotFound(text=f"{signal!r} is no signal of the catalogue")
    start, end = _number(request, "start"), _number(request, "end")
    if not 0 < end - start <= signals.LONGEST_SECONDS:
        raise web.HTTPBadRequest(text="'end' must lie after 'start', by at most 31 days")
    if deps.prometheus is None:
        raise PrometheusError("no Prometheus is connected")
    return answer(
        await signals.plot(
            deps.prometheus,
            run,
            signal,
            start=start,
            end=end,
            now=deps.clock(),
            scrape_interval=deps.scrape_interval_seconds,
        )
    )


def _number(request: web.Request, name: str, *, default: float | None = None) -> float:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value < 2**53):
        raise web.HTTPBadRequest(text=f"{name}={text!r} is no number of use here")
    return value
