"""Which calls of the Docker Engine API are let through, and how they are said anew. Pure.

They are those of ``actuators/docker_api.py``: change both together. https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from fusewire_webhook.actuators.docker_api import NEWEST_VERSION
from fusewire_webhook.socket_proxy.creation import Creation
from fusewire_webhook.socket_proxy.shapes import Refused

OLDEST_VERSION = (1, 41)
"""Of Docker Engine 20.10. Older versions give some calls another meaning; newer than the actuator's may."""

_NAME = r"fusewire-[a-zA-Z0-9_.-]+"
_TARGET = re.compile(r'/v([0-9]{1,3})\.([0-9]{1,3})(/[a-zA-Z0-9_./-]+)(?:\?([!"$-~]*))?')


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request to the engine."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes | None = None
    changes: bool = False
    """It is worth a line in the log."""


@dataclass(frozen=True, kw_only=True)
class _Rule:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    """Its parameters, each once, and what their decoded values must match."""
    creates: bool = False


_ONE = rf"/containers/{_NAME}"
_RULES = (
    _Rule(
        method="GET",
        path="/containers/json",
        query={"all": "1", "filters": r'\{"label":\["fusewire\.run=[a-zA-Z0-9_.-]+"\]\}'},
    ),
    _Rule(method="GET", path=f"{_ONE}/json"),
    _Rule(method="GET", path=f"{_ONE}/logs", query={"stdout": "1", "stderr": "1", "tail": "[0-9]{1,6}"}),
    _Rule(method="HEAD", path=f"{_ONE}/archive", query={"path": r"[^\0]+"}),
    _Rule(method="POST", path=f"{_ONE}/start"),
    _Rule(method="POST", path=f"{_ONE}/wait", query={"condition": "not-running"}),
    _Rule(method="POST", path=f"{_ONE}/kill", query={"signal": "SIG(TERM|KILL)"}),
    _Rule(method="DELETE", path=_ONE, query={"v": "1"}),
    _Rule(method="POST", path="/containers/create", query={"name": _NAME}, creates=True),
)


def said_anew(method: str, target: str, sent: bytes, creation: Creation) -> Call:
    """The call that is made of a request.

    Args:
        target: of the request line, as it was sent.
        sent: the request's body; only a creation's is looked at, and no other is passed on.

    Raises:
        Refused: it is none of the actuator's.
    """
    if (method, target) == ("GET", "/_ping"):
        return Call(method=method, target=target)
    parts = _TARGET.fullmatch(target)
    if parts is None:
        raise Refused("this is no call of the actuator's")
    version = (int(parts[1]), int(parts[2]))
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise Refused("this version of the API is not allowed")
    for rule in _RULES:
        if rule.method == method and re.fullmatch(rule.path, parts[3]):
            return Call(
                method=method,
                target=f"/v{version[0]}.{version[1]}{parts[3]}{_query(rule, parts[4] or '')}",
                body=creation.body(sent) if rule.creates else None,
                changes=method not in {"GET", "HEAD"} and not parts[3].endswith("/wait"),
            )
    raise Refused("this is no call of the actuator's")


def _query(rule: _Rule, sent: str) -> str:
    try:
        given = parse_qsl(sent, keep_blank_values=True, strict_parsing=bool(sent), errors="strict")
    except ValueError as error:
        raise Refused("the query cannot be read") from error
    if sorted(name for name, _ in given) != sorted(rule.query):
        raise Refused("the query has other parameters than the actuator's")
    for name, value in given:
        if re.fullmatch(rule.query[name], value, re.DOTALL) is None:
            raise Refused(f"the parameter {name} is not allowed to be this")
    return f"?{urlencode(given)}" if given else ""
