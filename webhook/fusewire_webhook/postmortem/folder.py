"""What the run directory says of an attempt: its log, its last values, the snapshots set aside. Bounded reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.errors import SnapshotError
from fusewire.snapshots.layout import QUARANTINE, QUARANTINE_FILE, SNAPSHOTS, parse_name
from fusewire.snapshots.manifest import Manifest, read_manifest
from fusewire_webhook.engine.output import tail
from fusewire_webhook.watch.evidence import read_last_values

LOG_LINES, LOG_BYTES = 80, 32_000


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A snapshot in quarantine."""

    name: str
    reason: str = ""
    size: int | None = None
    """Bytes; None: it is not there any more, or its manifest cannot be read."""
    watermark: Any = None


@dataclass(frozen=True, kw_only=True)
class Files:
    """What was found."""

    step: int | None
    """Last step in the trainer's file of last values."""
    values: Mapping[str, float]
    nonfinite: Mapping[str, int]
    log: str
    """Its last lines; empty: there is none."""
    log_omitted: bool
    """There is more of it."""
    set_aside: tuple[SetAside, ...]
    target_watermark: Any
    """Of the snapshot that was rolled back to; None: it has none, or there is none."""
    origin_watermark: Any
    """Of the snapshot that the attempt started from; likewise."""


def look(
    run_dir: Path, attempt: int, *, quarantined: Sequence[str], target: str | None, origin: str | None
) -> Files:
    """Read them. Whatever is not there or cannot be read is left out."""
    last = read_last_values(run_dir, attempt)
    values, nonfinite = last.get("values"), last.get("nonfinite")
    text, more = tail(run_dir, attempt, lines=LOG_LINES, size=LOG_BYTES)
    aims = [_manifest(run_dir, name) for name in (target, origin)]
    step = last.get("step")
    return Files(
        step=step if isinstance(step, int) else None,
        values={
            str(name): number
            for name, value in (values.items() if isinstance(values, dict) else ())
            if (number := _number(value)) is not None
        },
        nonfinite={
            str(name): value
            for name, value in (nonfinite.items() if isinstance(nonfinite, dict) else ())
            if isinstance(value, int)
        },
        log=text,
        log_omitted=more,
        set_aside=tuple(_set_aside(run_dir, name) for name in quarantined),
        target_watermark=aims[0].replay_watermark if aims[0] else None,
        origin_watermark=aims[1].replay_watermark if aims[1] else None,
    )


def _set_aside(run_dir: Path, name: str) -> SetAside:
    manifest = _manifest(run_dir, name)
    reason = ""
    if parse_name(name) is not None:
        try:
            value = json.loads((run_dir / QUARANTINE / name / QUARANTINE_FILE).read_bytes())
            reason = str(value.get("reason", "")) if isinstance(value, dict) else ""
        except (OSError, ValueError):
            pass
    if manifest is None:
        return SetAside(name=name, reason=reason)
    return SetAside(name=name, reason=reason, size=manifest.size, watermark=manifest.replay_watermark)


def _manifest(run_dir: Path, name: str | None) -> Manifest | None:
    if name is None or parse_name(name) is None:
        return None
    for folder in (SNAPSHOTS, QUARANTINE):
        try:
            return read_manifest(run_dir / folder / name)
        except (SnapshotError, OSError):
            continue
    return None


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return math.nan
