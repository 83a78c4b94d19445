"""What a postmortem is made of, before it is Markdown or HTML: plain text in blocks.

Every text is data, from outside or not: only the renderers write markup, and they escape all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["good", "bad", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Badge:
    """A word that is seen at a glance."""

    text: str
    tone: Tone


Cell = str | Badge


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Running text."""

    text: str
    lead: bool = False
    """The one that is read first."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells below a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text that keeps its lines and its spaces."""

    text: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Plots:
    """The place of the plots."""

    alt: str
    """What they show, for those who cannot see them."""


Block = Paragraph | Table | Code | Plots


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole postmortem."""

    title: str
    badge: Badge
    subtitle: str
    sections: tuple[Section, ...]


def one_line(text: str) -> str:
    """``text`` without anything that does something: control signs, line ends, signs that turn the direction."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def lines(text: str) -> str:
    """The same for text that keeps its lines."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(8).split("\n")
    return "\n".join("".join(sign if sign.isprintable() else "�" for sign in row) for row in rows)
