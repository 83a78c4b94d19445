"""A rule pack on disk: what it reads and how often it is evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fusewire.metrics import sample_names
from fusewire_webhook.backtest.pruning import ALERTS, live_rules, reads
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.rulefile import Unreadable, parse

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}

THRESHOLD = "fusewire:threshold"
"""Recorded by the pack for every number that can be overridden; label ``threshold`` names it."""
OVERRIDE = "fusewire:override"
"""Recorded by a file of overrides."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The rule files, parsed. Documents are what YAML made of them; do not change them."""

    files: tuple[Path, ...]
    documents: tuple[dict[str, Any], ...]

    def rules(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """(group, rule) of every rule."""
        for document in self.documents:
            for group in document.get("groups") or ():
                for rule in group.get("rules") or ():
                    yield group, rule

    @property
    def names(self) -> frozenset[str]:
        """Of the series that the pack reads; every series of an exporter where a selector leaves the name open."""
        found = {read.name for _, rule in self.rules() for read in reads(str(rule["expr"]))}
        named = frozenset(name for name in found if name is not None)
        return named | sample_names() if None in found else named

    @property
    def scraped(self) -> frozenset[str]:
        """Of the series that the pack reads, those that neither its rules nor Prometheus make."""
        return self.names.difference((rule.get("record") for _, rule in self.rules()), ALERTS)

    @property
    def interval(self) -> float:
        """Seconds between evaluations of the trip rules, which is also the scrape interval they are written for."""
        intervals = [
            seconds(str(group["interval"]))
            for group, rule in self.rules()
            if _action(rule) == "trip" and "interval" in group
        ]
        return min(filter(None, intervals), default=1.0)

    @property
    def classes(self) -> dict[str, str]:
        """Label ``class`` of each alert."""
        return {
            rule["alert"]: str((rule.get("labels") or {}).get("class", ""))
            for _, rule in self.rules()
            if "alert" in rule
        }

    @property
    def thresholds(self) -> tuple[str, ...]:
        """Names of the numbers that can be overridden."""
        return tuple(
            str((rule.get("labels") or {}).get("threshold"))
            for _, rule in self.rules()
            if rule.get("record") == THRESHOLD
        )

    @property
    def overridden_algorithms(self) -> frozenset[str]:
        """Values of the label ``algorithm`` that overrides are for; they match to the letter."""
        labels = [rule.get("labels") or {} for _, rule in self.rules() if rule.get("record") == OVERRIDE]
        return frozenset(str(each["algorithm"]) for each in labels if "algorithm" in each and "run" not in each)


def left_out(pack: Pack, exposed: Collection[str], *, actions: Collection[str]) -> tuple[str, ...]:
    """Alerts of these actions that can say nothing of a run that shows only these series."""
    rules = [rule for _, rule in pack.rules()]
    live = {rule.get("alert") for rule in live_rules(rules, exposed, actions=actions)}
    alerts = (rule["alert"] for rule in rules if "alert" in rule and _action(rule) in actions)
    return tuple(alert for alert in dict.fromkeys(alerts) if alert not in live)


def _action(rule: Mapping[str, Any]) -> str:
    return str((rule.get("labels") or {}).get("action", ""))


def relevant(
    pack: Pack, exposed: Collection[str], folder: Path, *, actions: Collection[str], limits: bool = False
) -> Pack:
    """A copy in ``folder`` of what matters for alerts of these actions to runs that show only these series.

    Annotations are left out: nobody reads them here, and filling them in costs more than the rule.
    """
    every = [rule for _, rule in pack.rules()]
    live = {id(rule) for rule in live_rules(every, exposed, actions=actions, limits=limits)}
    documents = []
    for document in pack.documents:
        groups = []
        for group in document.get("groups") or ():
            rules = [
                {key: value for key, value in rule.items() if key != "annotations"}
                for rule in group.get("rules") or ()
                if id(rule) in live
            ]
            groups.append({**group, "rules": rules})
        documents.append({**document, "groups": groups})
    return written(documents, folder)


def seconds(text: str) -> float:
    """A Prometheus duration in seconds."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 30s or 5m")
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def load(files: Sequence[Path]) -> Pack:
    """Read rule files. Their syntax beyond YAML is for promtool to judge.

    Raises:
        ConfigError: a file is missing or no rule file.
    """
    documents = []
    for path in files:
        try:
            document = parse(path)
        except Unreadable as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("groups") or [], list):
            raise ConfigError(f"{path}: no rule file: it has no list of groups")
        documents.append(document)
    return Pack(files=tuple(files), documents=tuple(documents))


def written(documents: Sequence[dict[str, Any]], folder: Path) -> Pack:
    """The pack of these documents as files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, document in enumerate(documents):
        path = folder / f"{number}.rules.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        files.append(path)
    return Pack(files=tuple(files), documents=tuple(documents))
