"""The promoter: one task that watches the snapshots of all runs and lets the gate judge them.

Each round asks Prometheus a handful of questions for all runs at once; only snapshots that the cheap facts do not
hold back cost questions of their own, and at most ``judgements`` of them a round. All times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from fusewire.errors import FusewireError, SnapshotError
from fusewire.snapshots.layout import SNAPSHOTS
from fusewire.snapshots.store import SnapshotStore
from fusewire_webhook.breaker.events import Event, SnapshotJudged, SnapshotRejected, StepsWatched
from fusewire_webhook.breaker.view import RunView, held_back
from fusewire_webhook.errors import PrometheusError, WebhookError
from fusewire_webhook.settings.config import RunConfig
from fusewire_webhook.watch.baselines import Baselines, ask_baselines, clean_baselines
from fusewire_webhook.watch.candidates import UNJUDGED, Candidate, Guarded, Scanner
from fusewire_webhook.watch.evidence import nonfinite_in, read_last_values
from fusewire_webhook.watch.gate import (
    UNASKED,
    UNASKED_FILES,
    Answer,
    GateFacts,
    GatePolicy,
    Verdict,
    collect,
    judge,
)
from fusewire_webhook.watch.prometheus import Prometheus
from fusewire_webhook.watch.survey import Survey, survey
from fusewire_webhook.watch.triprules import RuleSet
from fusewire_webhook.watch.watched import WatchedSteps

log = logging.getLogger(__name__)

VERIFICATIONS = 4
"""Snapshots whose files are read at the same time."""
PUT_AWAY_SECONDS = 5.0
"""Before a rejection that the disk refused is written again."""


class Runs(Protocol):
    """What the promoter needs of the engine."""

    def views(self) -> Iterable[RunView]: ...

    def view(self, run: str) -> RunView: ...

    def submit(self, run: str, event: Event) -> Awaitable[Any]: ...

    def saw(self, run: str, look: StepsWatched) -> bool: ...

    def looked(self, run: str, attempt: int, updates: float | None, *, scrape_interval: float) -> None: ...

    def journal_steps(self, run: str) -> Awaitable[Any]: ...

    def promote(
        self,
        run: str,
        name: str,
        *,
        by: str,
        evidence: dict[str, Any],
        baselines: dict[str, Any],
        verified: bool = False,
    ) -> Awaitable[Any]: ...


class Promoter:
    """Judges the candidates of all runs, and counts the steps that were watched.

    Args:
        store: makes the snapshot store of a run from its folder.
        degraded: what the dead man's switch says against the watch now; empty: nothing.
        on_verdict: told ``(run, answer)`` whenever the answer on a snapshot changes.
        on_baselines: told ``(run, attempt, baselines)`` whenever those of the present attempt change.
        period: seconds between rounds; None: two evaluation intervals.
        judgements: most costly judgements a round; likewise ``scans`` of run folders.
    """

    def __init__(
        self,
        engine: Runs,
        *,
        prometheus: Prometheus,
        runs: Mapping[str, RunConfig],
        runs_dir: Path,
        store: Callable[[Path], SnapshotStore] = SnapshotStore,
        scrape_interval: float = 1.0,
        evaluation_interval: float = 1.0,
        degraded: Callable[[], tuple[str, ...]] = tuple,
        on_verdict: Callable[[str, Answer], object] | None = None,
        on_baselines: Callable[[str, int, Baselines], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        period: float | None = None,
        judgements: int = 16,
        scans: int = 200,
    ) -> None:
        self._engine = engine
        self._prometheus = prometheus
        self._scrape_interval = scrape_interval
        self._evaluation_interval = evaluation_interval
        self._degraded = degraded
        self._on_verdict = on_verdict
        self._on_baselines = on_baselines
        self._clock = clock
        self.period = 2 * evaluation_interval if period is None else period
        self._judgements = judgements
        self._runs = {
            name: Guarded(config=config, store=store(runs_dir / name), folder=runs_dir / name / SNAPSHOTS)
            for name, config in runs.items()
        }
        self._scanner = Scanner(
            self._runs,
            prometheus=prometheus,
            scrape_interval=scrape_interval,
            submit=self._submit,
            scans=scans,
        )
        self._clean_since = clock()
        self._server = ""
        self._rules: RuleSet | None = None
        self._verifying: set[asyncio.Task[None]] = set()
        self._readers = ThreadPoolExecutor(VERIFICATIONS, thread_name_prefix="fusewire-verify")

    async def run(self) -> None:
        """Judge until cancelled; the watched steps and the verdicts that are not journaled yet are, at the end."""
        try:
            while True:
                started = self._clock()
                try:
                    await self.round()
                except Exception:
                    log.exception("a round of the gate failed; nothing was promoted by it")
                await asyncio.sleep(max(0.0, started + self.period - self._clock()))
        finally:
            for task in self._verifying:
                task.cancel()
            self._readers.shutdown(wait=False, cancel_futures=True)
            await self.flush()

    def settled(self, run: str) -> bool:
        """Is no snapshot of the run waiting for a verdict that can still come? True for a run that is not known.

        Reads the time of the snapshots' folder, so it blocks briefly.
        """
        known = self._runs.get(run)
        return known is None or (known.fully_listed() and not self.undecided(run))

    def undecided(self, run: str) -> list[str]:
        """Names of the run's candidates, as far as they are known, on which a verdict can still come."""
        known, view = self._runs[run], self._engine.view(run)
        return [
            candidate.name
            for candidate in known.candidates.values()
            if not (candidate.rejected or candidate.verdict.final or _held(view, candidate))
        ]

    def patience(self, run: str) -> float:
        """T: seconds that must pass after a snapshot of the run, by the rules as they were last seen."""
        return self._policy(run).patience(self._rules)

    def latest(self, run: str) -> list[dict[str, Any]]:
        """The verdict on each candidate of a run, oldest step first, as JSON values."""
        known = self._runs.get(run)
        if known is None:
            return []
        view = self._engine.view(run)
        return [
            {
                "name": candidate.name,
                "step": candidate.step,
                "attempt": candidate.attempt,
                "answer": verdict.answer,
                "reasons": list(verdict.reasons),
                "evidence": verdict.evidence,
            }
            for candidate in sorted(known.candidates.values(), key=lambda c: c.step)
            for verdict in (_standing(view, candidate),)
        ]

    async def round(self) -> None:
        """Look at everything once."""
        facts = await survey(
            self._prometheus,
            scrape_interval=self._scrape_interval,
            degraded=self._degraded(),
            clock=self._clock,
        )
        self._mind_the_watch(facts)
        views = {view.run: view for view in self._engine.views() if view.run in self._runs}
        due: list[str] = []
        for number, (name, view) in enumerate(views.items()):
            if view.live and not facts.errors:
                updates = facts.updates.get((name, view.attempt))
                self._engine.looked(name, view.attempt, updates, scrape_interval=self._scrape_interval)
            look = self._watch(self._runs[name], view, facts)
            if look is not None and self._engine.saw(name, look):
                due.append(name)
            await self._show_baselines(name, self._runs[name], view)
            await _give_way(number)
        await asyncio.gather(*(self._journal_steps(name) for name in due))
        await self._scanner.scan(views, facts)
        ripe: list[tuple[float, RunView, Candidate]] = []
        for number, view in enumerate(views.values()):
            ripe += self._due(view, facts)
            await _give_way(number)
        ripe.sort(key=lambda entry: entry[0])
        for _, view, candidate in ripe[: self._judgements]:
            await self._judge(view, candidate, facts)

    async def flush(self) -> None:
        """Journal the watched steps that are not yet, and why each candidate is not promoted."""
        for name, run in self._runs.items():
            await self._journal_steps(name)
            await asyncio.gather(*(self._journal_verdict(name, candidate) for candidate in run.candidates.values()))

    def _mind_the_watch(self, facts: Survey) -> None:
        """Start every clock again where the watch as a whole was in doubt."""
        if not facts.healthy:
            self._clean_since = facts.now
        elif self._server and facts.server != self._server:
            log.info("Prometheus restarted or reloaded its rules: every snapshot is watched from now on again")
            self._clean_since = facts.now
        self._server = facts.server or self._server
        self._rules = facts.rules or self._rules

    # Watched steps ------------------------------------------------------------------------------------

    def _watch(self, run: Guarded, view: RunView, facts: Survey) -> StepsWatched | None:
        """Count the steps of this look; None: it saw nothing of the attempt."""
        if view.attempt != run.attempt:
            run.attempt, run.attempt_seen, run.last_step = view.attempt, facts.now, None
            run.watched = WatchedSteps()
        step = facts.steps.get((view.run, view.attempt))
        if step is not None:
            if run.last_step is None and step < view.resumed_step:
                log.warning(
                    "run %s: attempt %d was told to go on from %s and reports step %d, before it: does the trainer "
                    "load the snapshot (run.load_snapshot(), or run.resume_from) and count on from its step?",
                    view.run,
                    view.attempt,
                    view.resumed_from,
                    step,
                )
            run.last_step = step if run.last_step is None else max(step, run.last_step)
        seen = int(step) if step is not None and view.live else None
        watched = run.watched.count(seen if facts.healthy and not view.paused else None)
        return None if seen is None else StepsWatched(attempt=view.attempt, step=seen, watched=watched)

    async def _show_baselines(self, name: str, run: Guarded, view: RunView) -> None:
        newest = str(view.promoted[-1]["name"]) if view.promoted else ""
        if run.shown == (view.attempt, newest):
            return
        run.shown = (view.attempt, newest)
        values = await asyncio.to_thread(_baselines, run.store, newest) if newest else {}
        run.signals |= values.keys()
        if self._on_baselines is not None:
            self._on_baselines(name, view.attempt, values)

    # Judgement ----------------------------------------------------------------------------------------

    def _due(self, view: RunView, facts: Survey) -> list[tuple[float, RunView, Candidate]]:
        """The candidates of a run to be judged now, oldest first: none is promoted over an older one that waits."""
        candidates = sorted(self._runs[view.run].candidates.values(), key=lambda c: (c.attempt, c.step))
        ripe: list[Candidate] = []
        for candidate in candidates:
            if self._is_ripe(view, candidate, facts):
                ripe.append(candidate)
            if candidate.verification is not None:
                break
        since = min((candidate.next_look for candidate in ripe), default=float("inf"))
        return [(since, view, candidate) for candidate in ripe] if since <= facts.now else []

    def _is_ripe(self, view: RunView, candidate: Candidate, facts: Survey) -> bool:
        """Judge by the cheap facts; true where only costly ones can tell more, or something is to be done."""
        if candidate.rejected:
            return True
        held = _held(view, candidate)
        if held:
            return self._note(view.run, candidate, Verdict(answer="inconclusive", reasons=(held,)))
        policy = self._policy(view.run)
        verdict = judge(self._facts(view, candidate, facts), policy)
        if verdict.answer != "fail" and candidate.verdict.final:
            return False
        if verdict.answer != "fail" and not _only_unasked(verdict):
            return self._note(view.run, candidate, verdict)
        return verdict.answer == "fail" or candidate.verification is None

    async def _judge(self, view: RunView, candidate: Candidate, facts: Survey) -> None:
        if candidate.rejected:
            await self._put_away(view, candidate)
            return
        policy = self._policy(view.run)
        known = self._facts(view, candidate, facts)
        if known.completed:
            known = await asyncio.to_thread(_as_it_ended, known, self._runs[view.run].folder.parent)
        full = await collect(known, policy, prometheus=self._prometheus, known_signals=candidate.known)
        verdict = judge(full, policy)
        self._note(view.run, candidate, verdict)
        if verdict.reasons == (UNASKED_FILES,):
            self._begin_verification(view.run, candidate, policy)
            return
        candidate.next_look = self._clock() + max(self.period, policy.patience(facts.rules) / 20)
        if verdict.final:
            await self._journal_verdict(view.run, candidate)
        if verdict.answer == "fail":
            await self._reject(view, candidate, verdict)
        elif verdict.answer == "pass" and full.window is not None:
            try:
                baselines = await ask_baselines(
                    self._prometheus,
                    run=view.run,
                    attempt=candidate.attempt,
                    signals=full.window.signals,
                    seconds=full.window_seconds,
                    step=self._scrape_interval,
                )
            except PrometheusError as error:
                self._note(view.run, candidate, Verdict(answer="error", reasons=(str(error),)))
                return
            await self._promote(view.run, candidate, verdict, baselines)

    def _begin_verification(self, name: str, candidate: Candidate, policy: GatePolicy) -> None:
        """Read the files in the background; a later round judges again, with fresh facts and what was found."""
        if candidate.verification is None and len(self._verifying) < self._judgements:
            task = asyncio.create_task(self._verify(name, candidate, policy), name=f"verify {candidate.name}")
            candidate.verification = task
            self._verifying.add(task)
            task.add_done_callback(self._verifying.discard)

    async def _verify(self, name: str, candidate: Candidate, policy: GatePolicy) -> None:
        try:
            candidate.damage = await asyncio.get_running_loop().run_in_executor(
                self._readers, _damage, self._runs[name].store, candidate.name, policy.verify
            )
        except (FusewireError, OSError) as error:
            candidate.next_look = self._clock() + max(self.period, policy.patience(self._rules) / 20)
            self._note(name, candidate, Verdict(answer="error", reasons=(str(error),)))
        finally:
            candidate.verification = None

    async def _promote(self, name: str, candidate: Candidate, verdict: Verdict, baselines: Baselines) -> None:
        held = _held(self._engine.view(name), candidate)
        if held or self._degraded():
            return
        try:
            await self._engine.promote(
                name,
                candidate.name,
                by="gate",
                evidence=verdict.evidence,
                baselines=dict(baselines),
                verified=True,
            )
        except (WebhookError, FusewireError, OSError) as error:
            log.warning("snapshot %s of run %s passed the gate, but: %s", candidate.name, name, error)
            self._note(name, candidate, Verdict(answer="error", reasons=(str(error),), evidence=verdict.evidence))
        else:
            self._runs[name].candidates.pop(candidate.name, None)

    async def _reject(self, view: RunView, candidate: Candidate, verdict: Verdict) -> None:
        candidate.rejected = await self._submit(
            view.run,
            SnapshotRejected(
                name=candidate.name, step=candidate.step, attempt=candidate.attempt, reasons=verdict.reasons
            ),
        )
        if candidate.rejected:
            await self._put_away(view, candidate)

    async def _put_away(self, view: RunView, candidate: Candidate) -> None:
        """Write the journaled rejection beside the snapshot; while the disk refuses it is tried again."""
        run = self._runs[view.run]
        try:
            await asyncio.to_thread(run.store.reject, candidate.name, candidate.verdict.reasons)
        except (FusewireError, OSError) as error:
            log.warning("snapshot %s of run %s could not be put away: %s", candidate.name, view.run, error)
            candidate.next_look = self._clock() + PUT_AWAY_SECONDS
        else:
            run.candidates.pop(candidate.name, None)

    async def _journal_verdict(self, name: str, candidate: Candidate) -> None:
        """Journal why a snapshot is not promoted, unless the journal says that already."""
        view = self._engine.view(name)
        verdict = _standing(view, candidate)
        known = next((one for one in view.unpromoted if one["name"] == candidate.name), None)
        if known is None or known["rejected"] or verdict is UNJUDGED:
            return
        if (verdict.reasons, verdict.final) == (tuple(known["reasons"]), known["final"]):
            return
        await self._submit(
            name,
            SnapshotJudged(
                name=candidate.name,
                step=candidate.step,
                attempt=candidate.attempt,
                answer=verdict.answer,
                reasons=verdict.reasons,
                final=verdict.final,
            ),
        )

    def _facts(self, view: RunView, candidate: Candidate, facts: Survey) -> GateFacts:
        run = self._runs[view.run]
        return GateFacts(
            run=view.run,
            snapshot=candidate.name,
            step=candidate.step,
            attempt=candidate.attempt,
            clean_seconds=facts.now - max(candidate.seen, self._clean_since),
            window_seconds=facts.now - candidate.seen + candidate.lead + candidate.slack,
            alive_seconds=facts.now - candidate.seen + candidate.lead,
            completed=view.state == "completed",
            paused=view.paused,
            last_step=run.last_step,
            rules=facts.rules,
            fingerprint=candidate.fingerprint,
            firing=facts.active(view.run, candidate.attempt, "firing"),
            pending=facts.active(view.run, candidate.attempt, "pending"),
            degraded=facts.degraded,
            errors=facts.errors,
            damage=candidate.damage,
        )

    def _policy(self, name: str) -> GatePolicy:
        config = self._runs[name].config
        return GatePolicy(
            watch_steps=config.snapshots.watch_steps,
            watch_seconds=config.snapshots.watch_seconds,
            window_seconds=config.window_seconds,
            scrape_interval=self._scrape_interval,
            evaluation_interval=self._evaluation_interval,
            verify=config.snapshots.verify,
        )

    def _note(self, run: str, candidate: Candidate, verdict: Verdict) -> bool:
        """Remember a verdict and announce it where the answer is new. Always false: nothing more to do."""
        before, candidate.verdict = candidate.verdict, verdict
        if before is UNJUDGED or verdict.answer != before.answer:
            if self._on_verdict is not None:
                self._on_verdict(run, verdict.answer)
            level = logging.WARNING if verdict.answer == "error" else logging.INFO  # a rejection is an event too
            log.log(
                level,
                "snapshot %s of run %s: %s %s",
                candidate.name,
                run,
                verdict.answer,
                "; ".join(verdict.reasons),
            )
        return False

    async def _journal_steps(self, run: str) -> None:
        try:
            await self._engine.journal_steps(run)
        except WebhookError as error:
            log.warning("watched steps of run %s are not stored yet: %s", run, error)

    async def _submit(self, run: str, event: Event) -> bool:
        try:
            await self._engine.submit(run, event)
        except WebhookError as error:
            log.warning("%s of run %s was not stored: %s", event.kind, run, error)
            return False
        return True


def _as_it_ended(facts: GateFacts, run_dir: Path) -> GateFacts:
    """With what the files of a completed run's attempt say about its end. Reads the disk."""
    values = read_last_values(run_dir, facts.attempt)
    step = values.get("step")
    return replace(facts, final_step=step if isinstance(step, int) else None, nonfinite=tuple(nonfinite_in(values)))


def _only_unasked(verdict: Verdict) -> bool:
    return verdict.answer == "inconclusive" and all(reason.startswith(UNASKED) for reason in verdict.reasons)


def _held(view: RunView, candidate: Candidate) -> str:
    return held_back(view, attempt=candidate.attempt, step=candidate.step)


def _standing(view: RunView, candidate: Candidate) -> Verdict:
    """The verdict as the run stands now: it may have come to rest since the last round."""
    held = "" if candidate.rejected else _held(view, candidate)
    return Verdict(answer="inconclusive", reasons=(held,)) if held else candidate.verdict


async def _give_way(number: int) -> None:
    """Let intake and the engine in between every few runs."""
    if number % 16 == 15:
        await asyncio.sleep(0)


def _damage(store: SnapshotStore, name: str, mode: Literal["full", "sampled"]) -> tuple[str, ...] | None:
    """What does not hold on disk; None: meanwhile the snapshot was put away, which is no fault of its files.

    Raises:
        FusewireError, OSError: it cannot be read now, which is no verdict.
    """
    verification = store.verify(name, mode)
    if verification.ok:
        return ()
    if verification.unreadable:
        raise SnapshotError(f"files: {'; '.join(verification.problems)}", reason="unreadable")
    if all(info.name != name for info in store.candidates()):
        return None
    return verification.problems or ("the files do not match the manifest",)


def _baselines(store: SnapshotStore, name: str) -> Baselines:
    try:
        return clean_baselines(store.baselines(name))
    except (FusewireError, OSError) as error:
        log.warning("no baselines of %s: %s", name, error)
        return {}
