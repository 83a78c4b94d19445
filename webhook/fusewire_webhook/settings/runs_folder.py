"""``<runs>/.fusewire``: the journal, the lock, the address of the serving webhook, the servers' folder.

Only one fusewire may guard a runs folder: two would each start a trainer. The lock is an ``flock`` that the kernel
releases with its holder, so nothing stale is left behind; who holds it stands in the file for people.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fusewire.files import write_json
from fusewire_webhook.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServingAddress:
    """How the command line reaches the webhook that serves a runs folder."""

    url: str
    pid: int
    command_token_file: str | None = None
    ca_file: str | None = None
    """Certificate that the listener shows, where it speaks TLS."""


class RunsFolder:
    """The folder of all runs."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.state = self.root / ".fusewire"
        self.journal = self.state / "journal.db"
        self.stack = self.state / "stack"
        self.lock_file = self.state / "lock"
        self.address_file = self.state / "webhook.json"

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: it cannot be created or written.
        """
        try:
            self.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.root}: cannot be used as runs folder: {error.strerror}") from error
        if not os.access(self.state, os.W_OK):
            raise ConfigError(f"{self.root}: not writable; name another folder with --runs")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Guard the folder alone.

        Raises:
            ConfigError: another process guards it; the message names the folder and the process.
        """
        try:
            file = self.lock_file.open("a+")
        except OSError as error:
            raise ConfigError(f"{self.lock_file}: cannot be opened: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise ConfigError(f"{self.lock_file}: cannot be locked: {error.strerror}") from error
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise ConfigError(
                    f"{self.root}: another fusewire guards this folder (PID {holder}); "
                    "stop it, or name another folder with --runs"
                ) from error
            with contextlib.suppress(OSError):  # a full disk: it is for people only
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"{os.getpid()} on {socket.gethostname()}\n".encode())
            yield

    @contextlib.contextmanager
    def runs_locked(self, runs: Iterable[str]) -> Iterator[None]:
        """Guard each run's own folder alone: a link or a mount may lead there from another runs folder too.

        Raises:
            ConfigError: one is guarded already.
        """
        with contextlib.ExitStack() as stack:
            for run in runs:
                folder = self.root / run
                with contextlib.suppress(OSError):  # whoever uses it tells
                    folder.mkdir(exist_ok=True)
                try:
                    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                except OSError:
                    continue
                stack.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise ConfigError(
                        f"{folder}: is guarded already, under another path or name of {folder.resolve()}; "
                        "stop that fusewire, or give the run a folder of its own"
                    ) from error
                except OSError as error:
                    log.warning("%s: cannot be locked: %s", folder, error.strerror)
            yield

    @contextlib.contextmanager
    def announced(self, address: ServingAddress) -> Iterator[None]:
        """Tell the command line where the webhook serves, for as long as it does.

        Where the disk refuses that, the webhook serves all the same: runs are guarded by then.
        """
        try:
            write_json(self.address_file, asdict(address))
        except OSError as error:
            log.error("%s: cannot be written (%s): commands do not find this webhook", self.address_file, error)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self.address_file.unlink(missing_ok=True)

    def address(self) -> ServingAddress | None:
        """Where the webhook serves; None where none does, as far as the file says."""
        try:
            value = json.loads(self.address_file.read_bytes())
            return ServingAddress(**value)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.address_file}: cannot be read ({error}); delete it if nothing serves"
            ) from error
