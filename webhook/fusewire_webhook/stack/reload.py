"""Rule files that are edited while ``fusewire run`` goes on: judged, then loaded by the Prometheus it started."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from fusewire_webhook.errors import ConfigError, WebhookError
from fusewire_webhook.stack.binaries import resolve_rule_files
from fusewire_webhook.watch.trouble import Trouble

log = logging.getLogger(__name__)

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
        load: loads these files; StackError where they are not known to be in force.
        period: seconds between two looks; a file that changed between them is still being written.
        retry: seconds after which files are tried again that could not be judged or loaded.
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
        retry: float = 30.0,
    ) -> None:
        self._entries = entries
        self._loaded = self._seen = self._judged = loaded
        self._judge = judge
        self._load = load
        self._say = say
        self._period = period
        self._retry = retry
        self._again_at = math.inf
        """When what was judged last is tried again."""
        self._trouble = Trouble(log, over="the rule files are judged and loaded again")
        self.refused = ""
        """Why what lies there is not in force; empty: it is."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.look()
            except Exception as error:
                self._trouble.tell(logging.ERROR, "a look at the rule files failed: %s", error, trace=True)

    async def look(self) -> None:
        """Look once."""
        found = await asyncio.to_thread(read_rules, self._entries)
        settled, self._seen = found == self._seen, found
        if not settled or (found == self._judged and time.monotonic() < self._again_at):
            return
        self._judged, self._again_at = found, math.inf
        if isinstance(found, str):
            self.refused = _refusal([found])
            return
        # an edit that is taken back is loaded, too: at a restart Prometheus may have read what was refused
        back = found == self._loaded
        try:
            wrong = () if back else await asyncio.to_thread(self._judge)
        except Exception as error:
            self.refused = _refusal([f"they could not be judged: {self._failed(error)}"])
            return
        if wrong:
            self.refused = _refusal(wrong)
            return
        try:
            await self._load(tuple(found))
        except Exception as error:
            self.refused = f"not known to be loaded, tried again every {self._retry:g} s: {self._failed(error)}"
            return
        self._trouble.end()
        before = {} if isinstance(self._loaded, str) else self._loaded
        names = {Path(name).name for name, _ in found.items() ^ before.items()}
        self._loaded, self.refused = found, ""
        self._say(f"rules reloaded: {'as they were' if back else ', '.join(sorted(names))}")

    def _failed(self, error: Exception) -> str:
        """The error in words; the files are tried again."""
        self._again_at = time.monotonic() + self._retry
        if isinstance(error, WebhookError):
            return str(error)
        self._trouble.tell(logging.ERROR, "edited rule files are not loaded: %s", error, trace=True)
        return f"{type(error).__name__}: {error}"


def _refusal(wrong: Sequence[str]) -> str:
    more = f" (and {len(wrong) - 1} more: `fusewire check`)" if len(wrong) > 1 else ""
    return f"not reloaded, the old ones stay: {wrong[0]}{more}"
