"""Does an Alertmanager's configuration deliver trip alerts to the webhook, at once and always? Pure.

Follows the routing tree as Alertmanager does (depth first, ``continue``, inherited settings):
https://prometheus.io/docs/alerting/latest/configuration/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fusewire_webhook.watch.deadman import WATCHDOG
from fusewire_webhook.watch.prometheus import Matcher
from fusewire_webhook.watch.silences import matches

_DEFAULTS = {"group_wait": "30s", "group_interval": "5m", "repeat_interval": "4h", "group_by": []}
_MATCHER = re.compile(r'\s*([a-zA-Z_:][a-zA-Z0-9_:.]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|(.*?))\s*')
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w|y)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}

_TRIPS = tuple(
    {"alertname": "AnyTrip", "action": "trip", "class": kind, "severity": severity, "run": "any", "attempt": "0"}
    for kind in ("divergence", "infrastructure")
    for severity in ("critical", "warning")
)
_BEAT = {"alertname": WATCHDOG, "severity": "none", "action": "watchdog"}

LIMITS = {"group_wait": 1.0, "group_interval": 10.0, "repeat_interval": 120.0}
"""Longest settings of the trip route, in seconds: beyond them a trip comes late or is not repeated in time."""
BEAT_SECONDS = 20.0
"""Longest time between two beats: the dead man's switch calls 45 s without one a fault."""


ANY_ADDRESS = "/alerts"
_HIDDEN = "<secret>"
"""What Alertmanager shows instead of an address since 0.26: taken for the right one."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route of the tree, with what it inherits."""

    receiver: str
    settings: Mapping[str, Any]


def problems(config: Mapping[str, Any], *, webhook_url: str = ANY_ADDRESS) -> list[str]:
    """What is wrong with a configuration, one sentence with the remedy each; empty: nothing.

    Args:
        config: the parsed YAML.
        webhook_url: address that trip alerts must be posted to, as Alertmanager reaches it; by default any that
            ends in ``/alerts``.
    """
    found: dict[str, None] = {}
    receivers = {str(one.get("name")): one for one in config.get("receivers") or []}
    for labels in _TRIPS:
        route = _route_to(config, labels, receivers, webhook_url)
        about = f'alerts with action="trip", class="{labels["class"]}"'
        if route is None:
            found[f"{about} do not reach {webhook_url}: add a route with a webhook_configs receiver for them"] = (
                None
            )
            continue
        found.update(dict.fromkeys(_trip_route(route, receivers, webhook_url)))
    found.update(dict.fromkeys(_beat_route(_route_to(config, _BEAT, receivers, webhook_url), webhook_url)))
    for number, rule in enumerate(config.get("inhibit_rules") or []):
        target = _matchers(rule, "target_matchers", "target_match", "target_match_re")
        if any(_may_match(target, labels) for labels in _TRIPS):
            found[
                f'inhibit_rules[{number}] can silence a trip alert: add action!="trip" to its target_matchers'
            ] = None
    return list(found)


def _trip_route(route: Route, receivers: Mapping[str, Any], webhook_url: str) -> Iterator[str]:
    about = f"the trip route (receiver {route.receiver!r})"
    if route.settings["group_by"] != ["..."]:
        yield f"{about} groups alerts: set group_by: ['...'], so that a new one does not wait for an old group"
    for name, limit in LIMITS.items():
        seconds = duration(route.settings[name])
        if seconds is None or seconds > limit:
            yield f"{about} has {name}: {route.settings[name]}: set at most {limit:g}s"
    for setting in ("mute_time_intervals", "active_time_intervals"):
        if route.settings.get(setting):
            yield f"{about} has {setting}: a run diverges at any hour; leave it out"
    hooks = _hooks(receivers.get(route.receiver, {}), webhook_url)
    if any(hook.get("max_alerts") for hook in hooks):
        yield f"{about} has max_alerts: the group could come truncated; leave it out"


def _beat_route(route: Route | None, webhook_url: str) -> Iterator[str]:
    if route is None:
        yield f"the {WATCHDOG} alert does not reach {webhook_url}: the dead man's switch gets no beat; add a route"
        return
    longest = max(duration(route.settings[name]) or 0.0 for name in ("group_interval", "repeat_interval"))
    if longest > BEAT_SECONDS:
        yield (
            f"the {WATCHDOG} route (receiver {route.receiver!r}) beats every {longest:g} s: "
            "set group_interval: 10s and repeat_interval: 9s"
        )


def reached(config: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Route]:
    """The routes that an alert with these labels takes, in order."""
    root = config.get("route")
    if isinstance(root, Mapping):
        yield from _walk(root, labels, {**_DEFAULTS, "receiver": ""})


def duration(text: object) -> float | None:
    """Seconds of a duration in Alertmanager's notation, such as ``1m30s``; None: it is none."""
    parts = _DURATION.findall(str(text))
    if "".join(number + unit for number, unit in parts) != str(text) or not parts:
        return 0.0 if str(text) == "0" else None
    return float(sum(int(number) * _UNITS[unit] for number, unit in parts))


def _walk(route: Mapping[str, Any], labels: Mapping[str, str], above: Mapping[str, Any]) -> Iterator[Route]:
    own = {name: value for name, value in route.items() if name not in ("routes", "matchers", "match", "match_re")}
    inherited = {key: above[key] for key in (*_DEFAULTS, "receiver")}
    settings = {**inherited, **own}
    below = False
    for child in route.get("routes") or []:
        if all(matches(matcher, labels) for matcher in _matchers(child, "matchers", "match", "match_re")):
            below = True
            yield from _walk(child, labels, settings)
            if not child.get("continue"):
                return
    if not below:
        yield Route(receiver=str(settings["receiver"]), settings=settings)


def _route_to(
    config: Mapping[str, Any], labels: Mapping[str, str], receivers: Mapping[str, Any], webhook_url: str
) -> Route | None:
    routes = reached(config, labels)
    return next((route for route in routes if _hooks(receivers.get(route.receiver, {}), webhook_url)), None)


def _hooks(receiver: Mapping[str, Any], webhook_url: str) -> list[Mapping[str, Any]]:
    hooks = receiver.get("webhook_configs") or []
    return [hook for hook in hooks if hook.get("url_file") or str(hook.get("url")).endswith((webhook_url, _HIDDEN))]


def _matchers(holder: Mapping[str, Any], new: str, old: str, old_regex: str) -> list[Matcher]:
    found = [Matcher(name=name, value=str(value)) for name, value in (holder.get(old) or {}).items()]
    found += [
        Matcher(name=name, value=str(value), is_regex=True) for name, value in (holder.get(old_regex) or {}).items()
    ]
    listed = holder.get(new) or []
    for text in [listed] if isinstance(listed, str) else listed:
        found += [parse_matcher(part) for part in _split(text)]
    return found


def _split(text: str) -> Iterable[str]:
    """``{a="b",c="d"}`` holds several matchers, ``a="b"`` one."""
    inner = text.strip().removeprefix("{").removesuffix("}")
    return re.findall(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', inner)


def parse_matcher(text: str) -> Matcher:
    """``name="value"`` with ``=``, ``!=``, ``=~`` or ``!~``.

    Raises:
        ValueError: it is something else.
    """
    match = _MATCHER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no matcher")
    name, operator, quoted, bare = match.groups()
    value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
    return Matcher(name=name, value=value, is_regex=operator.endswith("~"), is_equal=operator.startswith("="))


def _may_match(target: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Whether a target could mean a trip alert: labels that are not known here are taken to match."""
    return all(matcher.name not in ("action", "class") or matches(matcher, labels) for matcher in target)
