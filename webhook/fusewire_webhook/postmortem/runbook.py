"""The runbooks that come with fusewire, as a postmortem shows them."""

from __future__ import annotations

import re

from fusewire_webhook.settings import packs

_ADDRESS = re.compile(r"docs/runbooks/(\w{1,80})\.md", re.ASCII)

Sections = tuple[tuple[str, str], ...]
"""(heading, text), in the order of the file."""


def read_runbook(address: str) -> tuple[str, Sections] | None:
    """Name and sections of the runbook that a ``runbook_url`` of the pack names; None: there is none here."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    try:
        return match[1], sections((packs.runbooks() / f"{match[1]}.md").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def sections(markdown: str) -> Sections:
    """A runbook's sections in plain words: without marks, a line for each paragraph, item or row."""
    parts = re.split(r"^## (.+)\n", markdown, flags=re.MULTILINE)[1:]
    return tuple((heading.strip(), _plain(text)) for heading, text in zip(parts[::2], parts[1::2], strict=True))


def _plain(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith("```") or re.fullmatch(r"[|\- ]+", bare):
            lines.append("")
        elif lines and lines[-1] and not bare.startswith(("- ", "|")):
            lines[-1] += f" {bare}"
        else:
            lines.append(f"• {bare[2:]}" if bare.startswith("- ") else bare.strip("| ").replace(" | ", ": "))
    text = "\n".join(line for line in lines if line)
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "").replace("**", "")
