"""The processes ``fusewire run`` and ``fusewire serve``: signals, progress, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fusewire_webhook import cli
from fusewire_webhook.actuators import Handle
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.cli.common import counted
from fusewire_webhook.cli.progress import Progress
from fusewire_webhook.service import Service, serving
from fusewire_webhook.settings.config import Config

log = logging.getLogger(__name__)

HURRIED_SECONDS = 5.0
"""How long a second Ctrl-C waits for the end of killed trainers: to see it, and to journal it."""
HURRY_SECONDS = 0.1
"""Between two looks for what still lives in that time: a start may have been under way."""
VERDICT_SLACK_SECONDS = 5.0
"""On top of twice the gate's patience: how long a completed run waits for its last snapshot's verdict."""
PROMOTION_LOOK_SECONDS = 0.2
"""Between two looks whether what a person has asked to promote is."""
PAGE_SECONDS = 30.0
"""How long a locked run waits at most until people are paged, where it is fusewire's Alertmanager that does so."""

MOST_FILES = 65_536
"""Enough for a thousand runs; some programs walk through all numbers up to their limit."""


def guard_until_done(config: Config, *, warnings: Sequence[str] = (), before: Sequence[str] = ()) -> int:
    """Guard the runs until each is completed or locked, or a signal comes. The exit code.

    Args:
        before: what is said of runs that were completed before.
    """
    allow_files()
    return asyncio.run(_guard(config, Progress(warnings=warnings), before))


def serve_until_stopped(config: Config, *, default_port: int, warnings: Sequence[str] = ()) -> int:
    """Guard the runs until a signal comes; trainers go on. The exit code."""
    allow_files()
    return asyncio.run(_serve(config, default_port, Progress(warnings=warnings, service=True)))


def allow_files() -> None:
    """Raise this process's soft limit on open files as far as it may: the usual 1,024 end before 1,000 runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP as events: the first asks for an orderly end, the second for a quick one.

    A terminal that closes sends SIGHUP more than once: that hurries nobody.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self.signal: signal.Signals = signal.SIGINT

    def take(self, number: signal.Signals) -> None:
        """A signal came."""
        if not self.asked.is_set():
            self.asked.set()
        elif number is not signal.SIGHUP:
            self.hurried.set()
        self.signal = number

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as shells have it."""
        return 128 + self.signal


@contextlib.asynccontextmanager
async def interrupts() -> AsyncIterator[Interrupts]:
    """Take SIGINT, SIGTERM and (unless ``nohup`` has them ignored) SIGHUP for the time of the context."""
    loop, taken = asyncio.get_running_loop(), Interrupts()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, taken.take, number)
    try:
        yield taken
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def unless(event: asyncio.Event, awaited: Awaitable[Any]) -> tuple[bool, Any]:
    """(True, result) of ``awaited``; (False, None) where ``event`` came first, and ``awaited`` was cancelled."""
    work = asyncio.ensure_future(awaited)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return (True, await work) if work.done() else (False, None)
    finally:
        waiting.cancel()
        work.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)


async def _guard(config: Config, progress: Progress, before: Sequence[str]) -> int:
    async with interrupts() as taken, contextlib.AsyncExitStack() as stack:
        stack.enter_context(progress)
        started, service = await unless(
            taken.asked, stack.enter_async_context(serving(config, default_port=0, progress=progress.say))
        )
        if not started:
            progress.say("interrupted before anything was started")
            return taken.exit_code
        progress.say(f"console {service.url}/")
        for words in before:
            progress.say(words)
        following = asyncio.ensure_future(progress.follow(service, runs_dir=Path(config.runs_dir)))
        following.add_done_callback(_tell_failure)
        try:
            done, _ = await unless(taken.asked, all_finished(service, config, progress.say))
            if not done:
                progress.say("stopping the trainers (again: kill them at once)")
                await stop(service, config, taken, progress.say)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        views = service.engine.views()
        for view in views:
            progress.result(view, runs_dir=config.runs_dir, verdicts=service.promoter.latest(view.run))
    return exit_code(views) if done else taken.exit_code


def _tell_failure(following: asyncio.Future[None]) -> None:
    """The display may fail; the guarding goes on, and nobody wonders why nothing more is shown."""
    if not following.cancelled() and (error := following.exception()) is not None:
        log.error("nothing more is shown here, the runs stay guarded; `fusewire status` tells", exc_info=error)


async def all_finished(service: Service, config: Config, say: Callable[[str], None]) -> None:
    """Return once every run is finished at the same moment: until then a person may reset or reopen one.

    Waits for the verdict on what a completed run left, and for the page about a locked one, once for each such end;
    and for what a person has asked to promote, however long that takes to verify.
    """
    pages = config.alertmanager.people_file is not None
    seen: set[tuple[Any, ...]] = set()

    async def finished(run: str) -> None:
        view = await service.engine.wait_finished(run)
        if _end(view) not in seen:
            seen.add(_end(view))
            await _heard(service, view, say, pages=pages)
        await _promoted(service, run, say)

    def ended(view: RunView) -> bool:
        return view.finished and _end(view) in seen and not service.engine.state(view.run).promotions

    while True:
        await asyncio.gather(*map(finished, config.runs))
        if all(map(ended, service.engine.views())):
            return


def _end(view: RunView) -> tuple[Any, ...]:
    """One end of a run, which may have more than one: a reset or a reopening starts it again."""
    return view.run, view.state, view.attempt, view.lockouts


async def _heard(service: Service, view: RunView, say: Callable[[str], None], *, pages: bool) -> None:
    """Wait until people are paged about a locked run, or the gate has spoken on what a completed one left."""
    run = view.run
    if view.state == "locked" and pages:
        say(f"{run}: LOCKED, waiting until people are paged, at most {PAGE_SECONDS:.0f} s (Ctrl-C: do not wait)")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAGE_SECONDS):
                await service.paged(run)
    if view.state != "completed" or await asyncio.to_thread(service.promoter.settled, run):
        return
    patience, told = 2 * service.promoter.patience(run) + VERDICT_SLACK_SECONDS, False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while not await asyncio.to_thread(service.promoter.settled, run):  # it looks at the disk
                if not told and service.promoter.undecided(run):
                    told = True
                    say(
                        f"{run}: waiting for the verdict on its last snapshot, at most {patience:.0f} s "
                        "(Ctrl-C: do not wait)"
                    )
                await asyncio.sleep(service.promoter.period)


async def _promoted(service: Service, run: str, say: Callable[[str], None]) -> None:
    """Wait until nothing is left that a person has asked to promote: the next `fusewire run` would not do it."""
    told: set[str] = set()
    while asked := service.engine.state(run).promotions:
        for one in asked:
            if one.name not in told:
                told.add(one.name)
                say(f"{run}: waiting until {one.name} is promoted, as {one.who} asked (Ctrl-C: do not wait)")
        await asyncio.sleep(PROMOTION_LOOK_SECONDS)


async def stop(service: Service, config: Config, taken: Interrupts, say: Callable[[str], None]) -> None:
    """Stop the trainers and journal it.

    A second signal kills them at once, which is journaled as any other end. A journal that stores nothing does not
    save them either: then they are stopped without an entry, and the next start finds them gone.
    """
    why = {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "a closed terminal"}.get(taken.signal, taken.signal.name)
    closing = asyncio.ensure_future(service.engine.close(stop_runs=True, why=why))
    hurried = asyncio.ensure_future(_hurry(service, taken, closing))
    try:
        await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        orderly = closing.done()
    finally:
        hurried.cancel()
        closing.cancel()
        await asyncio.gather(hurried, closing, return_exceptions=True)
    if orderly:
        closing.result()
    else:
        await service.engine.close(stop_runs=False)
    left = _living(service)
    if left:
        say(f"stopping {', '.join(left)} without a journal entry")
        graceful, _ = await unless(taken.hurried, _stop_all(service, left, config))
        if not graceful:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HURRIED_SECONDS):
                    await _kill_all(service, left)


async def _stop_all(service: Service, handles: dict[str, Handle], config: Config) -> None:
    graces = {run: config.runs[run].stop.grace_seconds for run in handles}
    stops = (service.actuator.stop(handle, grace_seconds=graces[run]) for run, handle in handles.items())
    await asyncio.gather(*stops)


async def _kill_all(service: Service, handles: dict[str, Handle]) -> None:
    kills = (service.actuator.stop(handle, grace_seconds=0.0, at_once=True) for handle in handles.values())
    await asyncio.gather(*kills, return_exceptions=True)


async def _hurry(service: Service, taken: Interrupts, closing: asyncio.Future[None]) -> None:
    """After a second signal, kill what lives; return where the orderly end does not come of it soon."""
    await taken.hurried.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HURRIED_SECONDS):
            while not closing.done():
                await _kill_all(service, _living(service))
                await asyncio.wait({closing}, timeout=HURRY_SECONDS)


def _living(service: Service) -> dict[str, Handle]:
    """The attempts whose end is not confirmed."""
    return {view.run: view.handle for view in service.engine.views() if view.live and view.handle is not None}


def exit_code(views: Sequence[RunView]) -> int:
    """3 where a run is locked, 0 where all are completed, else 1."""
    if any(view.state == "locked" for view in views):
        return cli.LOCKED
    return cli.OK if all(view.state == "completed" for view in views) else cli.FAILED


async def _serve(config: Config, default_port: int, progress: Progress) -> int:
    async with interrupts() as taken, contextlib.AsyncExitStack() as stack:
        stack.enter_context(progress)
        started, service = await unless(
            taken.asked,
            stack.enter_async_context(serving(config, default_port=default_port, progress=progress.say)),
        )
        if started:
            with contextlib.suppress(OSError):  # whoever read it is gone
                runs = counted(len(config.runs), "run")
                print(f"fusewire: serving {runs} on {service.url}", file=sys.stderr, flush=True)
            following = asyncio.ensure_future(progress.follow(service, runs_dir=Path(config.runs_dir)))
            following.add_done_callback(_tell_failure)
            await taken.asked.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return cli.OK
