"""Which snapshots are under judgement: found on disk, and how long they have been lying there.

All times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError
from fusewire.snapshots.retention import SnapshotInfo
from fusewire.snapshots.store import SnapshotStore
from fusewire_webhook.breaker.events import Event, SnapshotSeen
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.settings.config import RunConfig
from fusewire_webhook.watch.evidence import last_seen_before, seconds_past, seconds_past_slack
from fusewire_webhook.watch.gate import UNASKED, Verdict, last_step_query, present_signals_query
from fusewire_webhook.watch.prometheus import Prometheus
from fusewire_webhook.watch.survey import Survey
from fusewire_webhook.watch.watched import WatchedSteps

log = logging.getLogger(__name__)

RELIST_SECONDS = 30.0
"""A folder whose modification time says nothing new is listed at least this often."""


UNJUDGED = Verdict(answer="inconclusive", reasons=(f"{UNASKED}first seen now",))


@dataclass(kw_only=True)
class Candidate:
    """A snapshot under judgement."""

    name: str
    step: int
    attempt: int
    seen: float
    """When it was first seen here."""
    lead: float
    """Seconds that it lay there unseen before."""
    slack: float = 0.0
    """By how many seconds it may have been longer."""
    fingerprint: str = ""
    known: set[str] = field(default_factory=set)
    """Signals that the run reported when the snapshot was first seen."""
    next_look: float = 0.0
    verdict: Verdict = UNJUDGED
    damage: tuple[str, ...] | None = None
    """What does not hold on disk; None: not verified yet."""
    verification: asyncio.Task[None] | None = None
    rejected: bool = False
    """Its rejection is journaled and not on disk yet."""


@dataclass(frozen=True, kw_only=True)
class _Listing:
    changed_at: int
    infos: tuple[SnapshotInfo, ...]


@dataclass(kw_only=True)
class Guarded:
    """What the promoter remembers of one run."""

    config: RunConfig
    store: SnapshotStore
    folder: Path
    candidates: dict[str, Candidate] = field(default_factory=dict)
    looked: float | None = None
    """When it was last known which snapshots lie on disk."""
    listed: float = 0.0
    """When they were last listed for that."""
    changed_at: int = -1
    """Modification time of their folder at that time, in ns."""
    settled: bool = False
    """They were listed twice with that time: a change within its granularity is not missed."""
    attempt: int = -1
    attempt_seen: float = 0.0
    signals: set[str] = field(default_factory=set)
    watched: WatchedSteps = field(default_factory=WatchedSteps)
    last_step: float | None = None
    shown: tuple[int, str] | None = None

    def fully_listed(self) -> bool:
        """Has nothing come or gone on disk since the last look? Reads the folder's time: blocks briefly."""
        try:
            return self.settled and _changed_at(self.folder) == self.changed_at
        except OSError:
            return False


class Scanner:
    """Finds new snapshots in the run directories and begins to judge them.

    Args:
        submit: journals an event of a run; true where it is stored.
        scans: most run folders that are listed at once.
    """

    def __init__(
        self,
        runs: Mapping[str, Guarded],
        *,
        prometheus: Prometheus,
        scrape_interval: float,
        submit: Callable[[str, Event], Awaitable[bool]],
        scans: int,
    ) -> None:
        self._runs = runs
        self._prometheus = prometheus
        self._scrape_interval = scrape_interval
        self._submit = submit
        self._scans = scans

    async def scan(self, views: Mapping[str, RunView], facts: Survey) -> None:
        """Look for what is new and forget what is gone."""
        due = sorted(
            (run.looked if run.looked is not None else float("-inf"), name)
            for name, run in self._runs.items()
            if name in views and views[name].attempt >= 0
        )
        listings = await asyncio.to_thread(self._list, [name for _, name in due], facts.now)
        for name, listing in listings.items():
            run = self._runs[name]
            present = {info.name for info in listing.infos}
            for gone in run.candidates.keys() - present:
                del run.candidates[gone]
            new = [info for info in listing.infos if info.name not in run.candidates]
            known = {one["name"]: one for one in views[name].unpromoted}
            view = views[name]
            sights = [
                await self._first_sight(
                    name,
                    run,
                    info,
                    facts,
                    known.get(info.name),
                    ended=view.state == "completed" and view.attempt == info.attempt,
                )
                for info in new
            ]
            if all(sights):
                run.settled = listing.changed_at == run.changed_at
                run.looked, run.listed, run.changed_at = facts.now, facts.now, listing.changed_at

    def _list(self, names: Iterable[str], now: float) -> dict[str, _Listing]:
        """What lies on disk, for the first ``scans`` runs whose folder has changed. Blocks."""
        found: dict[str, _Listing] = {}
        for name in names:
            run = self._runs[name]
            try:
                changed_at = _changed_at(run.folder)
                if run.settled and changed_at == run.changed_at and now - run.listed < RELIST_SECONDS:
                    run.looked = now
                    continue
                found[name] = _Listing(changed_at=changed_at, infos=tuple(run.store.candidates()))
            except (FusewireError, OSError) as error:
                log.warning("the snapshots of run %s cannot be listed: %s", name, error)
            if len(found) >= self._scans:
                break
        return found

    async def _first_sight(
        self,
        name: str,
        run: Guarded,
        info: SnapshotInfo,
        facts: Survey,
        known: Mapping[str, Any] | None,
        *,
        ended: bool,
    ) -> bool:
        """Begin to judge a snapshot; false while Prometheus does not answer (its window then begins later).

        ``known`` is what the journal tells of it: a rejection stays one, and its rules are those of the first time.
        ``ended``: the run has completed with the snapshot's attempt.
        """
        if known is not None and known["rejected"]:
            run.candidates[info.name] = Candidate(
                name=info.name,
                step=info.step,
                attempt=info.attempt,
                seen=facts.now,
                lead=0.0,
                verdict=Verdict(answer="fail", reasons=tuple(known["reasons"])),
                rejected=True,
            )
            return True
        if facts.rules is None:
            return False
        try:
            signals = await self._prometheus.query(present_signals_query(name))
            if run.looked is not None:
                lead, slack = facts.now - max(run.looked, run.attempt_seen), 0.0
            else:
                lead, slack = await self._unseen(name, info, ended=ended)
        except PrometheusError as error:
            log.warning("snapshot %s of run %s is not under judgement yet: %s", info.name, name, error)
            return False
        run.signals |= {sample.labels.get("signal", "") for sample in signals} - {""}
        run.candidates[info.name] = Candidate(
            name=info.name,
            step=info.step,
            attempt=info.attempt,
            seen=facts.now,
            lead=lead,
            slack=slack,
            fingerprint=(known and known["rules"]) or facts.rules.fingerprint,
            known=set(run.signals),
        )
        rules = facts.rules.fingerprint
        return await self._submit(
            name, SnapshotSeen(name=info.name, step=info.step, attempt=info.attempt, rules=rules)
        )

    async def _unseen(self, run: str, info: SnapshotInfo, *, ended: bool) -> tuple[float, float]:
        """For how long a snapshot has lain there before the webhook started, and by how much it may be longer.

        Where the run has completed, its attempt may have ended within moments of the snapshot: the window then
        begins with the last scrape before it.

        Raises:
            PrometheusError: no answer.
        """
        ask, scrape_interval = self._prometheus, self._scrape_interval
        lead = await seconds_past(
            ask, run=run, attempt=info.attempt, step=info.step, scrape_interval=scrape_interval
        )
        if lead or not ended or not await ask.query(last_step_query(run, info.attempt)):
            return lead, seconds_past_slack(scrape_interval)
        before = await last_seen_before(
            ask,
            run=run,
            attempt=info.attempt,
            step=info.step,
            around=info.time,
            scrape_interval=scrape_interval,
        )
        return (0.0, seconds_past_slack(scrape_interval)) if before is None else (await ask.now() - before, 0.0)


def _changed_at(folder: Path) -> int:
    """Modification time in ns; 0: there is no such folder."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
