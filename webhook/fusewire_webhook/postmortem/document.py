"""What a postmortem is made of, before it is Markdown or HTML: plain text in blocks.

Every text is data, from outside or not: only the renderers write markup, and they escape all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_DESTINATION = re.compile(r"#[a-z0-9_-]+|https?://[\w.~:/?#\[\]@!$&*+,;=%-]+", re.ASCII)

Tone = Literal["good", "bad", "unclear", "plain"]


@dataclass(frozen=True, kw_only=True)
class Badge:
    """A word that is seen at a glance."""

    text: str
    tone: Tone


@dataclass(frozen=True, kw_only=True)
class Link:
    """A text that leads to another section of the document (``#name``) or to a web page."""

    text: str
    href: str


Cell = str | Badge | Link


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Running text."""

    text: str
    lead: bool = False
    """The one that is read first."""
    badge: Badge | None = None
    """Stands before it."""
    links: tuple[Link, ...] = ()
    """Stand behind it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells below a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    narrow: bool = False
    """It fits a phone: short words in few columns."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text that keeps its lines and its spaces."""

    text: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Plots:
    """The place of a picture."""

    name: Literal["svg", "incident.svg"]
    """Suffix of its file."""
    alt: str
    """What they show, for those who cannot see them."""


Block = Paragraph | Table | Code | Plots


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]
    name: str = ""
    """What a :class:`Link` calls it."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole postmortem."""

    title: str
    badge: Badge
    subtitle: str
    sections: tuple[Section, ...]


def destination(link: Link) -> str:
    """Where a link may lead: into the document or to a web page; empty: nowhere, it is only its text."""
    return link.href if _DESTINATION.fullmatch(link.href) else ""


def one_line(text: str) -> str:
    """``text`` without anything that does something: control signs, line ends, signs that turn the direction."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def lines(text: str) -> str:
    """The same for text that keeps its lines."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(8).split("\n")
    return "\n".join("".join(sign if sign.isprintable() else "�" for sign in row) for row in rows)
