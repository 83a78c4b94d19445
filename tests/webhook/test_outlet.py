"""Output to readers who do not read, or are gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from fusewire_webhook.cli.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reading descriptor and the writing stream of a pipe."""
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        yield read, stream


def test_all_is_written_in_order(pipe: tuple[int, TextIO]) -> None:
    """What was written lies in the pipe once it is drained."""
    read, stream = pipe
    outlet = Outlet(stream)
    for number in range(100):
        print("größe", number, file=outlet)
    outlet.drain(30.0)
    assert os.read(read, 65536).decode() == "".join(f"größe {number}\n" for number in range(100))
    os.close(read)


def test_a_reader_who_is_gone_is_no_error(pipe: tuple[int, TextIO]) -> None:
    """Writing goes on into nothing."""
    read, stream = pipe
    os.close(read)
    outlet = Outlet(stream)
    for _ in range(3):
        assert outlet.write("nobody hears this\n") == 18
        outlet.drain(30.0)


def test_a_reader_who_does_not_read_holds_nobody_up(pipe: tuple[int, TextIO]) -> None:
    """With a full pipe, writing and draining come back, and memory is bounded."""
    read, stream = pipe
    outlet = Outlet(stream)

    def flood() -> None:
        for _ in range(3000):
            outlet.write("x" * 1000)
        outlet.drain(0.01)

    writing = threading.Thread(target=flood, daemon=True)
    writing.start()
    writing.join(30.0)
    assert not writing.is_alive()
    os.close(read)  # lets the thread go


def test_a_stream_that_was_never_there_is_no_error() -> None:
    """``fusewire run >&-`` starts Python without stdout."""
    outlet = Outlet(None)
    assert outlet.write("nobody hears this\n") == 18
    assert not outlet.isatty()
    outlet.drain(30.0)
