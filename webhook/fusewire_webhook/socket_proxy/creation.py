"""What a container of the webhook's may be: the keys that ``docker_spec.container`` writes, and no others. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.socket_proxy.shapes import Check, Refused, each, exactly, fields, flag, mapping, number, text

_INSIDE = r"(/(?!\.\.?(/|$))[^/\0]+)+"
"""An absolute path without ``.`` and ``..``."""
_PATH = rf"(?!/(proc|sys|dev)(/|$)){_INSIDE}"
"""One that is not the kernel's: working directories there have been ways to the host (CVE-2024-21626)."""
_ALIAS = r"fusewire-[a-z0-9-]{1,54}"
_PERSON = r"[1-9][0-9]*(:[1-9][0-9]*)?"
_GPU = r"[A-Za-z0-9:-]+"
"""Never a name of the Container Device Interface, which has ``/`` and ``=``."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What this installation allows; regular expressions that must match as a whole."""

    images: str
    volumes: str
    network: str
    labels: str = "(?!)"
    """Of ``key=value``; labels of fusewire's own are always allowed."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Allowed:
        """From ``ALLOWED_IMAGES``, ``…_VOLUMES``, ``…_NETWORK`` and, where it is set, ``…_LABELS``.

        Raises:
            ConfigError: one is missing, or no regular expression.
        """
        problems, found = [], {}
        for name in ("images", "volumes", "network", "labels"):
            variable = f"ALLOWED_{name.upper()}"
            pattern = environment.get(variable, "")
            if not pattern:
                if name != "labels":
                    problems.append(f"{variable} is not set: give a regular expression")
                continue
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"{variable} is no regular expression: {error}")
            found[name] = pattern
        if problems:
            raise ConfigError(*problems)
        return cls(**found)


class Creation:
    """Judges bodies of ``POST /containers/create``."""

    def __init__(self, allowed: Allowed) -> None:
        self._shape = _container(allowed)
        self._labels = re.compile(rf"fusewire\.[a-z_]+=.*|({allowed.labels})", re.DOTALL)

    def body(self, sent: bytes) -> bytes:
        """The body written anew, from what was understood of the one that was sent: what is dropped here, such as
        the first of two equal keys, nobody sees again. A key in another case is another key.

        Raises:
            Refused: it is not JSON, or asks for more than is allowed.
        """
        try:
            body = json.loads(sent.decode())
            written = json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:  # a lone surrogate is a ValueError too
            raise Refused("the body is not JSON in UTF-8") from error
        self._shape(body, "")
        for key, value in body["Labels"].items():
            if self._labels.fullmatch(f"{key}={value}") is None:
                raise Refused(f"Labels[{key!r}]: its value is not allowed by ALLOWED_LABELS")
        return written


def _container(allowed: Allowed) -> Check:
    free = text()
    network = text(allowed.network, rule="ALLOWED_NETWORK")
    mount = fields(
        {
            "Type": exactly("volume"),
            "Source": text(allowed.volumes, rule="ALLOWED_VOLUMES"),
            "Target": text(_PATH),
            "ReadOnly": flag,
        }
    )
    gpus = fields(
        {"Driver": exactly("nvidia"), "Capabilities": exactly([["gpu"]])},
        {"Count": number(-1), "DeviceIDs": each(text(_GPU))},
    )
    host = fields(
        {
            "Init": exactly(True),
            "NetworkMode": network,
            "Mounts": each(mount),
            "RestartPolicy": exactly({"Name": "no"}),
            "LogConfig": exactly({"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}),
            "CapDrop": exactly(["ALL"]),
            "SecurityOpt": exactly(["no-new-privileges:true"]),
            "ReadonlyRootfs": flag,
            "Tmpfs": mapping(text(_PATH), exactly("")),
        },
        {
            "Memory": number(1),
            "MemorySwap": number(1),
            "NanoCpus": number(1),
            "ShmSize": number(1),
            "DeviceRequests": each(gpus),
        },
    )
    endpoint = fields({"Aliases": each(text(_ALIAS))})
    return fields(
        {
            "Image": text(allowed.images, rule="ALLOWED_IMAGES"),
            "Entrypoint": exactly([""]),
            "Cmd": each(free),
            "Env": each(text(r"[^=\0]+=[^\0]*")),
            "Labels": mapping(free, free),
            "HostConfig": host,
        },
        {
            "User": text(_PERSON),
            "WorkingDir": text(_PATH),
            "Hostname": text(_ALIAS),
            "NetworkingConfig": fields({"EndpointsConfig": mapping(network, endpoint)}),
        },
    )
