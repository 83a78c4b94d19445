"""Mistakes of a configuration, gathered: who wrote three is told of three, not of one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fusewire_webhook.errors import ConfigError


class Problems:
    """What is wrong with one source.

    Args:
        source: the file, or ``command line``; each message begins with it.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: list[str] = []

    def add(self, key: str, what: str) -> None:
        """``what`` is wrong at ``key`` (a dotted path; empty: the whole), with the remedy."""
        self._found.append(f"{self._source}: {key}: {what}" if key else f"{self._source}: {what}")

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """A ConfigError of the block is kept, and the program goes on after it."""
        try:
            yield
        except ConfigError as error:
            self._found.extend(error.problems)

    def refuse(self) -> None:
        """Go on only where nothing is wrong.

        Raises:
            ConfigError: all that was found.
        """
        if self._found:
            raise ConfigError(*self._found)
