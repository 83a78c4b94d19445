"""Starts a keeper and hears from it what became of the order. Blocking: run it in a thread."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from fusewire_webhook.actuators import Launch, keeper
from fusewire_webhook.actuators.attempt_files import attempt_folder, log_file
from fusewire_webhook.actuators.keeper import ENVIRONMENT_MARK
from fusewire_webhook.errors import ActuatorError


@dataclass(frozen=True, kw_only=True)
class Spawned:
    """What a keeper answered."""

    pid: int
    """The keeper, a child of this process that somebody must reap."""
    state: str
    """``started``, ``exists`` (another keeper has this attempt) or ``failed``."""
    error: str


def spawn_keeper(launch: Launch, *, seconds: float = 30.0) -> Spawned:
    """Start a keeper that shall start ``launch``, and wait at most ``seconds`` for its answer.

    Raises:
        ActuatorError: the folder cannot be written, or the keeper did not start.
    """
    folder, log = attempt_folder(launch.run_dir, launch.attempt), log_file(launch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ActuatorError(f"{error.filename}: cannot be made ({error.strerror})") from error
    order = {
        "folder": str(folder),
        "log": str(log),
        "argv": launch.argv,
        "cwd": launch.cwd,
        "environment": {**os.environ, **launch.environment, ENVIRONMENT_MARK: str(folder)},
    }
    order_read, order_write = os.pipe()
    answer_read, answer_write = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", keeper.__file__],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, order_read, 0),
                (os.POSIX_SPAWN_DUP2, answer_write, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD),
        )
    except OSError as error:
        for fd in (order_write, answer_read):
            os.close(fd)
        raise ActuatorError(f"no process can be started: {error.strerror} ({error.filename or log})") from error
    finally:
        os.close(order_read)
        os.close(answer_write)
    with os.fdopen(order_write, "wb") as orders, os.fdopen(answer_read, "rb") as answers:
        try:
            orders.write(json.dumps(order).encode())
            orders.close()
            answer = _hear(answers.fileno(), time.monotonic() + seconds)
        except BrokenPipeError:
            answer = {}
    if answer.get("state") not in {"started", "exists", "failed"}:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise ActuatorError(f"the keeper of {launch.run} attempt {launch.attempt} did not start; see {log}")
    return Spawned(pid=pid, state=answer["state"], error=answer["error"])


def _hear(fd: int, deadline: float) -> dict[str, Any]:
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        data += chunk
    try:
        answer = json.loads(data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
