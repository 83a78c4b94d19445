"""Secrets that cannot be printed by accident.

A token is read from a file (never from an argument or a variable: those stand in the process list) and kept in
a :class:`Secret`, whose representation shows nothing and which can only be compared.
"""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from typing import NoReturn

from fusewire_webhook.errors import ConfigError

_SHORTEST = 16


class Secret:
    """A token. ``repr``, ``str`` and ``format`` show ``<secret>``; it is never pickled or serialised."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.encode()

    def matches(self, candidate: str) -> bool:
        """Whether ``candidate`` is the secret, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(self._value, candidate.encode(errors="surrogateescape"))

    def reveal(self) -> str:
        """The token itself, for the request header of a client. Never log it."""
        return self._value.decode()

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")


def read_secret(path: str | Path, *, key: str) -> Secret:
    """The token in the first line of a file.

    Args:
        key: the configuration key that names the file, for the message.

    Raises:
        ConfigError: the file cannot be read, is empty, or holds fewer than 16 characters.
    """
    try:
        text = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path}: the token cannot be read ({_why(error)})") from error
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{key}: {path}: holds no usable token: one line of at least {_SHORTEST} printable ASCII "
            f"characters without blanks, for example from: openssl rand -hex 32 > {path}"
        )
    return Secret(text)


def exposed(path: str | Path) -> bool:
    """Whether every user of this host can read the file."""
    return bool(Path(path).stat().st_mode & stat.S_IROTH)


def _why(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "it is not text"
