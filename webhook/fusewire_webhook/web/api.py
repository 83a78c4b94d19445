"""``/api``: what people read and decide, for the CLI and the console.

Every answer is JSON; an error is ``{"error": "one sentence", "reason": "…"}``. ``stream.py`` has what changes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast, get_args, get_type_hints

from aiohttp import web

from fusewire_webhook.breaker.events import Command
from fusewire_webhook.errors import CommandError, JournalError, PrometheusError, UnknownRunError, WebhookError
from fusewire_webhook.web.deps import DEPS, Deps
from fusewire_webhook.web.unseen import TURNS, refuse_unseen

VERBS: tuple[str, ...] = tuple(verb for verb in get_args(get_type_hints(Command)["verb"]) if verb != "shutdown")
"""What a person can decide through the API. ``shutdown`` belongs to the process that serves."""

_LONGEST_TEXT = 2000
_LARGEST_PAGE = 10_000
_KEYS = ("who", "why", "snapshot", "scratch", "confirm", "dismiss", "source", "seen_seq")
_SOURCES = ("cli", "api", "console")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes() -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of everything below ``/api``."""
    return [
        ("GET", "/api/runs", errors_as_json(_runs)),
        ("GET", "/api/runs/{run}", errors_as_json(_run)),
        ("GET", "/api/runs/{run}/log", errors_as_json(_log)),
        ("GET", "/api/runs/{run}/candidates", errors_as_json(_candidates)),
        ("POST", "/api/runs/{run}/{verb}", errors_as_json(_command)),
    ]


def answer(value: Any, *, status: int = 200) -> web.Response:
    """``value`` as JSON. NaN and infinities become null: browsers cannot read them."""
    return web.json_response(value, status=status, headers={"Cache-Control": "no-store"}, dumps=dumps)


async def overview(deps: Deps) -> str:
    """Everything at a glance, as JSON: what ``GET /api/runs`` answers. A thousand runs take 100 ms, in a thread."""
    views, rest = list(deps.engine.views()), watch(deps)
    return await asyncio.to_thread(lambda: dumps({"runs": [view.to_json() for view in views], **rest}))


def watch(deps: Deps) -> dict[str, Any]:
    """What is at a glance besides the runs: the state of the watch, and alerts of runs that are not guarded."""
    status = deps.watch()
    return {
        "monitoring": {
            "degraded": status.degraded,
            "problems": dict(status.problems),
            "remarks": dict(status.remarks),
            "watchdog_age_seconds": status.beat_age,
        },
        "unknown_alerts": deps.receiver.strangers.as_json(),
    }


async def _runs(request: web.Request) -> web.StreamResponse:
    text = await overview(request.app[DEPS])
    return web.json_response(text=text, headers={"Cache-Control": "no-store"})


async def _run(request: web.Request) -> web.StreamResponse:
    return answer(request.app[DEPS].engine.view(request.match_info["run"]).to_json())


async def _log(request: web.Request) -> web.StreamResponse:
    """Entries after number ``after`` (0: from the start), at most ``limit``."""
    deps = request.app[DEPS]
    run = request.match_info["run"]
    deps.engine.view(run)  # an unknown run is 404, not an empty log
    after = _whole(request, "after", default=0)
    limit = min(_whole(request, "limit", default=1000), _LARGEST_PAGE)
    entries = await deps.read_log(run, after, limit)
    return answer({"run": run, "entries": entries})


async def _candidates(request: web.Request) -> web.StreamResponse:
    """Snapshots under judgement, each with the gate's answer and its reasons."""
    deps = request.app[DEPS]
    run = deps.engine.view(request.match_info["run"]).run
    return answer({"run": run, "candidates": deps.verdicts(run)})


async def _command(request: web.Request) -> web.StreamResponse:
    deps = request.app[DEPS]
    run, verb = request.match_info["run"], request.match_info["verb"]
    if verb not in VERBS:
        raise web.HTTPNotFound(text=f"no such command: {verb}; there are {', '.join(VERBS)}")
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send the command as application/json")
    try:
        body = await request.json()
    except (ValueError, RecursionError, web.RequestPayloadError) as error:
        raise _bad(f"the body is not JSON: {error}") from error
    command = command_of(verb, body, at=deps.clock())
    deps.engine.view(run)  # an unknown run gets no turn
    async with request.app[TURNS][run]:
        await refuse_unseen(deps, run, body.get("seen_seq"))
        view = await deps.engine.command(run, command, confirmed=body.get("confirm", False))
    return answer(view.to_json())


def command_of(verb: str, body: Any, *, at: float) -> Command:
    """The command that a body describes.

    Raises:
        web.HTTPBadRequest: ``who`` or ``why`` is missing, or a value is of another type.
    """
    if not isinstance(body, dict):
        raise _bad('send an object such as {"who": "ada", "why": "the critic looks wrong"}')
    unknown = sorted(set(body) - set(_KEYS))
    if unknown:
        raise _bad(f"unknown key {unknown[0]!r}: there are {', '.join(_KEYS)}")
    snapshot, scratch, source = body.get("snapshot"), body.get("scratch", False), body.get("source", "api")
    if not isinstance(snapshot, str | None) or not isinstance(scratch, bool):
        raise _bad("'snapshot' must be a text and 'scratch' true or false")
    if snapshot is not None and scratch:
        raise _bad("'snapshot' and 'scratch' say two things: send one of them")
    dismiss = body.get("dismiss", False)
    if not isinstance(dismiss, bool) or (dismiss and verb != "resume"):
        raise _bad("'dismiss' must be true or false, and goes with resume")
    if not isinstance(body.get("confirm", False), bool):
        raise _bad("'confirm' must be true or false: whether it may pass over stable snapshots")
    if type(body.get("seen_seq", 0)) is not int:
        raise _bad("'seen_seq' must be the journal number of the run's picture that the decision rests on")
    if source not in _SOURCES:
        raise _bad(f"'source' must be one of {', '.join(_SOURCES)}")
    return Command(
        at=at,
        verb=cast(Any, verb),
        who=_sentence(body, "who"),
        why=_sentence(body, "why"),
        snapshot=snapshot,
        scratch=scratch,
        source=source,
        dismiss=dismiss,
    )


def _sentence(body: dict[str, Any], key: str) -> str:
    text = body.get(key)
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_TEXT:
        raise _bad(f"{key!r} is needed, a text: the journal keeps who decided and why")
    return text.strip().encode(errors="replace").decode()


def _bad(text: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=text)


def dumps(value: Any) -> str:
    """Compact JSON without NaN and infinities."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _whole(request: web.Request, name: str, *, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise _bad(f"{name}={text!r} is no whole number")
    return int(text)


def errors_as_json(handler: Handler) -> Handler:
    """Every refusal of ``handler`` as ``{"error", "reason"}``."""

    @functools.wraps(handler)
    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except WebhookError as error:
            status = next((code for cls, code in _STATUS.items() if isinstance(error, cls)), 500)
            return answer({"error": str(error), "reason": error.reason}, status=status)
        except web.HTTPException as error:
            return answer({"error": error.text, "reason": "request"}, status=error.status)

    return wrapped


_STATUS: dict[type[WebhookError], int] = {
    UnknownRunError: 404,
    CommandError: 409,
    JournalError: 503,
    PrometheusError: 503,
}
