"""Durable files: write, fsync, rename, fsync the folder.

A crash at any instant leaves the old file or the new one, never something between
(the order of steps is that of ``atomic_writer.go`` in Kubernetes).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames and new names inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace ``path`` by a file with ``data``, atomically; with ``durable`` also across a power cut.

    Raises:
        OSError: nothing was changed; the temporary file is gone. It names a file.
    """
    # 1. write a temporary file beside the target
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            # 2. its bytes reach the disk before its name does
            if durable:
                os.fsync(file.fileno())
        # 3. the new name replaces the old one in one step
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:  # such as a full disk
            error.filename = str(path)
        raise
    # 4. the rename itself reaches the disk
    if durable:
        fsync_folder(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by ``value`` as indented JSON (see :func:`write_atomically`)."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=True) + "\n"
    write_atomically(path, text.encode(), durable=durable)
