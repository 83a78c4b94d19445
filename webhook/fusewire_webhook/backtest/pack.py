"""A rule pack on disk: what it reads and how often it is evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fusewire_webhook.backtest.pruning import live_rules
from fusewire_webhook.errors import ConfigError

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
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
        """Every identifier in the expressions: among them are the metrics that the pack reads."""
        return frozenset(name for _, rule in self.rules() for name in _NAME.findall(str(rule["expr"])))

    @property
    def interval(self) -> float:
        """Seconds between evaluations of the trip rules, which is also the scrape interval they are written for."""
        intervals = [
            seconds(str(group["interval"]))
            for group, rule in self.rules()
            if (rule.get("labels") or {}).get("action") == "trip" and "interval" in group
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


def relevant(pack: Pack, exposed: Collection[str], folder: Path, *, actions: Collection[str]) -> Pack:
    """A copy in ``folder`` of what matters for alerts of these actions to runs that show only these series.

    Annotations are left out: nobody reads them here, and filling them in costs more than the rule.
    """
    live = {id(rule) for rule in live_rules([rule for _, rule in pack.rules()], exposed, actions=actions)}
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
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not YAML: {error}") from error
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
