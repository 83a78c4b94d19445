"""``GET /api/events``: server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

``overview`` comes first: what ``GET /api/runs`` answers. ``run`` comes for each event of a run: ``{"seq", "at",
"kind", "words", "view"}`` with the run's view after it. ``steps`` comes when the watch saw runs advance, which is
journaled now and then only: the step of each of them. ``watches`` comes when what is known of whether the rules see
a run changed: that, of each of them. ``watch`` comes when the watch or the alerts of unknown runs
changed: the overview without its runs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from fusewire_webhook.breaker.events import Event
from fusewire_webhook.breaker.words import describe
from fusewire_webhook.engine.subscription import Item
from fusewire_webhook.web.api import Handler, dumps, overview, watch
from fusewire_webhook.web.deps import DEPS, STREAMS, Deps
from fusewire_webhook.web.session import cookie_of, seconds_left

LOOK_SECONDS = 0.5
"""No event tells that the watch degrades, nor how far runs have come: both are looked at this often."""
BEAT_SECONDS = 5.0
"""A client that hears nothing for longer takes the connection for lost."""


def routes() -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of what is served here."""
    return [("GET", "/api/events", _events)]


async def end_streams(app: web.Application, *, cookie: str | None = None) -> None:
    """End those of a session's cookie; without one, all of them."""
    for stream, opened_by in tuple(app[STREAMS].items()):
        if cookie is None or opened_by == cookie:
            stream.cancel()


async def _events(request: web.Request) -> web.StreamResponse:
    """Until the client goes, its session ends, or the application does."""
    deps = request.app[DEPS]
    task = asyncio.current_task()
    assert task is not None
    request.app[STREAMS][task] = cookie_of(request)
    token = deps.command_token
    in_session = token is not None and seconds_left(request, token) is not None
    clock = asyncio.get_running_loop().time
    stream = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    following: asyncio.Future[Item] | None = None
    try:
        async with deps.engine.subscribe() as changes:
            await stream.prepare(request)
            told, steps, watches = _marks(deps), deps.engine.steps(), deps.engine.watches()
            await stream.write(_sse("overview", await overview(deps)))
            wrote = looked = clock()
            while True:
                following = following or asyncio.ensure_future(anext(changes))
                await asyncio.wait({following}, timeout=LOOK_SECONDS)
                if in_session and token is not None and seconds_left(request, token) is None:
                    break
                messages = []
                if (marks := _marks(deps)) != told:
                    told = marks
                    messages.append(_sse("watch", dumps(watch(deps))))
                if following.done():
                    messages.append(_sse("run", dumps(_change(deps, *following.result()))))
                    following = None
                if clock() - looked >= LOOK_SECONDS:  # not with each event of a burst: it is asked of all runs
                    looked, before, steps = clock(), steps, deps.engine.steps()
                    if advanced := dict(steps.items() - before.items()):
                        messages.append(_sse("steps", dumps(advanced)))
                    seen, watches = watches, deps.engine.watches()
                    if changed := {run: now for run, now in watches.items() if _mark(seen.get(run)) != _mark(now)}:
                        messages.append(_sse("watches", dumps(changed)))
                if not messages and clock() - wrote >= BEAT_SECONDS:
                    messages.append(b": still here\n\n")
                if messages:
                    await stream.write(b"".join(messages))
                    wrote = clock()
    except (ConnectionResetError, StopAsyncIteration):
        pass  # the client has gone, or reads too slowly: it connects again and begins with the overview
    finally:
        if following is not None:
            following.cancel()
        del request.app[STREAMS][task]
    return stream


def _marks(deps: Deps) -> tuple[Any, ...]:
    """Differ where what :func:`watch` answers does, apart from the age of the beat."""
    status = deps.watch()
    return dict(status.problems), dict(status.remarks), deps.receiver.strangers.version


def _mark(watch: dict[str, Any] | None) -> tuple[str, float] | None:
    """Differs where the watch of a run does, apart from the time of the last step, which the step itself tells."""
    return None if watch is None else (watch["state"], watch["since"])


def _change(deps: Deps, run: str, seq: int, event: Event) -> dict[str, Any]:
    return {
        "seq": seq,
        "at": event.at,
        "kind": event.kind,
        "words": describe(event),
        "view": deps.engine.view(run).to_json(),
    }


def _sse(event: str, data: str) -> bytes:
    return f"event: {event}\ndata: {data}\n\n".encode()
