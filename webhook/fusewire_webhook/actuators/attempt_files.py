"""What a keeper leaves in the folder of an attempt, read back; and what follows from it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire import attempt_files
from fusewire.files import write_json
from fusewire_webhook.actuators import Handle, Launch
from fusewire_webhook.actuators.keeper import EXIT_FILE, KEEPER_FILE, LOCK_FILE
from fusewire_webhook.actuators.tree import ProcessId
from fusewire_webhook.errors import ActuatorError

log = logging.getLogger(__name__)

STOP_FILE = "stop.json"
MARK_SECONDS = 1.0
"""How long the first signal of a stop waits for :func:`mark_stop`."""


def attempt_folder(run_dir: str, attempt: int) -> Path:
    """``<run_dir>/attempts/<3 digits>``, absolute."""
    return attempt_files.attempt_folder(Path(os.path.abspath(run_dir)), attempt)  # noqa: PTH100 (no file access)


def log_file(launch: Launch) -> Path:
    """The file that takes the output of an attempt."""
    if launch.log_path is not None:
        return Path(launch.log_path).absolute()
    return attempt_folder(launch.run_dir, launch.attempt) / attempt_files.OUTPUT_FILE


@dataclass(frozen=True, kw_only=True)
class KeptAttempt:
    """An attempt that a keeper has started: the content of a handle of the local actuator."""

    folder: Path
    keeper: ProcessId
    root: ProcessId
    boot: str
    pid_namespace: int

    def handle(self) -> Handle:
        """As the journal keeps it."""
        return {
            "actuator": "local",
            "folder": str(self.folder),
            "keeper": {"pid": self.keeper.pid, "start": self.keeper.start},
            "root": {"pid": self.root.pid, "start": self.root.start},
            "boot": self.boot,
            "pid_namespace": self.pid_namespace,
        }

    @classmethod
    def from_handle(cls, handle: Handle) -> KeptAttempt:
        """Read a handle.

        Raises:
            ActuatorError: another kind of actuator made it.
        """
        try:
            return cls(
                folder=Path(handle["folder"]),
                keeper=ProcessId(pid=int(handle["keeper"]["pid"]), start=int(handle["keeper"]["start"])),
                root=ProcessId(pid=int(handle["root"]["pid"]), start=int(handle["root"]["start"])),
                boot=str(handle["boot"]),
                pid_namespace=int(handle["pid_namespace"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ActuatorError(f"handle {handle!r} is none of the local actuator ({error!r})") from error

    @classmethod
    def read(cls, folder: Path) -> KeptAttempt | None:
        """Read ``keeper.json``; None: no keeper has started this attempt.

        Raises:
            ActuatorError: the file cannot be read or holds something else.
        """
        path = folder / KEEPER_FILE
        value = _read(path)
        if value is None:
            return None
        try:
            return cls.from_handle({**value, "folder": str(folder)})
        except ActuatorError as error:
            raise ActuatorError(
                f"{path}: is no keeper's file; see that the attempt is not running, then remove it"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How the root process of an attempt ended."""

    code: int | None
    """128 + n for signal n."""
    signal: int | None = None
    oom_kills: int = 0
    """OOM kills in the cgroup between start and end of the attempt; 0 where the kernel does not tell."""
    error: str = ""
    """Why the command could not be started at all."""
    seconds: float | None = None
    """How long the root lived; None where the keeper did not tell."""

    def reason(self, *, asked: bool) -> str:
        """``oom_kill``, ``preempted``, ``signal`` or empty; ``asked``: this end was our own order."""
        if asked or not self.code:
            return ""
        if self.oom_kills > 0:
            return "oom_kill"
        if self.code == 128 + signal.SIGTERM:
            return "preempted"
        return "signal" if self.signal is not None or 128 < self.code <= 128 + signal.NSIG else ""

    @classmethod
    def read(cls, folder: Path) -> Exit | None:
        """Read ``exit.json``; None: it is not there (yet). A damaged one still says that the root has ended."""
        try:
            value = _read(folder / EXIT_FILE)
            if value is None:
                return None
            return cls(
                code=int(value["code"]),
                signal=value["signal"],
                oom_kills=int(value["oom_kills"] or 0),
                error=str(value["error"]),
                seconds=value.get("seconds"),
            )
        except (ActuatorError, KeyError, TypeError, ValueError) as error:
            log.warning("%s: the exit status is lost (%r)", folder / EXIT_FILE, error)
            return cls(code=None)

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        """Read what waitpid(2) would tell."""
        if os.WIFSIGNALED(status):
            return cls(code=128 + os.WTERMSIG(status), signal=os.WTERMSIG(status))
        return cls(code=os.waitstatus_to_exitcode(status))


def mark_stop(folder: Path) -> None:
    """Keep for later that the end of this attempt was ordered, before the first signal is sent."""
    if stop_marked(folder):
        return
    try:
        write_json(folder / STOP_FILE, {"at": time.time()}, durable=False)  # no boot is survived by the attempt
    except OSError as error:  # such as a full disk: the stop itself matters more
        log.warning("%s: cannot be written (%s)", folder / STOP_FILE, error.strerror)


def stop_marked(folder: Path) -> bool:
    """Was the end of this attempt ordered?"""
    return (folder / STOP_FILE).exists()


def lock_path(folder: Path) -> Path:
    """The file that is locked while the keeper or the trainer lives."""
    return folder / LOCK_FILE


def lives(folder: Path) -> bool | None:
    """Does the keeper or the trainer live? None: no keeper has started this attempt."""
    try:
        with lock_path(folder).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return None
    return False


def unguarded(runs_dir: Path, guarded: Collection[str]) -> list[str]:
    """A sentence about each attempt that lives in a runs folder under a run that is not ``guarded``."""
    found = []
    for folder in sorted(runs_dir.glob(f"*/{attempt_files.ATTEMPTS}/*")):
        run = folder.parents[1].name
        if run in guarded:
            continue
        with contextlib.suppress(ActuatorError, OSError):  # nothing that a keeper has left
            if lives(folder) and (kept := KeptAttempt.read(folder)):
                found.append(
                    f"run {run}: attempt {folder.name} still runs (PID {kept.root.pid}), and nothing guards it: "
                    f"no run {run} is configured; guard it under its name again, or end it"
                )
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ActuatorError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ActuatorError(f"{path}: holds no JSON object")
    return value
