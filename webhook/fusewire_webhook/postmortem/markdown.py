"""A postmortem as Markdown (CommonMark with GitHub's tables). Every text is escaped: none becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusewire_webhook.postmortem.document import (
    Badge,
    Block,
    Cell,
    Code,
    Document,
    Paragraph,
    Plots,
    Table,
    lines,
    one_line,
)

_SPECIAL = re.compile(r"([\\`*_\[\]|~$@])")
_AT_START = re.compile(r"^(?:(?=[#+\-=:](?:[\s#+\-=:]|$))|(\d+)(?=[.)](?:\s|$)))")
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_SIGNS = {"good": "✔", "bad": "✘", "unclear": "?"}


def escape(text: str) -> str:
    """``text`` in one line in which nothing is markup, neither Markdown's nor HTML's."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _LINKS.sub(r"\\", _SPECIAL.sub(r"\\\1", plain))
    return _AT_START.sub(r"\1\\", escaped)


def render(document: Document, *, plots: str | None) -> str:
    """The document; ``plots`` is the file name of the picture beside it, None: there is none."""
    return "\n".join(_document(document, plots)).rstrip() + "\n"


def _document(document: Document, plots: str | None) -> Iterator[str]:
    yield f"# {escape(document.title)}"
    yield ""
    yield f"**{escape(document.badge.text)}** · {escape(document.subtitle)}"
    for section in document.sections:
        yield ""
        yield f"## {escape(section.title)}"
        for block in section.blocks:
            yield ""
            yield from _block(block, plots)


def _block(block: Block, plots: str | None) -> Iterator[str]:
    match block:
        case Paragraph():
            yield escape(block.text)
        case Table():
            yield _row(block.head)
            yield "|" + " --- |" * len(block.head)
            yield from (_row(row) for row in block.rows)
        case Code():
            if block.caption:
                yield escape(block.caption)
                yield ""
            text = lines(block.text)
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
            yield f"{fence}text"
            yield text
            yield fence
        case Plots() if plots is not None:
            yield f"![{escape(block.alt)}]({plots})"
        case Plots():
            pass


def _row(cells: tuple[Cell, ...]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Badge):
        return f"{_SIGNS[cell.tone]} {escape(cell.text)}"
    return escape(cell) or " "
