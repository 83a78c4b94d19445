"""Everything that guards the runs, put together: what ``fusewire run`` and ``fusewire serve`` have in common."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import ProcessCollector, disable_created_metrics

from fusewire.snapshots import SnapshotStore
from fusewire.snapshots.layout import PROMOTION_FILE
from fusewire_webhook.actuators import Actuator
from fusewire_webhook.actuators.attempt_files import unguarded
from fusewire_webhook.actuators.choice import actuator_of
from fusewire_webhook.breaker.events import MonitoringChanged
from fusewire_webhook.breaker.view import RunView
from fusewire_webhook.breaker.words import describe
from fusewire_webhook.engine.engine import Engine
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import ConfigError, PrometheusError
from fusewire_webhook.postmortem.background import PostmortemWriter
from fusewire_webhook.postmortem.serving import Asked
from fusewire_webhook.settings import packs
from fusewire_webhook.settings.config import Config
from fusewire_webhook.settings.people import read_people
from fusewire_webhook.settings.redact import Secret, read_secret
from fusewire_webhook.settings.rulecheck import configured_problems
from fusewire_webhook.settings.runs_folder import RunsFolder, ServingAddress
from fusewire_webhook.stack import start_stack
from fusewire_webhook.stack.reload import RuleReload, read_rules
from fusewire_webhook.watch.deadman import DeadMansSwitch, WatchStatus
from fusewire_webhook.watch.discovery import DiscoveryWatch
from fusewire_webhook.watch.evidence import PrometheusEvidence
from fusewire_webhook.watch.prometheus import Alertmanager, Prometheus
from fusewire_webhook.watch.promoter import Promoter
from fusewire_webhook.watch.reconcile import Reconciler
from fusewire_webhook.watch.silences import SilenceWatch
from fusewire_webhook.web.app import build_app
from fusewire_webhook.web.deps import Deps
from fusewire_webhook.web.metrics import Metrics
from fusewire_webhook.web.receiver import Receiver
from fusewire_webhook.web.server import bind, listening, tls_context

log = logging.getLogger(__name__)

LOCKED = "BreakerLocked"
"""The alert that pages people about a locked run."""
PAGING_SECONDS = 5.0
"""How long Alertmanager may take to tell people of an alert that it has."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """What guards the runs, running."""

    engine: Engine
    deadman: DeadMansSwitch
    promoter: Promoter
    actuator: Actuator
    url: str
    prometheus_url: str
    alertmanager_url: str
    alertmanager: Alertmanager

    async def paged(self, run: str) -> None:
        """Return once Alertmanager has been told that the run is locked, and has had the time to tell people."""
        while True:
            with contextlib.suppress(PrometheusError):
                alerts = await self.alertmanager.alerts()
                if any((one.labels.get("alertname"), one.labels.get("run")) == (LOCKED, run) for one in alerts):
                    break
            await asyncio.sleep(0.5)
        await asyncio.sleep(PAGING_SECONDS)


@contextlib.asynccontextmanager
async def serving(
    config: Config,
    *,
    default_port: int,
    progress: Callable[[str], None] = log.info,
    actuator: Actuator | None = None,
) -> AsyncIterator[Service]:
    """Start Prometheus and Alertmanager (where the configuration names none), then the webhook, then the runs.

    On leaving, all but the trainers is ended: ``engine.close(stop_runs=True)`` before that ends them too.

    Args:
        default_port: port of the webhook where the configuration names none; 0: a free one.
        progress: gets one line for each thing that takes time.
        actuator: None: what the configuration asks for, processes of this machine or containers.

    Raises:
        ConfigError: the folder is guarded already, the port is in use, a file is wrong, a program is missing.
        StackError: Prometheus or Alertmanager did not start.
        JournalError: the journal cannot be opened.
    """
    folder = RunsFolder(Path(config.runs_dir))
    folder.prepare()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.locked())
        stack.enter_context(folder.runs_locked(config.runs))
        for words in await asyncio.to_thread(unguarded, folder.root, config.runs.keys()):
            log.warning("%s", words)
        bound = stack.enter_context(contextlib.closing(bind(config.listen, default_port=default_port)))
        tls = tls_context(config.listen.tls)
        host, port = bound.getsockname()[:2]
        interval = config.prometheus.scrape_interval_seconds
        rules = packs.rule_files(config.prometheus.rule_files)
        loaded = await asyncio.to_thread(read_rules, rules)
        people = await asyncio.to_thread(read_people, config.alertmanager.people_file)
        servers = await stack.enter_async_context(
            start_stack(
                folder.stack,
                webhook_host=host,
                webhook_port=port,
                rule_files=rules,
                scrape_interval=interval,
                evaluation_interval=config.prometheus.evaluation_interval_seconds,
                prometheus_url=config.prometheus.url,
                alertmanager_url=config.alertmanager.url,
                alert_token_file=config.auth.alert_token_file,
                people=people,
                webhook_ca_file=_authority(config),
                fast=interval < 1.0,
                progress=progress,
            )
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        journal = stack.enter_context(contextlib.closing(await asyncio.to_thread(Journal, folder.journal)))
        edits = RuleReload(
            rules,
            loaded=loaded,
            judge=functools.partial(_rule_errors, config),
            load=servers.load_rules,
            say=progress,
        )
        parts = _Parts(
            config,
            edits=edits if "prometheus" in servers.children else None,
            folder=folder,
            journal=journal,
            asked=Asked(prometheus_url=servers.prometheus_url, scrape_interval=interval),
            prometheus=Prometheus(servers.prometheus_url, session=session),
            alertmanager=Alertmanager(servers.alertmanager_url, session=session),
            actuator=actuator or actuator_of(config),
        )
        url = await stack.enter_async_context(listening(build_app(parts.deps()), bound, tls=tls))
        address = ServingAddress(
            url=url,
            pid=os.getpid(),
            command_token_file=config.auth.command_token_file,
            ca_file=config.listen.tls.cert_file if config.listen.tls is not None else None,
        )
        stack.enter_context(folder.announced(address))
        parts.engine.begin()  # last: what fails or is interrupted above has started nothing
        yield Service(
            engine=parts.engine,
            deadman=parts.deadman,
            promoter=parts.promoter,
            actuator=parts.actuator,
            url=url,
            prometheus_url=servers.prometheus_url,
            alertmanager_url=servers.alertmanager_url,
            alertmanager=parts.alertmanager,
        )


class _Parts:
    """The parts and how they are wired."""

    def __init__(
        self,
        config: Config,
        *,
        folder: RunsFolder,
        journal: Journal,
        asked: Asked,
        prometheus: Prometheus,
        alertmanager: Alertmanager,
        actuator: Actuator,
        edits: RuleReload | None,
    ) -> None:
        scrape = config.prometheus.scrape_interval_seconds
        evaluation = config.prometheus.evaluation_interval_seconds
        self.config = config
        self.prometheus = prometheus
        self.alertmanager = alertmanager
        self.folder = folder
        self.journal = journal
        self.actuator = actuator
        self.metrics = Metrics(views=self._views)
        self.postmortems = PostmortemWriter(folder, asked, views=self._views, registry=self.metrics.registry)
        self.edits = edits
        self.discovery = DiscoveryWatch(
            expected=lambda: bool(self.engine.targets()),
            token=config.auth.alert_token_file is not None,
            on_request=self.metrics.discovery,
        )
        self.deadman = DeadMansSwitch(
            prometheus=prometheus,
            alertmanager=alertmanager,
            remarks=lambda: {"rules": edits.refused} if edits and edits.refused else {},
            discovery=self.discovery.problem,
            on_change=self._watch_changed,
        )
        self.engine = Engine(
            runs_dir=folder.root,
            runs=config.runs,
            journal=journal,
            actuator=actuator,
            evidence=PrometheusEvidence(
                prometheus, runs_dir=folder.root, scrape_interval=scrape, evaluation_interval=evaluation
            ),
            listeners=(
                self.metrics.stored,
                self.postmortems.stored,
                lambda run, _seq, event, _state: self.reconciler.stored(run, event),
            ),
        )
        self.silences = SilenceWatch(self.engine, alertmanager=alertmanager, prometheus=prometheus)
        self.reconciler = Reconciler(
            self.engine,
            prometheus=prometheus,
            silences=self.silences.look,
            on_found=lambda _run: self.metrics.alert("reconciled"),
        )
        self.promoter = Promoter(
            self.engine,
            prometheus=prometheus,
            runs=config.runs,
            runs_dir=folder.root,
            store=lambda run_dir: self.engine.store(run_dir.name),
            scrape_interval=scrape,
            evaluation_interval=evaluation,
            degraded=self.deadman.reasons,
            on_verdict=self.metrics.verdict,
            on_baselines=self.metrics.baselines,
        )

    def deps(self) -> Deps:
        """What the HTTP surface is built from."""
        auth = self.config.auth
        return Deps(
            engine=self.engine,
            receiver=Receiver(store=self.engine, metrics=self.metrics, beat=self.deadman.beat),
            metrics=self.metrics,
            read_log=self._read_log,
            verdicts=self.promoter.latest,
            watch=self.deadman.status,
            discovery=self.discovery.asked,
            journal_trouble=lambda: self.journal.trouble,
            alert_token=_secret("auth.alert_token_file", auth.alert_token_file),
            command_token=_secret("auth.command_token_file", auth.command_token_file),
            scrape_interval_seconds=self.config.prometheus.scrape_interval_seconds,
            prometheus=self.prometheus,
            runs_dir=self.folder.root,
            resources=(self._guarding, self.postmortems.serving),
            background={
                "dead man's switch": self.deadman.run,
                "gate": self.promoter.run,
                "reconciliation": self.reconciler.run,
                "silences": self.silences.run,
                **({"rule files": self.edits.run} if self.edits else {}),
            },
        )

    async def _guarding(self, _app: web.Application) -> AsyncIterator[None]:
        """The engine, for the life of the application. Trainers outlive it unless they were stopped before."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library does not annotate it
        ProcessCollector(registry=self.metrics.registry)
        for run in self.config.runs:
            self.metrics.guard(run)
        try:
            await self.engine.take_up()
            promoted = await asyncio.to_thread(_promotion_times, self.folder.root, tuple(self.config.runs))
            for run, at in promoted.items():
                self.metrics.promoted(run, at)
            yield
        finally:  # aiohttp leaves no context whose start failed
            await self.engine.close(stop_runs=False)
            await self.actuator.close()

    def _views(self) -> list[RunView]:
        return self.engine.views()

    async def _watch_changed(self, status: WatchStatus) -> None:
        """Journal for each run that the watch is degraded, whole again, or not as its files say."""
        event = MonitoringChanged(
            at=time.time(), degraded=status.degraded, reasons=status.reasons, remarks=status.remarked
        )
        runs = [view.run for view in self.engine.views()]
        stored = await asyncio.gather(*(self.engine.submit(run, event) for run in runs), return_exceptions=True)
        for run, outcome in zip(runs, stored, strict=True):
            if isinstance(outcome, BaseException):
                log.error("run %s: the change of the watch is not journaled: %s", run, outcome)

    async def _read_log(self, run: str, after: int, limit: int) -> list[dict[str, Any]]:
        entries = await asyncio.to_thread(lambda: list(self.journal.read(run, after, limit)))
        return [
            {"seq": entry.seq, "at": entry.event.at, "kind": entry.event.kind, "words": describe(entry.event)}
            | entry.event.payload()
            for entry in entries
        ]


def _rule_errors(config: Config) -> list[str]:
    """Why the rule files, as they lie there now, could not stop a run."""
    found = configured_problems(config.prometheus.rule_files, config)
    return [str(problem) for problem in found if problem.severity == "error"]


def _promotion_times(root: Path, runs: tuple[str, ...]) -> dict[str, float]:
    """When the stable snapshot of each run was promoted, Unix seconds, as ``promotion.json`` says."""
    found: dict[str, float] = {}
    for run in runs:
        stable = SnapshotStore(root / run).stable()
        if stable is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found[run] = float(json.loads((stable.path / PROMOTION_FILE).read_bytes())["time"])
    return found


def _authority(config: Config) -> str | None:
    """Whom a Prometheus and Alertmanager that are started here trust as the webhook.

    Raises:
        ConfigError: they would need a client certificate, which they do not have.
    """
    tls = config.listen.tls
    if tls is None:
        return None
    if tls.client_ca_file is not None and None in (config.prometheus.url, config.alertmanager.url):
        raise ConfigError(
            "listen.tls.client_ca_file: a Prometheus that fusewire starts has no client certificate; set "
            "prometheus.url and alertmanager.url to servers that have one, or leave client_ca_file out"
        )
    return tls.cert_file


def _secret(key: str, path: str | None) -> Secret | None:
    return None if path is None else read_secret(path, key=key)
