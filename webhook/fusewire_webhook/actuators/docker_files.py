"""What the docker actuator keeps in the folder of an attempt: what was begun, and how it ended."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fusewire.files import write_atomically, write_json
from fusewire_webhook.actuators import Handle
from fusewire_webhook.actuators.attempt_files import Exit
from fusewire_webhook.actuators.keeper import EXIT_FILE
from fusewire_webhook.errors import ActuatorError

KIND = "docker"
DOCKER_FILE = "docker.json"


@dataclass(frozen=True, kw_only=True)
class Contained:
    """An attempt in a container: the content of a handle, and of ``docker.json``."""

    folder: Path
    run: str
    name: str
    start: str
    endpoint: str
    id: str = ""
    """Empty until the container is known to exist."""
    output: str = ""
    """File that takes the container's output once it has ended."""

    def handle(self) -> Handle:
        """As the journal keeps it."""
        return {"actuator": KIND, "folder": str(self.folder), **self._values()}

    def _values(self) -> dict[str, str]:
        names = ("run", "name", "start", "endpoint", "id", "output")
        return {name: getattr(self, name) for name in names}

    def write(self) -> None:
        """Make it durable. Blocks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / DOCKER_FILE, self._values())

    def forget(self) -> None:
        """It was never started. Blocks."""
        (self.folder / DOCKER_FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> Contained | None:
        """What was begun in this folder; None: nothing. Blocks.

        Raises:
            ActuatorError: the file cannot be read or holds something else.
        """
        path = folder / DOCKER_FILE
        try:
            value = json.loads(path.read_bytes())
            return cls.from_handle({**value, "folder": str(folder)})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, ActuatorError) as error:
            raise ActuatorError(
                f"{path}: cannot be used ({error}); see that the attempt's container does not run, then remove it"
            ) from error

    @classmethod
    def from_handle(cls, handle: Handle) -> Contained:
        """Read a handle.

        Raises:
            ActuatorError: another kind of actuator made it.
        """
        try:
            names = ("run", "name", "start", "endpoint", "id", "output")
            return cls(folder=Path(handle["folder"]), **{name: str(handle[name]) for name in names})
        except (KeyError, TypeError) as error:
            raise ActuatorError(f"handle {handle!r} is none of the docker actuator ({error!r})") from error


def keep(kept: Contained, ended: Exit, output: bytes, *, at: float) -> None:
    """Keep output and exit status of an ended container in the run directory. Blocks.

    Raises:
        OSError: not everything could be written.
    """
    if kept.output:
        write_atomically(Path(kept.output), output, durable=False)
    value = {"code": ended.code, "signal": ended.signal, "oom_kills": ended.oom_kills, "error": ended.error}
    write_json(kept.folder / EXIT_FILE, {**value, "at": at})


def moment(finished: Any) -> float:
    """Unix seconds of the engine's RFC 3339 text; now, where it is none."""
    try:
        return datetime.fromisoformat(finished).timestamp()
    except (TypeError, ValueError):
        return time.time()
