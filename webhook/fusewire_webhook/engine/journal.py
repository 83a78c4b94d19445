"""The journal: every event of every run, append-only in SQLite, durable before anybody acts on it.

One writer thread commits in groups: all events that wait when a commit begins share its fsync, so that the
latency is one fsync and the throughput is not bound by it. Whatever goes wrong with a group is told to everybody
who waits for it, and the next group is tried afresh: nobody waits for an answer that cannot come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fusewire_webhook.breaker.events import Event, decode
from fusewire_webhook.errors import JournalError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
GROUP = 1000
"""Most events of one commit: bounds how long an event waits for its group."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the journal."""

    seq: int
    run: str
    event: Event


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    run: str
    event: Event
    payload: str
    future: asyncio.Future[int]


class Journal:
    """The journal file. One process at a time may write it; any number may read.

    Args:
        path: the database; its folder must exist.
        read_only: only :meth:`read` is wanted; the file must exist.
        connect: opens a connection, as ``sqlite3.connect`` does.

    Raises:
        JournalError: it cannot be opened, is no journal, or was written by a newer fusewire.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._path = path
        self._connect = connect
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed = "opened for reading only" if read_only else ""
        self._turn = threading.Lock()  # nothing is queued once it is closed
        self._trouble = ""
        self._writer: threading.Thread | None = None
        if read_only and not path.is_file():
            raise JournalError(f"{path}: there is no journal; has the webhook ever run in this folder?")
        try:
            with closing(self._open()) as connection:
                self._last = self._prepare(connection, read_only=read_only)
        except sqlite3.Error as error:
            raise JournalError(f"{path}: cannot be opened as a journal: {error}{_remedy(error)}") from error
        if not read_only:
            self._writer = threading.Thread(target=self._write, name="journal", daemon=True)
            self._writer.start()

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    @property
    def trouble(self) -> str:
        """Why nothing is stored at present; empty: the last commit was."""
        return self._trouble

    async def append(self, run: str, event: Event) -> int:
        """Store the event and return its number once it is on the disk.

        Raises:
            JournalError: it is not stored (disk full, journal closed), or nobody can say.
        """
        return await asyncio.shield(self.put(run, event))

    def put(self, run: str, event: Event) -> asyncio.Future[int]:
        """Queue the event; the future resolves when it is on the disk, in the order of the numbers.

        Raises:
            JournalError: the event does not encode, or the journal is closed.
        """
        try:
            payload = _encode(event.payload())
            payload.encode()  # half a surrogate pair would end the writer's transaction
        except (TypeError, ValueError) as error:
            raise JournalError(f"event {event.kind} does not encode as JSON: {error}") from error
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._turn:
            if self._closed:
                raise JournalError(f"{self._path}: the journal is {self._closed}")
            self._queue.put(_Waiting(run=run, event=event, payload=payload, future=future))
        return future

    def read(self, run: str | None = None, after: int = 0, limit: int = -1) -> Iterator[Entry]:
        """The entries of one run, or of all, after a number, oldest first; at most ``limit`` if it is not negative.

        Blocks on the disk: call it from a thread where that matters.

        Raises:
            JournalError: the file cannot be read, or holds a kind of event that this fusewire does not know.
        """
        where = "seq > :after" if run is None else "run = :run AND seq > :after"
        sql = f"SELECT seq, run, at, kind, payload FROM journal WHERE {where} ORDER BY seq LIMIT :limit"
        try:
            with closing(self._open()) as connection:
                for seq, name, at, kind, payload in connection.execute(
                    sql, {"run": run, "after": after, "limit": limit}
                ):
                    yield Entry(seq=seq, run=name, event=decode(kind, at, json.loads(payload)))
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be read: {error}{_remedy(error)}") from error
        except KeyError as error:
            raise JournalError(
                f"{self._path}: holds events of kind {error}, which a newer fusewire wrote; use that one"
            ) from error

    def last_seq(self) -> int:
        """Number of the newest entry; 0: none."""
        try:
            with closing(self._open()) as connection:
                return int(connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0])
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be read: {error}{_remedy(error)}") from error

    def close(self) -> None:
        """Store what is queued and let go of the file. Safe to repeat."""
        if self._writer is None:
            return
        with self._turn:
            if not self._closed:
                self._closed = "closed"
                self._queue.put(None)
        self._writer.join()

    def _open(self) -> sqlite3.Connection:
        connection = self._connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _prepare(self, connection: sqlite3.Connection, *, read_only: bool) -> int:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"{self._path}: schema {version} was written by a newer fusewire (this one knows "
                f"{SCHEMA_VERSION}); use that one"
            )
        if version == 0:
            if read_only or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise JournalError(f"{self._path}: is a database, but no fusewire journal")
            connection.execute("PRAGMA journal_mode = WAL")
            schema = resources.files(__package__).joinpath("journal.sql").read_text(encoding="utf-8")
            connection.executescript(f"BEGIN;\n{schema}\nCOMMIT;")
        return int(connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0])

    def _write(self) -> None:
        """The writer thread."""
        connection: sqlite3.Connection | None = None
        group: list[_Waiting] = []
        more = True
        try:
            while more:
                group = []
                more = self._gather(group)
                if group:
                    connection = self._commit(connection, group)
        except Exception as error:
            log.critical("%s: the writer has died; restart the webhook", self._path, exc_info=True)
            self._die(group, error)
        finally:
            _let_go(connection)

    def _gather(self, group: list[_Waiting]) -> bool:
        """Fill the group with all that waits now, at least one; False: the journal is being closed."""
        item = self._queue.get()
        while item is not None:
            group.append(item)
            if len(group) >= GROUP:
                return True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False

    def _commit(self, connection: sqlite3.Connection | None, group: list[_Waiting]) -> sqlite3.Connection | None:
        """Store a group and tell who waits for it. The connection for the next one; None: a new one is needed."""
        try:
            connection = connection or self._open()
            rows = [
                (self._last + number, waiting.run, waiting.event.at, waiting.event.kind, waiting.payload)
                for number, waiting in enumerate(group, start=1)
            ]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")
        except Exception as error:
            remedy = "; free disk space or fix the folder" if isinstance(error, sqlite3.Error) else ""
            self._refuse(group, f"not stored: {_words(error)}{remedy}")
            return _rolled_back(connection)
        self._trouble = ""
        first, self._last = self._last, self._last + len(group)
        _resolve(group, lambda waiting, seq: waiting.future.set_result(seq), first)
        return connection

    def _die(self, group: list[_Waiting], error: Exception) -> None:
        """Take no further event, and leave nobody waiting."""
        with self._turn:
            self._closed = f"closed, as its writer has died ({_words(error)}); restart the webhook"
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    group.append(item)
        self._refuse(group, f"the journal is {self._closed}")

    def _refuse(self, group: list[_Waiting], why: str) -> None:
        self._trouble = f"{self._path}: {why}"
        failure = JournalError(self._trouble)
        _resolve(group, lambda waiting, _: waiting.future.set_exception(failure), self._last)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _rolled_back(connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
    """The connection, fit for the next transaction; None where that cannot be had of it."""
    try:
        if connection is not None and connection.in_transaction:
            connection.execute("ROLLBACK")
    except Exception:
        _let_go(connection)
        return None
    return connection


def _let_go(connection: sqlite3.Connection | None) -> None:
    """Close it; what was begun on it is not stored."""
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _remedy(error: sqlite3.Error) -> str:
    if not any(words in str(error) for words in ("malformed", "not a database")):
        return ""
    return "; put a copy back, or move it away with its -wal file: the runs then go on from their newest snapshots"


def _resolve(group: list[_Waiting], settle: Callable[[_Waiting, int], Any], first: int) -> None:
    """Settle the futures in their loops, in order."""

    def settle_all(batch: list[tuple[_Waiting, int]]) -> None:
        for waiting, seq in batch:
            if not waiting.future.done():
                settle(waiting, seq)

    loops: dict[asyncio.AbstractEventLoop, list[tuple[_Waiting, int]]] = {}
    for seq, waiting in enumerate(group, start=first + 1):
        loops.setdefault(waiting.future.get_loop(), []).append((waiting, seq))
    for loop, batch in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(settle_all, batch)
