"""From a launch and a run's ``docker:`` section to what the Docker engine is asked to create. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fusewire_webhook.actuators import Launch
from fusewire_webhook.settings.config import DockerConfig

RUN_LABEL = "fusewire.run"
ATTEMPT_LABEL = "fusewire.attempt"
FOLDER_LABEL = "fusewire.run_dir"
START_LABEL = "fusewire.start"
"""Names one start, as the attempt's ``docker.json`` does: a container of an earlier life has another."""

HOST_NETWORK = "host"
EVERY_INTERFACE = "0.0.0.0"
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LABEL_LENGTH = 63
"""Of one part of a DNS name (RFC 1035)."""


def container_name(run: str, attempt: int) -> str:
    """``fusewire-<run>-<attempt>``: every name of a run is one of a container."""
    return f"fusewire-{run}-{attempt}"


def network_alias(run: str, attempt: int) -> str:
    """The host name of an attempt on its network: its container's name, where that can stand in a DNS name."""
    name = container_name(run, attempt)
    if re.fullmatch(r"[a-z0-9-]+", name) and len(name) <= _LABEL_LENGTH:
        return name
    plain = re.sub(r"[^a-z0-9-]", "-", run.lower())[:30]
    return f"fusewire-{plain}-{hashlib.blake2b(run.encode(), digest_size=4).hexdigest()}-{attempt}"


def container(launch: Launch, docker: DockerConfig, *, start: str) -> dict[str, Any]:
    """Body of ``POST /containers/create``.

    ``Init`` puts a small init at PID 1, which passes SIGTERM on to a trainer without a handler and reaps orphans;
    when it ends, the kernel kills what is left in the container. Swap is not given on top of the memory limit.
    """
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": docker.network,
        "Mounts": [_mount(volume) for volume in docker.volumes],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "ReadonlyRootfs": docker.read_only,
        "Tmpfs": dict.fromkeys(docker.tmpfs, ""),
    }
    if docker.memory_bytes is not None:
        host |= {"Memory": docker.memory_bytes, "MemorySwap": docker.memory_bytes}
    if docker.cpus is not None:
        host["NanoCpus"] = round(docker.cpus * 1e9)
    if docker.shm_bytes is not None:
        host["ShmSize"] = docker.shm_bytes
    if docker.gpus:
        host["DeviceRequests"] = [_gpu_request(docker.gpus)]
    body: dict[str, Any] = {
        "Image": docker.image,
        "Entrypoint": [""],  # none, not the image's: the run's command is all that starts
        "Cmd": list(launch.argv),
        "Env": [f"{name}={value}" for name, value in sorted(launch.environment.items())],
        "Labels": {
            **docker.labels,
            RUN_LABEL: launch.run,
            ATTEMPT_LABEL: str(launch.attempt),
            FOLDER_LABEL: launch.run_dir,
            START_LABEL: start,
        },
        "HostConfig": host,
    }
    if docker.user:
        body["User"] = docker.user
    if docker.working_dir:
        body["WorkingDir"] = docker.working_dir
    if docker.network != HOST_NETWORK:
        alias = network_alias(launch.run, launch.attempt)
        body["Hostname"] = alias
        body["NetworkingConfig"] = {"EndpointsConfig": {docker.network: {"Aliases": [alias]}}}
    return body


def candidates(argv0: str, inspected: dict[str, Any]) -> list[str]:
    """Where a created container may have the command, in the order in which it is looked for."""
    config = inspected["Config"]
    if "/" in argv0:
        return [argv0 if argv0.startswith("/") else f"{config.get('WorkingDir') or ''}/{argv0}"]
    variables = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    return [f"{folder}/{argv0}" for folder in (variables.get("PATH") or _SEARCHED).split(":") if folder]


def volume_parts(volume: str) -> tuple[str, str, bool] | None:
    """Source, target and whether it is read-only of ``SOURCE:/TARGET[:ro|:rw]``; None: it is none."""
    match = re.fullmatch(r"([^:]+):(/[^:]*)(?::(ro|rw))?", volume)
    return (match[1], match[2], match[3] == "ro") if match else None


def _mount(volume: str) -> dict[str, Any]:
    parts = volume_parts(volume)
    if parts is None:
        raise ValueError(f"{volume!r} is no volume")
    source, target, read_only = parts
    kind = "bind" if source.startswith("/") else "volume"
    return {"Type": kind, "Source": source, "Target": target, "ReadOnly": read_only}


def _gpu_request(gpus: str) -> dict[str, Any]:
    request: dict[str, Any] = {"Driver": "nvidia", "Capabilities": [["gpu"]]}
    if gpus == "all":
        return request | {"Count": -1}
    if gpus.isdecimal():
        return request | {"Count": int(gpus)}
    return request | {"DeviceIDs": gpus.removeprefix("device=").split(",")}
