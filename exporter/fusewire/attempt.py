"""Identity and parameters of one attempt, as the supervisor hands them to the trainer.

The webhook assigns them, writes them to ``<runs>/<run>/attempt.json`` before each start, and passes the same
values in the environment, so that a trainer without that file system still gets them. The environment wins.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fusewire.errors import AttemptError, RunNameError
from fusewire.files import write_json

ATTEMPT_FILE = "attempt.json"
ENVIRONMENT_PREFIX = "FUSEWIRE_"

RngPolicy = Literal["restore", "reseed"]

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_run_name(name: str) -> str:
    """Return ``name`` if it can name a run: it becomes a folder and a label value.

    Raises:
        RunNameError: it holds anything but letters, digits, ``_``, ``.`` and ``-``, starts with another
            sign than a letter or digit, or is longer than 100 characters.
    """
    if _RUN_NAME.fullmatch(name) is None:
        raise RunNameError(
            f"run name {name!r} is not usable: take letters, digits, '_', '.' and '-', "
            "starting with a letter or digit, at most 100"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class AttemptParameters:
    """What a trainer is told when it starts. Each field ``x`` is also ``FUSEWIRE_X`` in its environment."""

    run: str = "standalone"
    """Name of the run: one training job, named by its user."""
    run_dir: str = ""
    """Folder of the run, absolute; empty: no supervisor and no snapshots unless the trainer names a folder."""
    attempt: int = 0
    """Number of this start of the process, from 0. Never used twice within a run."""
    algorithm: str = ""
    """Label value that rules may select on, such as ``ppo``; empty where unknown."""
    lr_scale: float = 1.0
    """Factor on the learning rate that the run was configured with, in (0, 1]."""
    seed: int = 0
    """Seed of the attempt. With ``rng="reseed"`` all generators are seeded from it after the restore."""
    rng: RngPolicy = "restore"
    """``restore``: take the snapshot's generator states; ``reseed``: discard them and seed from ``seed``."""
    resume_from: str = ""
    """Absolute path of the snapshot folder to restore; empty: from scratch."""
    exporter_host: str = "127.0.0.1"
    """Address that the exporter binds."""
    exporter_port: int = 0
    """Port that the exporter binds; 0: any free one."""
    window_seconds: float = 10.0
    """Shortest time that a completed run of steps stays visible in ``rl_*_run_min``/``_run_max``."""
    linger_seconds: float = 10.0
    """Longest time that a dying trainer waits to be scraped once more."""
    snapshot_every_steps: int = 0
    """``snapshot_due`` is true at multiples of it; 0: never."""
    return_window_updates: int = 100
    """Updates with a return that the rolling peak and floor of the smoothed return look back on."""

    def __post_init__(self) -> None:
        check_run_name(self.run)
        if self.attempt < 0:
            raise AttemptError(f"attempt {self.attempt} is negative: attempts count from 0")
        if not (math.isfinite(self.lr_scale) and 0 < self.lr_scale <= 1):
            raise AttemptError(f"lr_scale {self.lr_scale} is not in (0, 1]")
        if self.rng not in get_args(RngPolicy):
            raise AttemptError(f"rng {self.rng!r} is unknown: take one of {', '.join(get_args(RngPolicy))}")

    def environment(self) -> dict[str, str]:
        """The ``FUSEWIRE_*`` variables that carry these parameters."""
        return {ENVIRONMENT_PREFIX + name.upper(): str(value) for name, value in asdict(self).items()}

    def write(self, run_dir: Path) -> None:
        """Write ``attempt.json`` into ``run_dir``, atomically and durably."""
        write_json(run_dir / ATTEMPT_FILE, asdict(self))

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> AttemptParameters:
        """Read the parameters from ``FUSEWIRE_*``, and what is missing there from ``attempt.json``.

        The file is read where ``FUSEWIRE_RUN_DIR`` names a folder that holds one of the same attempt.

        Raises:
            AttemptError: a value is not of its field's type, or the file is not readable JSON.
        """
        environ = os.environ if environ is None else environ
        given = {
            field.name: environ[ENVIRONMENT_PREFIX + field.name.upper()]
            for field in fields(cls)
            if ENVIRONMENT_PREFIX + field.name.upper() in environ
        }
        values: dict[str, Any] = {}
        if given.get("run_dir"):
            values = _read_file(Path(given["run_dir"]) / ATTEMPT_FILE)
            if "attempt" in given and str(values.get("attempt")) != given["attempt"]:
                values = {}
        known: dict[str, type[str] | type[int] | type[float]] = {
            field.name: type(getattr(cls, field.name)) for field in fields(cls)
        }
        for name, text in given.items():
            try:
                values[name] = known[name](text)
            except ValueError as error:
                variable = ENVIRONMENT_PREFIX + name.upper()
                raise AttemptError(f"{variable}={text!r} is not a {known[name].__name__}") from error
        try:
            return replace(cls(), **{name: value for name, value in values.items() if name in known})
        except TypeError as error:
            raise AttemptError(f"attempt parameters are not usable: {error}") from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AttemptError(
            f"{path}: cannot be read as JSON ({error}); the webhook rewrites it at each start"
        ) from error
    if not isinstance(value, dict):
        raise AttemptError(f"{path}: holds no JSON object; the webhook rewrites it at each start")
    return value
