"""How an attempt's process is started, watched and stopped.

One protocol, several ways (``local`` first; docker, Slurm, Kubernetes later), one contract suite
(``tests/actuators/contract.py``). The engine knows no PID, no NVML call and no file path: a handle is
an opaque JSON object that the journal keeps, so that another webhook process can adopt the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Handle = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Everything needed to start one attempt."""

    run: str
    attempt: int
    argv: tuple[str, ...]
    """Command after templates were filled in; never given to a shell."""
    environment: Mapping[str, str]
    """Variables on top of the webhook's own, ``FUSEWIRE_*`` among them."""
    run_dir: str
    cwd: str | None = None
    log_path: str | None = None
    """File that takes stdout and stderr, appended."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known of an attempt's process."""

    phase: Literal["queued", "starting", "running", "exited"]
    exit_code: int | None = None
    """With ``exited``: the code, 128 + n for signal n; None where it was lost."""
    reason: str = ""
    """With ``exited``: ``oom_kill``, ``preempted``, ``signal`` or empty."""
    seconds: float | None = None
    """With ``exited``: how long it lived; None where that is not told."""


@dataclass(frozen=True, kw_only=True)
class Gone:
    """Answer of :meth:`Actuator.stop`: is every process of the attempt gone, and its GPU memory free?"""

    confirmed: bool
    exit_code: int | None = None
    killed: int = 0
    """Processes that needed SIGKILL."""
    gpu: Literal["released", "none", "unknown", "held"] = "unknown"
    reason: str = ""
    """With ``confirmed=False``: what is left, for a person."""


class Actuator(Protocol):
    """Starts, watches and stops attempts. Every method is safe to repeat after a crash of the caller."""

    async def start(self, launch: Launch) -> Handle:
        """Start the attempt, or adopt it where this very attempt was started already.

        Raises:
            ActuatorError: it could not be started, with a message for a person.
        """
        ...

    async def status(self, handle: Handle) -> Status:
        """What the process does now. Never blocks for long."""
        ...

    async def wait(self, handle: Handle) -> Status:
        """Return once the process has exited."""
        ...

    async def stop(self, handle: Handle, *, grace_seconds: float, at_once: bool = False) -> Gone:
        """TERM to the root, grace, TERM to the rest of the tree, KILL, each bounded; then see that all is gone.

        ``at_once``: KILL now, also where another call's grace is under way.
        """
        ...

    async def find(self, run: str, attempt: int, run_dir: str) -> Handle | None:
        """The handle of an attempt that was started but whose start was not journaled; None: never started."""
        ...

    async def close(self) -> None:
        """Let go of resources. Does not stop any attempt."""
        ...
