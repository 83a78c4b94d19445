"""Links that change in one step: a reader sees the old target or the new one, never none."""

from __future__ import annotations

import os
from pathlib import Path

from fusewire.snapshots.filelayer import FileLayer


def swap_link(link: Path, target: Path | None, files: FileLayer) -> None:
    """Point ``link`` at ``target``, relative to the link's folder; None removes the link.

    Raises:
        OSError: the link is as it was.
    """
    if target is None:
        files.unlink(link)
        files.fsync(link.parent)
        return
    text = target.relative_to(link.parent).as_posix()
    if link.is_symlink() and link.readlink().as_posix() == text:
        return
    # 1. a new link under a temporary name; a leftover of a killed process gives way
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    files.unlink(temporary)
    files.symlink(text, temporary)
    # 2. it takes the link's place (a folder or file of that name is refused by the system or replaced)
    files.rename(temporary, link)
    # 3. the rename reaches the disk
    files.fsync(link.parent)


def linked_name(link: Path) -> str | None:
    """Last part of what ``link`` holds; None: it is missing or no symlink.

    Raises:
        OSError: it cannot be looked at.
    """
    return link.readlink().name if link.is_symlink() else None
