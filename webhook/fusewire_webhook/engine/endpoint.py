"""Where an attempt's exporter is scraped: the port that it was told, unless it says that it listens elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusewire.attempt import ATTEMPT_FILE
from fusewire.attempt_files import EXPORTER_FILE, attempt_folder
from fusewire_webhook.engine.ports import PortAllocator
from fusewire_webhook.settings.placing import Place

Endpoint = tuple[int, str, int]
"""Attempt, host and port of an exporter."""


class ExporterEndpoint:
    """The endpoint of a run's newest attempt. ``on_disk``, ``news`` and ``assign`` block on the disk."""

    def __init__(self, run_dir: Path, ports: PortAllocator, *, place: Place | None = None) -> None:
        self.present: Endpoint | None = None
        self._run_dir = run_dir
        self._ports = ports
        self._place = Place() if place is None else place
        self._read: tuple[int, int] | None = None

    def on_disk(self, attempt: int) -> Endpoint | None:
        """Where the attempt's exporter listens or was told to; None: nobody told."""
        told = _read_object(self._run_dir / ATTEMPT_FILE)
        return self.news(attempt) or _endpoint(
            attempt, told.get("attempt"), told.get("exporter_host"), told.get("exporter_port")
        )

    def news(self, attempt: int) -> Endpoint | None:
        """Where the attempt's exporter says it listens; None: it says nothing new."""
        path = attempt_folder(self._run_dir, attempt) / EXPORTER_FILE
        try:
            written = (attempt, path.stat().st_mtime_ns)
        except OSError:
            return None
        if written == self._read:
            return None
        said = _read_object(path)
        self._read = written
        return _endpoint(attempt, said.get("attempt"), said.get("host"), said.get("port"))

    def attached(self, attempt: int) -> float | None:
        """When the attempt's exporter last said where it listens, Unix seconds; None: not yet, as far as read."""
        return self._read[1] / 1e9 if self._read is not None and self._read[0] == attempt else None

    def assign(self, attempt: int) -> Endpoint:
        """The endpoint that an interrupted start of this attempt was given, else a new one.

        Raises:
            OSError: no port is free.
        """
        told = self.on_disk(attempt)
        if told is not None:
            return told
        return attempt, self._place.bind or self._ports.host, self._ports.allocate()

    @property
    def reached(self) -> Endpoint | None:
        """The present endpoint as Prometheus reaches it."""
        if self.present is None:
            return None
        attempt, host, port = self.present
        return attempt, self._place.reached(attempt, host), port

    def listen_at(self, endpoint: Endpoint) -> None:
        """The attempt's exporter is scraped there from now on."""
        if self.present is not None and self.present != endpoint:
            self._ports.release(self.present[2])
        self._ports.take(endpoint[2])
        self.present = endpoint

    def forget(self, attempt: int) -> None:
        """The attempt is gone."""
        if self.present is not None and self.present[0] <= attempt:
            self._ports.release(self.present[2])
            self.present = None


def _endpoint(attempt: int, said: Any, host: Any, port: Any) -> Endpoint | None:
    usable = said == attempt and isinstance(host, str) and isinstance(port, int) and 0 < port < 65536
    return (attempt, host, port) if usable else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
