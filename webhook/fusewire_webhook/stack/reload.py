"""Rule files that are edited while ``fusewire run`` goes on: judged, then loaded by the Prometheus it started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from fusewire_webhook.errors import ConfigError, WebhookError
from fusewire_webhook.stack.binaries import resolve_rule_files

Texts = Mapping[str, bytes]
"""What each rule file holds, by its absolute path."""


def read_rules(entries: Sequence[str | Path]) -> Texts | str:
    """The rule files that files, folders and globs name, as they are now; a text: why that cannot be told."""
    try:
        return {name: Path(name).read_bytes() for name in resolve_rule_files(entries)}
    except (ConfigError, OSError) as error:
        return str(error)


class RuleReload:
    """Looks at the rule files, and has them loaded once an edit is complete and sound.

    Args:
        entries: files, folders and globs.
        loaded: what Prometheus has been started with.
        judge: what is wrong with the files as they lie there, a line for each; called in a thread.
        load: loads these files; StackError where they are not in force.
        period: seconds between two looks; a file that changed between them is still being written.
    """

    def __init__(
        self,
        entries: Sequence[str | Path],
        *,
        loaded: Texts | str,
        judge: Callable[[], Sequence[str]],
        load: Callable[[Sequence[str]], Awaitable[None]],
        say: Callable[[str], None],
        period: float = 1.0,
    ) -> None:
        self._entries = entries
        self._loaded = self._seen = self._judged = loaded
        self._judge = judge
        self._load = load
        self._say = say
        self._period = period
        self.refused = ""
        """Why what lies there is not in force; empty: it is."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            await self.look()

    async def look(self) -> None:
        """Look once."""
        found = await asyncio.to_thread(read_rules, self._entries)
        settled, self._seen = found == self._seen, found
        if not settled or found == self._judged:
            return
        self._judged = found
        if found == self._loaded:  # the edit was taken back
            self.refused = ""
            return
        if isinstance(found, str):
            self.refused = _refusal([found])
            return
        try:
            wrong = await asyncio.to_thread(self._judge)
            if not wrong:
                await self._load(tuple(found))
        except WebhookError as error:
            wrong = [str(error)]
        self.refused = _refusal(wrong) if wrong else ""
        if not wrong:
            before = {} if isinstance(self._loaded, str) else self._loaded
            names = {Path(name).name for name, _ in found.items() ^ before.items()}
            self._say(f"rules reloaded: {', '.join(sorted(names))}")
            self._loaded = found


def _refusal(wrong: Sequence[str]) -> str:
    more = f" (and {len(wrong) - 1} more: `fusewire check`)" if len(wrong) > 1 else ""
    return f"not reloaded, the old ones stay: {wrong[0]}{more}"
