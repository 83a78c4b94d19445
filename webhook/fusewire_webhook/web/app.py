"""The HTTP surface: ``build_app(deps)``, one resource or background task per ``cleanup_ctx``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fusewire_webhook.console.routes import add_routes
from fusewire_webhook.postmortem import routes as postmortems
from fusewire_webhook.web import api, discovery, stream
from fusewire_webhook.web.auth import AuthReason, Handler, guard
from fusewire_webhook.web.deps import DEPS, FALLEN, STREAMS, Deps
from fusewire_webhook.web.receiver import LARGEST_BODY_BYTES
from fusewire_webhook.web.unseen import TURNS

log = logging.getLogger(__name__)


def build_app(deps: Deps) -> web.Application:
    """The application; nothing is started before the application is."""
    app = web.Application(client_max_size=LARGEST_BODY_BYTES)
    app[DEPS] = deps
    app[FALLEN] = {}
    app[STREAMS] = {}
    app.on_shutdown.append(stream.end_streams)
    app.cleanup_ctx.extend(deps.resources)
    app.cleanup_ctx.extend(_background(name, run) for name, run in deps.background.items())
    refused = deps.metrics.intake_error
    app.router.add_post("/alerts", guard(deps.alert_token, deps.receiver.handle, refused=refused))
    app.router.add_get("/sd", _discovery(deps))
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/healthz", _alive)
    app.router.add_get("/readyz", _ready)
    app[TURNS] = defaultdict(asyncio.Lock)
    add_routes(app, deps)
    for method, path, handler in (*api.routes(), *stream.routes(), *postmortems.routes()):
        app.router.add_route(method, path, guard(deps.command_token, handler, refused=refused))
    return app


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _ready(request: web.Request) -> web.Response:
    """200 while everything that guards the runs works; else 503 with the reasons."""
    deps = request.app[DEPS]
    status = deps.watch()
    reasons = list(status.reasons)
    reasons += [f"{name} ended: {error}" for name, error in request.app[FALLEN].items()]
    if not_stored := deps.receiver.not_stored or deps.journal_trouble():
        reasons.append(f"journal: {not_stored}")
    told = {"ready": not reasons, "reasons": reasons, "remarks": list(status.remarked)}
    return api.answer(told, status=503 if reasons else 200)


def _discovery(deps: Deps) -> Handler:
    """``/sd``. Who is refused there scrapes nothing: that is told beside the count of all refusals."""

    async def discover(request: web.Request) -> web.Response:
        targets = discovery.document(deps.engine.targets(), scrape_interval_seconds=deps.scrape_interval_seconds)
        deps.discovery("answered", request.remote or "")
        return web.json_response(targets)

    async def told(request: web.Request) -> web.StreamResponse:
        def refused(reason: AuthReason) -> None:
            deps.metrics.intake_error(reason)
            deps.discovery(reason, request.remote or "")

        return await guard(deps.alert_token, discover, refused=refused)(request)

    return told


async def _metrics(request: web.Request) -> web.Response:
    deps = request.app[DEPS]
    watch = deps.watch()
    deps.metrics.monitoring(watch.problems, watch.beat_age)
    text = await asyncio.to_thread(generate_latest, deps.metrics.registry)  # a thousand runs take 100 ms
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _background(
    name: str, run: Callable[[], Coroutine[Any, Any, None]]
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A task for the life of the application. That it ended by itself shows in ``/readyz``."""

    async def context(app: web.Application) -> AsyncIterator[None]:
        async def watched() -> None:
            try:
                await run()
            except Exception as error:
                log.exception("%s ended", name)
                app[FALLEN][name] = f"{type(error).__name__}: {error}"
            else:
                app[FALLEN][name] = "it returned"

        task = asyncio.create_task(watched(), name=name)
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    return context
