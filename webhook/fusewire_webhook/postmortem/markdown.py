"""A postmortem as Markdown (CommonMark with GitHub's tables). Every text is escaped: none becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fusewire_webhook.postmortem.document import (
    Badge,
    Block,
    Cell,
    Code,
    Document,
    Link,
    Paragraph,
    Plots,
    Table,
    destination,
    lines,
    one_line,
)

_SPECIAL = re.compile(r"([\\`*_\[\]|~$@])")
_AT_START = re.compile(r"^(?:(?=[#+\-=:](?:[\s#+\-=:]|$))|(\d+)(?=[.)](?:\s|$)))")
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_SIGNS = {"good": "✔", "bad": "✘", "unclear": "?", "plain": ""}


def escape(text: str) -> str:
    """``text`` in one line in which nothing is markup, neither Markdown's nor HTML's."""
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _LINKS.sub(r"\\", _SPECIAL.sub(r"\\\1", plain))
    return _AT_START.sub(r"\1\\", escaped)


def render(document: Document, *, plots: Mapping[str, str]) -> str:
    """The document; ``plots`` are the file names of the pictures beside it by name, where there are any."""
    return "\n".join(_document(document, plots)).rstrip() + "\n"


def _document(document: Document, plots: Mapping[str, str]) -> Iterator[str]:
    yield f"# {escape(document.title)}"
    yield ""
    yield f"**{escape(document.badge.text)}** · {escape(document.subtitle)}"
    for section in document.sections:
        yield ""
        yield f"## {escape(section.title)}"
        for block in section.blocks:
            yield ""
            yield from _block(block, plots)


def _block(block: Block, plots: Mapping[str, str]) -> Iterator[str]:
    match block:
        case Paragraph():
            badge = f"**{escape(block.badge.text)}** " if block.badge is not None else ""
            yield badge + escape(block.text) + "".join(f" {_cell(link)}" for link in block.links)
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
        case Plots() if block.name in plots:
            yield f"![{escape(block.alt)}]({plots[block.name]})"
        case Plots():
            pass


def _row(cells: tuple[Cell, ...]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Badge):
        return f"{_SIGNS[cell.tone]} {escape(cell.text)}"
    if isinstance(cell, Link):
        where = destination(cell)
        return f"[{escape(cell.text)}](<{where}>)" if where else escape(cell.text)
    return escape(cell) or " "
