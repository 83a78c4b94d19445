"""The journal: what it stores is on the disk, in order, for ever."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker.events import Command, Event, RolledBack, StopConfirmed, TimerElapsed
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import JournalError

from .doubles import trip


async def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field of an event survives, in order, with numbers that grow by one."""
    events: list[Event] = [
        trip(0, labels={"run": "ü"}, summary="KL 5 \N{MULTIPLICATION SIGN} too high", at=1.5),
        RolledBack(target=None, quarantined=("a", "b"), at=2.0),
        StopConfirmed(attempt=3, exit_code=None, seconds=0.25, at=3.0),
    ]
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert [await journal.append("ppo", event) for event in events] == [1, 2, 3]
    with closing(Journal(tmp_path / "journal.db")) as journal:
        assert [entry.event for entry in journal.read("ppo")] == events
        assert [entry.seq for entry in journal.read(after=1)] == [2, 3]
        assert [entry.seq for entry in journal.read(after=1, limit=1)] == [2]
        assert [*journal.read("other")] == []
        assert await journal.append("other", TimerElapsed(name="x")) == 4
        assert journal.last_seq() == 4


async def test_concurrent_appends_share_commits_and_keep_their_order(tmp_path: Path) -> None:
    """Appends resolve in the order of their numbers, and a thousand need far fewer commits."""
    commits: list[str] = []
    all_wait = threading.Event()

    def trace(sql: str) -> None:
        if sql == "COMMIT":
            commits.append(sql)
            all_wait.wait(60)

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*args, **kwargs)
        connection.set_trace_callback(trace)
        return connection

    resolved: list[int] = []

    async def append(number: int) -> None:
        resolved.append(await journal.append("ppo", TimerElapsed(name=str(number))))

    with closing(Journal(tmp_path / "journal.db", connect=connect)) as journal:
        appends = [asyncio.create_task(append(number)) for number in range(1000)]
        await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*appends)
        assert [entry.event.name for entry in journal.read()] == [str(n) for n in range(1000)]  # type: ignore[attr-defined]
    assert resolved == [*range(1, 1001)]
    assert len(commits) < 5


def test_the_journal_cannot_be_rewritten(tmp_path: Path) -> None:
    """Triggers refuse to change or delete an entry, whoever asks."""
    path = tmp_path / "journal.db"

    async def write() -> None:
        with closing(Journal(path)) as journal:
            await journal.append("ppo", TimerElapsed(name="x"))

    asyncio.run(write())
    with closing(sqlite3.connect(path)) as connection:
        for sql in ("UPDATE journal SET run = 'y'", "DELETE FROM journal"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(sql)


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    """A schema from the future is not guessed at; the message says which version wrote it."""
    path = tmp_path / "journal.db"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    for read_only in (True, False):
        with pytest.raises(JournalError, match=r"journal\.db: schema 2 was written by a newer fusewire"):
            Journal(path, read_only=read_only)


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    """Another database, another file and a missing one are named, and left alone."""
    other, text = tmp_path / "other.db", tmp_path / "notes.txt"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    text.write_text("these are notes, and no database at all\n" * 50)
    with pytest.raises(JournalError, match="no fusewire journal"):
        Journal(other)
    with pytest.raises(JournalError, match=r"notes\.txt: cannot be opened as a journal"):
        Journal(text)
    with pytest.raises(JournalError, match="there is no journal"):
        Journal(tmp_path / "missing.db", read_only=True)
    assert not (tmp_path / "missing.db").exists()


async def test_an_event_of_a_newer_fusewire_is_refused(tmp_path: Path) -> None:
    """Folding around an unknown event would make up a state."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        await journal.append("ppo", TimerElapsed(name="x"))
        with closing(sqlite3.connect(journal.path)) as connection:
            connection.execute("INSERT INTO journal VALUES (2, 'ppo', 0, 'teleported', '{}')")
            connection.commit()
        with pytest.raises(JournalError, match="teleported"):
            list(journal.read())


async def test_a_full_disk_is_an_error_and_the_journal_goes_on_afterwards(tmp_path: Path) -> None:
    """What could not be stored is said to everybody who waits; nothing half-stored stays; later appends work."""
    limits: list[sqlite3.Connection] = []

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        limits.append(sqlite3.connect(*args, **kwargs))
        return limits[-1]

    with closing(Journal(tmp_path / "journal.db", connect=connect)) as journal:
        assert await journal.append("ppo", TimerElapsed(name="first")) == 1
        writer = limits[-1]
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match="not stored: database or disk is full"):
            await journal.append("ppo", trip(0, summary="x" * 100_000))
        writer.execute("PRAGMA max_page_count = 1000000")
        assert await journal.append("ppo", TimerElapsed(name="second")) == 2
        assert [entry.seq for entry in journal.read()] == [1, 2]


@pytest.mark.parametrize("error", [MemoryError(), sqlite3.OperationalError("disk I/O error")])
@pytest.mark.parametrize("undone", [True, False])
async def test_no_error_of_the_writer_leaves_anybody_waiting(
    tmp_path: Path, error: Exception, undone: bool
) -> None:
    """Whatever a commit fails of, and its rollback too, is an error of that group; the next one is stored."""
    failing: list[str] = []

    class Connection(sqlite3.Connection):
        def executemany(self, *args: Any) -> sqlite3.Cursor:
            if failing:
                if undone:
                    failing.clear()
                raise error
            return super().executemany(*args)

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if failing and sql == "ROLLBACK":
                failing.clear()
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *args)

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        return sqlite3.connect(*args, factory=Connection, **kwargs)

    with closing(Journal(tmp_path / "journal.db", connect=connect)) as journal:
        failing.append("now")
        with pytest.raises(JournalError, match="not stored"):
            await asyncio.wait_for(journal.append("ppo", TimerElapsed(name="lost")), 60)
        assert "not stored" in journal.trouble
        assert await asyncio.wait_for(journal.append("ppo", TimerElapsed(name="kept")), 60) == 1
        assert journal.trouble == ""
        assert [entry.event.name for entry in journal.read()] == ["kept"]  # type: ignore[attr-defined]


async def test_a_journal_whose_writer_has_died_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited is told, and whoever comes later too: nothing is taken that nobody would ever store."""
    journal = Journal(tmp_path / "journal.db")
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon_threadsafe
    told: list[str] = []

    def fail_once(*args: Any, **kwargs: Any) -> asyncio.Handle:
        told.append("called")
        if len(told) == 1:
            raise MemoryError
        return call_soon(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", fail_once)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"its writer has died \(MemoryError\); restart the webhook"):
            await asyncio.wait_for(journal.append("ppo", TimerElapsed(name="x")), 60)
    assert "its writer has died" in journal.trouble
    journal.close()


async def test_a_number_that_json_has_not_is_refused_alone(tmp_path: Path) -> None:
    """A NaN is an error of its own event, not of those that share its commit."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        fine = journal.put("ppo", TimerElapsed(name="fine"))
        with pytest.raises(JournalError, match="stop_confirmed does not encode as JSON"):
            journal.put("ppo", StopConfirmed(attempt=0, seconds=float("nan")))
        assert await fine == 1


async def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    """After close an append is an error, not a silence; what was queued before is stored."""
    journal = Journal(tmp_path / "journal.db")
    queued = journal.put("ppo", TimerElapsed(name="x"))
    journal.close()
    journal.close()
    assert await queued == 1
    with pytest.raises(JournalError, match="closed"):
        await journal.append("ppo", TimerElapsed(name="y"))


async def test_a_second_writer_cannot_slip_entries_in(tmp_path: Path) -> None:
    """Two webhooks on one journal: the one whose numbers are taken gets an error, and nothing is overwritten."""
    with closing(Journal(tmp_path / "journal.db")) as one, closing(Journal(tmp_path / "journal.db")) as two:
        await one.append("ppo", TimerElapsed(name="one"))
        with pytest.raises(JournalError, match="not stored"):
            await two.append("ppo", TimerElapsed(name="two"))
        assert [entry.event.name for entry in one.read()] == ["one"]  # type: ignore[attr-defined]


def _append_for_ever(path: Path, told: Any) -> None:
    async def main() -> None:
        journal = Journal(path)
        while True:
            told.send(await journal.append("ppo", Command(verb="pause", who="ann", why="x" * 500)))

    asyncio.run(main())


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    """After SIGKILL of the writing process every acknowledged number is there, without a gap."""
    path = tmp_path / "journal.db"
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_append_for_ever, args=(path, sender))
    child.start()
    try:
        acknowledged = [receiver.recv() for _ in range(50)]
    finally:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    sender.close()
    while receiver.poll():
        try:
            acknowledged.append(receiver.recv())
        except EOFError:
            break
    with closing(Journal(path)) as journal:
        stored = [entry.seq for entry in journal.read()]
    assert stored == [*range(1, len(stored) + 1)]
    assert len(stored) >= acknowledged[-1]


async def test_text_that_is_no_unicode_is_refused_alone(tmp_path: Path) -> None:
    """Half a surrogate pair is an error of its own event; the writer goes on."""
    with closing(Journal(tmp_path / "journal.db")) as journal:
        with pytest.raises(JournalError, match="does not encode"):
            await journal.append("ppo", TimerElapsed(name="\ud800"))
        assert await journal.append("ppo", TimerElapsed(name="fine")) == 1


@pytest.mark.parametrize("what", ["malformed", "not a database"])
async def test_a_damaged_journal_names_the_remedy(tmp_path: Path, what: str) -> None:
    """Whoever finds half a journal, or no journal in its place, reads what to do, not only what SQLite calls it."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    for _ in range(100):
        await journal.append("toy", TimerElapsed(name="x" * 500))
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if what == "malformed" else b"?" * len(data))
    with pytest.raises(JournalError, match=f"{what}; put a copy back, or move it away"):
        list(Journal(path, read_only=True).read())
