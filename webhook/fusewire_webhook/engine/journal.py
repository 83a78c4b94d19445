"""The journal: every event of every run, append-only in SQLite, durable before anybody acts on it.

One writer thread commits in groups: all events that wait when a commit begins share its fsync, so that the
latency is one fsync and the throughput is not bound by it.
"""

from __future__ import annotations

import asyncio
import json
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

SCHEMA_VERSION = 1
GROUP = 1000
"""Most events of one commit: bounds how long an event waits for its group."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


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
        self._closed = False
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

    async def append(self, run: str, event: Event) -> int:
        """Store the event and return its number once it is on the disk.

        Raises:
            JournalError: it is not stored (disk full, journal closed).
        """
        return await asyncio.shield(self.put(run, event))

    def put(self, run: str, event: Event) -> asyncio.Future[int]:
        """Queue the event; the future resolves when it is on the disk, in the order of the numbers.

        Raises:
            JournalError: the event does not encode, or the journal is closed.
        """
        if self._closed or self._writer is None:
            raise JournalError(f"{self._path}: the journal is closed")
        try:
            payload = _encode(event.payload())
            payload.encode()  # half a surrogate pair would end the writer's transaction
        except (TypeError, ValueError) as error:
            raise JournalError(f"event {event.kind} does not encode as JSON: {error}") from error
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
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
        if not self._closed and self._writer is not None:
            self._closed = True
            self._queue.put(None)
            self._writer.join()

    def _open(self) -> sqlite3.Connection:
        connection = self._connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA busy_timeout = 5000")
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
        with closing(self._open()) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            while True:
                group, more = self._group()
                if group:
                    self._commit(connection, group)
                if not more:
                    return

    def _group(self) -> tuple[list[_Waiting], bool]:
        """All that waits now, at least one; False: the journal is being closed."""
        group: list[_Waiting] = []
        item = self._queue.get()
        while item is not None:
            group.append(item)
            if len(group) >= GROUP:
                return group, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _commit(self, connection: sqlite3.Connection, group: list[_Waiting]) -> None:
        rows = [
            (self._last + number, waiting.run, waiting.event.at, waiting.event.kind, waiting.payload)
            for number, waiting in enumerate(group, start=1)
        ]
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            failure = JournalError(f"{self._path}: not stored: {error}; free disk space or fix the folder")
            _resolve(group, lambda waiting, _: waiting.future.set_exception(failure), self._last)
            return
        first, self._last = self._last, self._last + len(group)
        _resolve(group, lambda waiting, seq: waiting.future.set_result(seq), first)


def _remedy(error: sqlite3.Error) -> str:
    if "malformed" not in str(error):
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
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle_all, batch)
