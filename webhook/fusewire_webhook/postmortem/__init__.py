"""The postmortem of an attempt that tripped: what happened, on what evidence, at what cost, and what to do next.

``<run>/postmortems/`` holds for each such attempt ``attempt-003.md``, ``attempt-003.html`` (complete in itself),
``attempt-003.svg`` (the plots around the trip), ``attempt-003.incident.svg`` (those over several attempts) and
``attempt-003.json`` (what Prometheus had answered, so that a later rebuild does without it). Others need
:func:`postmortem_path` and :func:`postmortem_url` only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote

FOLDER = "postmortems"
"""Within the run directory."""

Suffix = Literal["md", "html", "svg", "incident.svg", "json"]

_NAME = re.compile(r"attempt-(\d{3,9})\.(md|html|svg|incident\.svg|json)", re.ASCII)


def postmortem_path(run_dir: Path, attempt: int, suffix: Suffix = "html") -> Path:
    """Where the postmortem of an attempt lies, whether it is written yet or not."""
    return run_dir / FOLDER / f"attempt-{attempt:03d}.{suffix}"


def postmortem_url(base_url: str, run: str, attempt: int, suffix: Suffix = "html") -> str:
    """Where the webhook at ``base_url`` serves it, behind the command token."""
    name = postmortem_path(Path(), attempt, suffix).name
    return f"{base_url.rstrip('/')}/api/runs/{quote(run, safe='')}/postmortems/{name}"


def parse_name(name: str) -> tuple[int, str] | None:
    """``(attempt, suffix)`` of a postmortem's file name; None: it is no such name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])
