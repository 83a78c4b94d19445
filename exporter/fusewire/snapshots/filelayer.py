"""Every change that snapshots make to the disk goes through one object.

A test hands in a layer whose ``before`` raises ``OSError`` or kills the process at the n-th effect; nothing has to
be patched for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fusewire.errors import SnapshotError

Hook = Callable[[str, Path], None]

ALIGNMENT = 4096
"""Of offset, length and memory of what is written past the page cache: enough for every common disk."""
DIRECT_BYTES = 1 << 20
"""Less than this in one go is not worth a wait for the disk."""


def _nothing(effect: str, path: Path) -> None:
    """Default hook."""


class FileLayer:
    """Effects on the file system. ``before(effect, path)`` is called ahead of each one."""

    def __init__(self, before: Hook = _nothing) -> None:
        self._before = before

    def make_folder(self, path: Path, *, exist_ok: bool = False) -> None:
        """Create ``path`` and its missing parents."""
        self._before("make_folder", path)
        path.mkdir(parents=True, exist_ok=exist_ok)

    def create(self, path: Path) -> IO[bytes]:
        """Open a new file for unbuffered writing."""
        self._before("create", path)
        return path.open("xb", buffering=0)

    def write(self, file: IO[bytes], data: memoryview, path: Path) -> None:
        """Write all of ``data``: what is large and aligned past the page cache, where the file system can."""
        self._before("write", path)
        if len(data) >= DIRECT_BYTES:
            data = data[_write_direct(file, data[: len(data) - len(data) % ALIGNMENT]) :]
        while data:
            data = data[file.write(data) :]

    def fsync(self, path: Path) -> None:
        """Bring a file's bytes, or a folder's names, to the disk."""
        self._before("fsync", path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target`` in one step."""
        self._before("rename", target)
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Make ``target`` a second name of the file ``source``."""
        self._before("link", target)
        target.hardlink_to(source)

    def symlink(self, target: str, path: Path) -> None:
        """Make ``path`` a symlink that holds ``target``."""
        self._before("symlink", path)
        path.symlink_to(target)

    def unlink(self, path: Path) -> None:
        """Remove a file or symlink; one that is gone already is fine."""
        self._before("unlink", path)
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all that is in it. What cannot be removed stays for the next time."""
        self._before("remove_tree", path)
        shutil.rmtree(path, ignore_errors=True)

    def write_json(self, path: Path, value: Any) -> None:
        """Replace ``path`` by ``value`` as JSON: a crash leaves the old file or the new one."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        data = (json.dumps(value, indent=1) + "\n").encode()
        try:
            # 1. a temporary file beside the target; a leftover of a killed process gives way
            self.unlink(temporary)
            with self.create(temporary) as file:
                self.write(file, memoryview(data), temporary)
            # 2. its bytes reach the disk before its name does
            self.fsync(temporary)
            # 3. the new name replaces the old one in one step
            self._before("rename", path)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        # 4. the rename reaches the disk
        self.fsync(path.parent)


def _write_direct(file: IO[bytes], data: memoryview) -> int:
    """Write without a copy in the page cache; the bytes written, 0 where file system or memory forbid it.

    The copy and its fresh pages are most of what a large file costs the cores, many times so on a virtual machine
    whose host has yet to provide the pages; and they push out of the cache what the training reads.
    """
    direct = getattr(os, "O_DIRECT", 0)  # Linux has it, macOS does not
    if not direct:
        return 0
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | direct)
        return file.write(data)
    except OSError as error:
        # EFAULT: the disk cannot reach memory that a driver maps, such as some pinned memory of a GPU's; a copy can
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT):
            raise
        return 0
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)


def open_beneath(root: Path, relative: str) -> IO[bytes]:
    """Open the regular file ``relative`` under ``root`` for reading, through no symlink.

    Raises:
        SnapshotError: a part of the path is a symlink or no folder, or the file is not a regular one.
        OSError: it cannot be opened, or is missing.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    parts = PurePosixPath(relative).parts
    folder = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            except NotADirectoryError as error:
                raise SnapshotError(
                    f"{root / relative}: {part} is a symlink or a file", reason="damaged"
                ) from error
            os.close(folder)
            folder = inner
        if stat.S_ISLNK(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
            raise SnapshotError(f"{root / relative}: is a symlink", reason="damaged")
        fd = os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)
    file = os.fdopen(fd, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise SnapshotError(f"{root / relative}: is not a regular file", reason="damaged")
    return file


def files_beneath(root: Path) -> tuple[list[str], list[str]]:
    """Relative paths of all ``(regular files, folders)`` under ``root``, each sorted.

    Raises:
        SnapshotError: something there is neither, such as a symlink or a socket.
    """
    files: list[str] = []
    folders: list[str] = []
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                relative = path.relative_to(root).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(relative)
                    pending.append(path)
                elif entry.is_file(follow_symlinks=False):
                    files.append(relative)
                else:
                    raise SnapshotError(
                        f"{path}: is neither a file nor a folder; a snapshot holds no links or devices",
                        reason="state",
                    )
    return sorted(files), sorted(folders)
