"""Nothing that comes from outside becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fusewire_webhook.postmortem import html, markdown
from fusewire_webhook.postmortem.document import Badge, Code, Document, Paragraph, Section, Table, one_line

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "**bold** _it_ `code` ~~no~~ | cell | \\| # head",
    "</pre></td></table><h1>no</h1>",
    "```\n# out of the fence\n```",
    "\x1b[31mred\x1b[0m \x00 \u202eesrever",
    "- item",
    "1. item",
    "# head",
    "&lt;b&gt; &amp; $x$",
    "<http://evil.example>",
    "https://evil.example www.evil.example",
    "---",
]

EXPECTED = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "span", "section", "div", "table",
    "thead", "tbody", "tr", "th", "td", "pre", "strong", "code",
}  # fmt: skip


class Reader(HTMLParser):
    """Counts the tags of a page and gathers its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def document(text: str) -> Document:
    """A document with the text in every place that takes one."""
    return Document(
        title=text,
        badge=Badge(text=text, tone="bad"),
        subtitle=text,
        sections=(
            Section(
                title=text,
                blocks=(
                    Paragraph(text=text),
                    Table(head=(text, "b"), rows=((text, Badge(text=text, tone="good")),)),
                    Code(text=text, caption=text),
                ),
            ),
        ),
    )


PLAIN = document("plain words")


@pytest.mark.parametrize("text", HOSTILE)
def test_html_has_the_tags_of_plain_words(text: str) -> None:
    """A page with hostile text has the very tags and attributes that it has with plain words."""
    expected, found = (Reader(html.render(d, plots={})) for d in (PLAIN, document(text)))
    assert found.tags == expected.tags
    assert found.attributes == expected.attributes
    assert one_line(text) in one_line(found.text)


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_has_the_tags_of_plain_words(text: str) -> None:
    """Rendered by a CommonMark parser with tables, hostile text gives the very tags of plain words."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    expected, found = (Reader(parser.render(markdown.render(d, plots={}))) for d in (PLAIN, document(text)))
    assert found.tags == expected.tags
    assert set(found.tags) <= EXPECTED
    assert one_line(text) in one_line(found.text)


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=60))
def test_any_text_survives_both(text: str) -> None:
    """Whatever the text, both renderings hold its visible signs and no tag of its own."""
    shown = document(f"x{text}x")
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for page in (html.render(shown, plots={}), parser.render(markdown.render(shown, plots={}))):
        reader = Reader(page)
        assert set(reader.tags) <= EXPECTED
        assert one_line(f"x{text}x") in one_line(reader.text)


def test_control_signs_are_gone() -> None:
    """Neither file holds escape sequences or signs that turn the direction of writing."""
    shown = document("\x1b[31mred\x07 \u202eback \u200b")
    for page in (html.render(shown, plots={}), markdown.render(shown, plots={})):
        assert not {sign for sign in page if not sign.isprintable()} - {"\n"}


def test_page_asks_for_nothing() -> None:
    """The page forbids itself scripts and requests, and holds none."""
    page = html.render(PLAIN, plots={"svg": '<?xml version="1.0"?><!DOCTYPE svg><svg id="a"></svg>'})
    assert "default-src &#x27;none&#x27;" in page
    assert {"script", "link", "iframe", "img"}.isdisjoint(Reader(page).tags)
