"""What Prometheus said about a failed attempt, as it is kept beside the postmortem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusewire_webhook.postmortem.traces import Trace

FORMAT = 1

Traces = Mapping[str, Trace]
"""By signal, without the prefix ``rl_``."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The plain bound of a rule: ``signal`` compared with a number."""

    signal: str
    op: str
    """``>``, ``>=``, ``<`` or ``<=``."""
    value: float
    alert: str


@dataclass(frozen=True, kw_only=True)
class RuleEvidence:
    """The rule behind an alert, and what its expression was when the alert began."""

    alert: str
    query: str
    for_seconds: float = 0.0
    samples: tuple[tuple[Mapping[str, str], float], ...] = ()
    """(labels, value), those of the run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Answers of Prometheus. ``problem`` says what it could not answer; then the rest may be empty."""

    problem: str = ""
    asked_at: float = 0.0
    """Unix seconds."""
    tripped_at: float = 0.0
    """On Prometheus' clock."""
    rules: tuple[RuleEvidence, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    around: Mapping[int, Traces] = field(default_factory=dict)
    """By attempt, around the trip, finely."""
    whole: Traces = field(default_factory=dict)
    """The attempt from its start to the trip, coarsely."""
    rates: Mapping[int, Traces] = field(default_factory=dict)
    """By attempt: learning_rate, lr_scale and step, over the lives of the attempts concerned."""
    incident: Mapping[int, Traces] = field(default_factory=dict)
    """By attempt, over all attempts of the incident, coarsely; empty where there was only one."""
    longest: int | None = None
    """The attempt of the incident, or before it, that lived longest: the audit looks there too."""
    longest_whole: Traces = field(default_factory=dict)
    """Its signals from its start to its end."""
    gpus: int | None = None
    """GPUs of the attempt; None: no NVML series."""
    energy_joules: float | None = None
    """Used by them from the attempt's start to the trip."""

    def to_json(self) -> dict[str, Any]:
        """As ``attempt-003.json`` holds it."""
        return {
            "format": FORMAT,
            "problem": self.problem,
            "asked_at": self.asked_at,
            "tripped_at": self.tripped_at,
            "rules": [
                {
                    "alert": rule.alert,
                    "query": rule.query,
                    "for_seconds": rule.for_seconds,
                    "samples": [[dict(labels), str(value)] for labels, value in rule.samples],
                }
                for rule in self.rules
            ],
            "thresholds": [vars(threshold) for threshold in self.thresholds],
            "around": {str(attempt): _dump(traces) for attempt, traces in self.around.items()},
            "whole": _dump(self.whole),
            "rates": {str(attempt): _dump(traces) for attempt, traces in self.rates.items()},
            "incident": {str(attempt): _dump(traces) for attempt, traces in self.incident.items()},
            "longest": self.longest,
            "longest_whole": _dump(self.longest_whole),
            "gpus": self.gpus,
            "energy_joules": self.energy_joules,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observed:
        """The inverse; raises KeyError, TypeError, ValueError or AttributeError on anything else."""
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        return cls(
            problem=str(value["problem"]),
            asked_at=float(value["asked_at"]),
            tripped_at=float(value["tripped_at"]),
            rules=tuple(
                RuleEvidence(
                    alert=rule["alert"],
                    query=rule["query"],
                    for_seconds=float(rule["for_seconds"]),
                    samples=tuple((dict(labels), float(number)) for labels, number in rule["samples"]),
                )
                for rule in value["rules"]
            ),
            thresholds=tuple(Threshold(**threshold) for threshold in value["thresholds"]),
            around={int(attempt): _load(traces) for attempt, traces in value["around"].items()},
            whole=_load(value["whole"]),
            rates={int(attempt): _load(traces) for attempt, traces in value["rates"].items()},
            incident={int(attempt): _load(traces) for attempt, traces in value.get("incident", {}).items()},
            longest=value.get("longest"),
            longest_whole=_load(value.get("longest_whole", {})),
            gpus=value["gpus"],
            energy_joules=value["energy_joules"],
        )


def _dump(traces: Traces) -> dict[str, Any]:
    return {name: trace.to_json() for name, trace in traces.items()}


def _load(value: Mapping[str, Any]) -> Traces:
    return {name: Trace.from_json(item) for name, item in value.items()}
