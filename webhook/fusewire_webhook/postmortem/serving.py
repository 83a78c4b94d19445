"""Which Prometheus the serving webhook asks, for a ``fusewire postmortem`` beside it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fusewire.files import write_atomically
from fusewire_webhook.settings.runs_folder import RunsFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A Prometheus and how often it scrapes, in seconds."""

    prometheus_url: str
    scrape_interval: float


@contextlib.contextmanager
def announced(folder: RunsFolder, asked: Asked) -> Iterator[None]:
    """Say it for as long as the webhook serves. The file is its owner's alone: a URL may hold a password."""
    path = _path(folder)
    try:
        write_atomically(path, json.dumps(asdict(asked)).encode(), durable=False, mode=0o600)
    except OSError as error:
        log.warning("%s: not written (%s): fusewire postmortem needs --prometheus", path, error.strerror)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def read_address(folder: RunsFolder) -> Asked | None:
    """What the file says; None: there is none, or it is not readable."""
    try:
        return Asked(**json.loads(_path(folder).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _path(folder: RunsFolder) -> Path:
    return folder.state / "prometheus.json"
