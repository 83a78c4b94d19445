"""A postmortem as one HTML page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import html
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

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy of the page: were a text ever taken for markup, it could still do nothing."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --box: #f6f8fa;
  --good: #116329; --bad: #b42318; --unclear: #7a5500; --good-bg: #dafbe1; --bad-bg: #ffe5e2;
  --unclear-bg: #fff3c4; --link: #0b5cad }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3d444d; --paper: #0d1117;
  --box: #161b22; --good: #7ee2a0; --bad: #ff9a91; --unclear: #f2cc60; --good-bg: #10301c; --bad-bg: #421a17;
  --unclear-bg: #3a2e0a; --link: #7cb8f7 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem }
p, ul { margin: .5rem 0 }
.sub { color: var(--soft) }
.lead { font-size: 1.08rem; background: var(--box); border-left: 4px solid var(--bad); padding: .75rem 1rem }
.lead:has(.good) { border-left-color: var(--good) }
.scroll { overflow-x: auto; margin: .75rem 0 }
table { border-collapse: collapse; width: 100%; min-width: 36rem; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 600; white-space: nowrap }
td:first-child { white-space: nowrap }
pre { background: var(--box); border: 1px solid var(--line); padding: .75rem; overflow-x: auto; font-size: .82rem;
  line-height: 1.4; margin: .5rem 0; max-height: 32rem }
.badge { display: inline-block; padding: .05rem .5rem; border-radius: 1rem; font-weight: 600; font-size: .85rem }
.good { color: var(--good); background: var(--good-bg) }
.bad { color: var(--bad); background: var(--bad-bg) }
.unclear { color: var(--unclear); background: var(--unclear-bg) }
.plain { padding: 0 }
figure { margin: .75rem 0; overflow-x: auto }
figure svg { display: block; width: 100%; max-width: 42rem; height: auto }
a { color: var(--link) }
@media (max-width: 40rem) { body { padding-top: .75rem } h1 { font-size: 1.3rem } h2 { margin-top: 1.5rem }
  pre { white-space: pre-wrap; overflow-wrap: anywhere } .lead { padding: .5rem .75rem; font-size: 1rem }
  table.narrow { min-width: 0; font-size: .82rem } table.narrow td { white-space: normal }
  table.narrow :is(th, td) { padding: .3rem .3rem; white-space: normal; overflow-wrap: anywhere } }
@media print { pre { max-height: none; white-space: pre-wrap } }
"""


def render(document: Document, *, plots: Mapping[str, str]) -> str:
    """The page; ``plots`` are the SVG pictures by name, where there are any."""
    return "\n".join(_document(document, plots)) + "\n"


def _document(document: Document, plots: Mapping[str, str]) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer">'
    yield f"<title>{_text(document.title)}</title><style>{_STYLE}</style></head><body><main>"
    yield f"<h1>{_text(document.title)}</h1>"
    yield f'<p class="sub">{_cell(document.badge)} {_text(document.subtitle)}</p>'
    for section in document.sections:
        name = f' id="{html.escape(section.name)}"' if section.name else ""
        yield f"<section{name}><h2>{_text(section.title)}</h2>"
        for block in section.blocks:
            yield from _block(block, plots)
        yield "</section>"
    yield "</main></body></html>"


def _block(block: Block, plots: Mapping[str, str]) -> Iterator[str]:
    match block:
        case Paragraph():
            badge = f"{_cell(block.badge)} " if block.badge is not None else ""
            links = "".join(f" {_cell(link)}" for link in block.links)
            opening = '<p class="lead">' if block.lead else "<p>"
            yield f"{opening}{badge}{_text(block.text)}{links}</p>"
        case Table():
            head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in block.head)
            fits = ' class="narrow"' if block.narrow else ""
            yield f'<div class="scroll" tabindex="0"><table{fits}><thead><tr>{head}</tr></thead><tbody>'
            for row in block.rows:
                yield "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>"
            yield "</tbody></table></div>"
        case Code():
            if block.caption:
                yield f"<p>{_text(block.caption)}</p>"
            yield f'<pre tabindex="0">{html.escape(lines(block.text))}</pre>'
        case Plots() if block.name in plots:
            yield f'<figure role="img" aria-label="{_text(block.alt)}">{_inline(plots[block.name])}</figure>'
        case Plots():
            pass


def _cell(cell: Cell) -> str:
    if isinstance(cell, Badge):
        return f'<span class="badge {cell.tone}">{_text(cell.text)}</span>'
    if isinstance(cell, Link):
        where = destination(cell)
        return f'<a href="{html.escape(where)}">{_text(cell.text)}</a>' if where else _text(cell.text)
    return _text(cell)


def _text(text: str) -> str:
    return html.escape(one_line(text))


def _inline(svg: str) -> str:
    """The ``svg`` element without what stands before it."""
    match = re.search(r"<svg\b.*</svg>", svg, re.DOTALL)
    return match[0] if match else ""
