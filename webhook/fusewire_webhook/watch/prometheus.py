"""Clients of the HTTP APIs of Prometheus and Alertmanager.

Every answer is typed and complete or it is a :class:`PrometheusError`: an empty list means that the server has
looked and found nothing. Source: https://prometheus.io/docs/prometheus/latest/querying/api/ and Alertmanager's
OpenAPI description (``api/v2``).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import aiohttp
from yarl import URL

from fusewire_webhook.errors import PrometheusError

Labels = Mapping[str, str]

_RELOAD_METRIC = "alertmanager_config_last_reload_successful"
_LAST_RELOAD = re.compile(rf"^{_RELOAD_METRIC} (\S+)$".encode(), re.MULTILINE)


def label_value(text: str) -> str:
    """``text`` as a quoted PromQL string: no run name can leave its matcher.

    PromQL's double-quoted strings take Go's escapes, and JSON's are among them (surrogate pairs are not, so
    characters beyond ASCII stay as they are).
    """
    return json.dumps(text, ensure_ascii=False)


def matchers(**labels: str | int) -> str:
    """``{run="…",attempt="3"}`` with every value escaped by :func:`label_value`."""
    return "{" + ",".join(f"{name}={label_value(str(value))}" for name, value in labels.items()) + "}"


def duration(seconds: float) -> str:
    """Seconds as a PromQL duration, in whole milliseconds and at least one."""
    return f"{max(1, round(seconds * 1000))}ms"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One series of an instant query."""

    labels: Labels
    value: float
    time: float
    """Unix seconds of Prometheus' clock."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of a range query: ``points`` are (Unix seconds, value)."""

    labels: Labels
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule as Prometheus has it loaded. Times in seconds."""

    kind: Literal["alerting", "recording"]
    name: str
    query: str
    labels: Labels
    health: str
    """``ok``, ``err`` or ``unknown`` (never evaluated)."""
    last_error: str = ""
    for_seconds: float = 0.0
    keep_firing_for_seconds: float = 0.0
    last_evaluation: float = 0.0
    """Unix seconds of Prometheus' clock; negative: never."""


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """A group of rules that are evaluated one after the other. Times in seconds."""

    name: str
    file: str
    interval: float
    evaluation_time: float
    """How long its last evaluation took."""
    last_evaluation: float
    """Unix seconds of Prometheus' clock; negative: never."""
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True)
class ActiveAlert:
    """A pending or firing alert as Prometheus' rules hold it."""

    labels: Labels
    annotations: Labels
    state: str
    active_at: str = ""

    @property
    def began(self) -> float:
        """When its condition came true, in Unix seconds of Prometheus' clock; negative: it does not say."""
        return _unix(self.active_at) if self.active_at else -1.0


@dataclass(frozen=True, kw_only=True)
class ScrapeTarget:
    """Something that Prometheus scrapes."""

    labels: Labels
    health: str
    """``up``, ``down`` or ``unknown`` (not scraped yet)."""
    last_error: str = ""


@dataclass(frozen=True, kw_only=True)
class RuntimeInfo:
    """Since when this Prometheus runs, and with which configuration."""

    start_time: str
    last_config_time: str
    reload_succeeded: bool

    @property
    def changed_at(self) -> float:
        """When it last started or loaded its configuration, in Unix seconds of its own clock."""
        return max(_unix(self.start_time), _unix(self.last_config_time))


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """One matcher of a silence."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A silence as Alertmanager holds it."""

    id: str
    state: str
    """``active``, ``pending`` or ``expired``."""
    created_by: str
    comment: str
    matchers: tuple[Matcher, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ManagedAlert:
    """An alert as Alertmanager holds it."""

    labels: Labels
    state: str
    """``active``, ``suppressed`` or ``unprocessed``."""
    silenced_by: tuple[str, ...] = ()
    annotations: Labels = field(default_factory=dict)


class _Client:
    """What both clients share: one GET or POST, one error line. A password in the URL never reaches a message."""

    name = ""

    def __init__(self, base_url: str, *, session: aiohttp.ClientSession, timeout: float = 5.0) -> None:
        url = URL(base_url)
        self._headers: dict[str, str] = {}
        if url.user is not None:
            pair = f"{url.user}:{url.password or ''}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        self.base_url = str(url.with_user(None)).rstrip("/")
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def _fetch(self, path: str, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        url = self.base_url + path
        method = "GET" if form is None else "POST"
        try:
            async with self._session.request(
                method, url, data=form, timeout=self._timeout, headers=self._headers
            ) as response:
                return response.status, await response.read()
        except TimeoutError as error:
            raise PrometheusError(f"{self.name} at {url} did not answer within {self._timeout.total} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise PrometheusError(f"{self.name} at {url} cannot be reached: {error}") from error

    async def _json(self, path: str, form: Mapping[str, str] | None = None) -> tuple[int, Any]:
        status, body = await self._fetch(path, form)
        try:
            return status, json.loads(body)
        except ValueError as error:
            raise PrometheusError(
                f"{self.name} at {self.base_url + path} answered {status} without JSON; is it {self.name}?"
            ) from error

    async def ready(self) -> None:
        """Return once the server says that it is ready.

        Raises:
            PrometheusError: it cannot be reached or is not ready.
        """
        status, body = await self._fetch("/-/ready")
        if status != 200:
            text = body.decode(errors="replace").strip()[:200]
            raise PrometheusError(f"{self.name} at {self.base_url} is not ready ({status}): {text}")


class Prometheus(_Client):
    """Asks one Prometheus server.

    Every method raises :class:`PrometheusError` (one line) where the server cannot be reached, refuses, warns that
    the answer is partial, or answers in another shape. ``timeout`` is in seconds, for each request.
    """

    name = "Prometheus"

    async def query(self, expr: str, time: float | None = None) -> list[Sample]:
        """The instant vector (or scalar) of ``expr``, at Prometheus' own now or at ``time`` (Unix seconds)."""
        form = {"query": expr} if time is None else {"query": expr, "time": repr(time)}
        data = await self._data("/api/v1/query", form)
        with _shape(self.name, expr):
            if data["resultType"] == "scalar":
                at, value = data["result"]
                return [Sample(labels={}, value=float(value), time=float(at))]
            if data["resultType"] != "vector":
                raise PrometheusError(f"query {expr!r} answers a {data['resultType']}, not a vector")
            return [
                Sample(labels=row["metric"], value=float(row["value"][1]), time=float(row["value"][0]))
                for row in data["result"]
            ]

    async def now(self) -> float:
        """Unix seconds of the server's own clock."""
        return (await self.query("time()"))[0].value

    async def query_range(self, expr: str, *, start: float, end: float, step: float) -> list[Series]:
        """``expr`` from ``start`` to ``end`` (Unix seconds), every ``step`` seconds."""
        form = {"query": expr, "start": repr(start), "end": repr(end), "step": repr(step)}
        data = await self._data("/api/v1/query_range", form)
        with _shape(self.name, expr):
            return [
                Series(labels=row["metric"], points=tuple((float(at), float(value)) for at, value in row["values"]))
                for row in data["result"]
            ]

    async def rules(self) -> list[RuleGroup]:
        """Every rule group that is loaded."""
        data = await self._data("/api/v1/rules")
        with _shape(self.name, "/api/v1/rules"):
            return [
                RuleGroup(
                    name=group["name"],
                    file=group["file"],
                    interval=float(group["interval"]),
                    evaluation_time=float(group["evaluationTime"]),
                    last_evaluation=_unix(group["lastEvaluation"]),
                    rules=tuple(_rule(rule) for rule in group["rules"]),
                )
                for group in data["groups"]
            ]

    async def alerts(self) -> list[ActiveAlert]:
        """Every pending and firing alert."""
        data = await self._data("/api/v1/alerts")
        with _shape(self.name, "/api/v1/alerts"):
            return [
                ActiveAlert(
                    labels=alert["labels"],
                    annotations=alert.get("annotations") or {},
                    state=alert["state"],
                    active_at=alert.get("activeAt", ""),
                )
                for alert in data["alerts"]
            ]

    async def runtime(self) -> RuntimeInfo:
        """Since when this server runs and has its present configuration."""
        data = await self._data("/api/v1/status/runtimeinfo")
        with _shape(self.name, "/api/v1/status/runtimeinfo"):
            return RuntimeInfo(
                start_time=data["startTime"],
                last_config_time=data["lastConfigTime"],
                reload_succeeded=bool(data["reloadConfigSuccess"]),
            )

    async def flags(self) -> Mapping[str, str]:
        """The command-line flags that the server runs with."""
        data = await self._data("/api/v1/status/flags")
        with _shape(self.name, "/api/v1/status/flags"):
            return {str(name): str(value) for name, value in data.items()}

    async def config(self) -> str:
        """The configuration that is loaded, as YAML; secrets are hidden."""
        data = await self._data("/api/v1/status/config")
        with _shape(self.name, "/api/v1/status/config"):
            return str(data["yaml"])

    async def targets(self) -> list[ScrapeTarget]:
        """Everything that is scraped now."""
        data = await self._data("/api/v1/targets?state=active")
        with _shape(self.name, "/api/v1/targets"):
            return [
                ScrapeTarget(labels=target["labels"], health=target["health"], last_error=target["lastError"])
                for target in data["activeTargets"]
            ]

    async def _data(self, path: str, form: Mapping[str, str] | None = None) -> Any:
        status, answer = await self._json(path, form)
        asked = path if form is None else repr(form["query"])
        if not isinstance(answer, dict) or answer.get("status") != "success" or "data" not in answer:
            why = answer.get("error") if isinstance(answer, dict) else None
            raise PrometheusError(f"Prometheus answered {status} to {asked}: {why or 'no data'}")
        if answer.get("warnings"):
            raise PrometheusError(f"Prometheus warns that {asked} may be partial: {answer['warnings'][0]}")
        return answer["data"]


class Alertmanager(_Client):
    """Asks one Alertmanager. Errors and ``timeout`` as in :class:`Prometheus`."""

    name = "Alertmanager"

    async def silences(self) -> list[Silence]:
        """Every silence that it remembers, expired ones too."""
        answer = await self._list("/api/v2/silences")
        with _shape(self.name, "/api/v2/silences"):
            return [
                Silence(
                    id=item["id"],
                    state=item["status"]["state"],
                    created_by=item["createdBy"],
                    comment=item["comment"],
                    matchers=tuple(
                        Matcher(
                            name=matcher["name"],
                            value=matcher["value"],
                            is_regex=matcher["isRegex"],
                            is_equal=matcher.get("isEqual", True),
                        )
                        for matcher in item["matchers"]
                    ),
                )
                for item in answer
            ]

    async def alerts(self) -> list[ManagedAlert]:
        """Every alert that it holds."""
        answer = await self._list("/api/v2/alerts")
        with _shape(self.name, "/api/v2/alerts"):
            return [
                ManagedAlert(
                    labels=item["labels"],
                    annotations=item["annotations"],
                    state=item["status"]["state"],
                    silenced_by=tuple(item["status"]["silencedBy"]),
                )
                for item in answer
            ]

    async def reload_succeeded(self) -> bool:
        """Did it load its configuration the last time that it was told to? Its own metric says so."""
        status, body = await self._fetch("/metrics")
        found = _LAST_RELOAD.search(body) if status == 200 else None
        if found is None:
            raise PrometheusError(f"Alertmanager answered {status} to /metrics without {_RELOAD_METRIC}")
        return float(found[1]) == 1.0

    async def status(self) -> Mapping[str, Any]:
        """Version, uptime, cluster and loaded configuration (``config.original`` is its YAML)."""
        status, answer = await self._json("/api/v2/status")
        if status != 200 or not isinstance(answer, dict):
            raise PrometheusError(f"Alertmanager answered {status} to /api/v2/status: {str(answer)[:200]}")
        return answer

    async def _list(self, path: str) -> list[Any]:
        status, answer = await self._json(path)
        if status != 200 or not isinstance(answer, list):
            raise PrometheusError(f"Alertmanager answered {status} to {path}: {str(answer)[:200]}")
        return answer


class _shape:
    """Turns an answer of another shape into one :class:`PrometheusError`."""

    def __init__(self, server: str, asked: str) -> None:
        self._text = f"{server} answered {asked!r} in an unknown shape"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
            raise PrometheusError(f"{self._text}: {type(error).__name__} {error}") from error


def _rule(rule: Mapping[str, Any]) -> Rule:
    return Rule(
        kind=rule["type"],
        name=rule["name"],
        query=rule["query"],
        labels=rule.get("labels") or {},
        health=rule["health"],
        last_error=rule.get("lastError", ""),
        for_seconds=float(rule.get("duration", 0.0)),
        keep_firing_for_seconds=float(rule.get("keepFiringFor", 0.0)),
        last_evaluation=_unix(rule["lastEvaluation"]),
    )


def _unix(text: str) -> float:
    """RFC 3339 as Unix seconds; Go's zero time ("0001-01-01T00:00:00Z") becomes negative."""
    return datetime.fromisoformat(text).timestamp()
