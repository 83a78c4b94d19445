"""What the socket proxy lets a container be: all that the actuator asks for, and nothing that reaches beyond it."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.docker_spec import container
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.config import DockerConfig
from fusewire_webhook.socket_proxy.creation import Allowed, Creation
from fusewire_webhook.socket_proxy.shapes import Refused

IMAGE = "fusewire-trainer:0.1.0"
NETWORK = "fusewire-trainers"
CREATION = Creation(
    Allowed(images=r"fusewire-trainer:0\.1\.0", volumes="fusewire-runs", network=NETWORK, labels="team=.*")
)
SECTION = DockerConfig(
    image=IMAGE, network=NETWORK, volumes=("fusewire-runs:/runs",), user="10001:10001", working_dir="/runs",
    memory_bytes=10**9, shm_bytes=10**9, cpus=2, gpus="all", read_only=True, tmpfs=("/tmp",), labels={"team": "rl"},
)  # fmt: skip
LAUNCH = Launch(
    run="r", attempt=0, argv=("true",), environment={"GREETING": 'ünïcode, "Privileged": true'}, run_dir="/runs/r"
)
KEYS = re.findall(
    r"\w+",
    """
    AttachStderr AttachStdin AttachStdout ArgsEscaped Domainname ExposedPorts Healthcheck MacAddress
    NetworkDisabled OnBuild OpenStdin Shell StdinOnce StopSignal StopTimeout Tty Volumes Annotations
    AutoRemove Binds BlkioDeviceReadBps BlkioDeviceReadIOps BlkioDeviceWriteBps BlkioDeviceWriteIOps
    BlkioWeight BlkioWeightDevice CapAdd Cgroup CgroupParent CgroupnsMode ConsoleSize ContainerIDFile
    CpuCount CpuPercent CpuPeriod CpuQuota CpuRealtimePeriod CpuRealtimeRuntime CpuShares CpusetCpus
    CpusetMems DeviceCgroupRules Devices Dns DnsOptions DnsSearch ExtraHosts GroupAdd IOMaximumBandwidth
    IOMaximumIOps IpcMode Isolation KernelMemory KernelMemoryTCP Links MaskedPaths MemoryReservation
    MemorySwappiness OomKillDisable OomScoreAdj PidMode PidsLimit PortBindings Privileged
    PublishAllPorts ReadonlyPaths Runtime StorageOpt Sysctls UTSMode Ulimits UsernsMode VolumeDriver
    VolumesFrom BindOptions Consistency ClusterOptions ImageOptions TmpfsOptions VolumeOptions Options
    DriverOpts EndpointID Gateway GlobalIPv6Address GwPriority IPAMConfig IPAddress NetworkID
    """,
)
"""Every further key that a creation may have in the Engine API 1.51: of the container, of HostConfig, of a mount,
of a device request, of an endpoint."""


def body(**section: Any) -> dict[str, Any]:
    return container(LAUNCH, dataclasses.replace(SECTION, **section), start="mark")


def places(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The objects of a body that are not data."""
    host = value["HostConfig"]
    return {
        "the container": value,
        "HostConfig": host,
        "Mounts": host["Mounts"][0],
        "RestartPolicy": host["RestartPolicy"],
        "LogConfig": host["LogConfig"],
        "DeviceRequests": host["DeviceRequests"][0],
        "NetworkingConfig": value["NetworkingConfig"],
        "EndpointsConfig": value["NetworkingConfig"]["EndpointsConfig"][NETWORK],
    }


PLACES = tuple(places(body()))
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def refused(value: Any) -> str:
    with pytest.raises(Refused) as caught:
        CREATION.body(json.dumps(value).encode())
    return str(caught.value)


@given(
    environment=st.dictionaries(
        st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]*\Z"), TEXTS),
    argv=st.lists(TEXTS, min_size=1),
    gpus=st.sampled_from(["", "all", "2", "device=0,3", "device=GPU-0a1b", "device=MIG-1c2d"]),
    limits=st.none() | st.integers(1, 2**62),
    volumes=st.sampled_from([(), ("fusewire-runs:/runs",), ("fusewire-runs:/runs:ro",)]),
)  # fmt: skip
def test_all_that_can_be_configured(
    environment: dict[str, str], argv: list[str], gpus: str, limits: int | None, volumes: tuple[str, ...]
) -> None:
    """Whatever a run's section and its launch say within what is allowed, is let through unchanged."""
    launch = dataclasses.replace(LAUNCH, environment=environment, argv=tuple(argv))
    section = dataclasses.replace(SECTION, gpus=gpus, memory_bytes=limits, shm_bytes=limits, volumes=volumes)
    for one in (section, DockerConfig(image=IMAGE, network=NETWORK)):
        asked = container(launch, one, start="mark")
        assert json.loads(CREATION.body(json.dumps(asked, ensure_ascii=False).encode())) == asked


@pytest.mark.parametrize("place", PLACES)
def test_every_other_key_of_the_api(place: str) -> None:
    """A key that the actuator does not write is refused wherever it stands and however it is spelled."""
    for key in KEYS:
        for spelled in (key, key.lower(), key.swapcase()):
            changed = body()
            places(changed)[place][spelled] = None
            refused(changed)


@pytest.mark.parametrize("place", PLACES)
def test_known_keys_in_another_case(place: str) -> None:
    """The engine reads keys in any case; here only the one spelling is a key."""
    plain = body()
    for key in places(plain)[place]:
        if key == NETWORK:
            continue  # data
        for spelled in {key.lower(), key.upper(), key.replace("s", "\u017f"), key.replace("k", "\u212a")} - {key}:
            changed = copy.deepcopy(plain)
            places(changed)[place][spelled] = places(changed)[place][key]
            refused(changed)


@pytest.mark.parametrize(
    "key", ["Init", "NetworkMode", "Mounts", "RestartPolicy", "LogConfig", "CapDrop", "SecurityOpt"]
)
def test_what_must_be_given(key: str) -> None:
    """What confines a container cannot be left out, not even where its name stands somewhere else."""
    changed = body()
    del changed["HostConfig"][key]
    changed["Env"] = [f"{key}=ALL", "CapDrop=1", "SecurityOpt=1", "NetworkMode=1"]
    assert refused(changed) == f"HostConfig.{key} must be given"


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("the container", {"Image": "other:1"}),
        ("the container", {"Image": "evil/fusewire-trainer:0.1.0"}),
        ("the container", {"Image": "fusewire-trainer:0.1.0@sha256:00"}),
        ("the container", {"Image": "fusewire-trainer:0.1.0\n"}),
        ("the container", {"Image": ["fusewire-trainer:0.1.0"]}),
        ("the container", {"Entrypoint": None}),
        ("the container", {"Entrypoint": ["/bin/sh"]}),
        ("the container", {"Env": ["no value"]}),
        ("the container", {"Env": ["A=1\0B=2"]}),
        ("the container", {"Cmd": "sh"}),
        ("the container", {"User": "0"}),
        ("the container", {"User": "root"}),
        ("the container", {"User": "10001:0"}),
        ("the container", {"User": "00:0"}),
        ("the container", {"User": ""}),
        ("the container", {"WorkingDir": "/proc/self/fd/8"}),
        ("the container", {"WorkingDir": "/runs/../proc/self/fd/8"}),
        ("the container", {"WorkingDir": "//proc/self/fd/8"}),
        ("the container", {"Hostname": "webhook"}),
        ("the container", {"Labels": {"traefik.enable": "true"}}),
        ("the container", {"Labels": {"team": 1}}),
        ("the container", {"HostConfig": []}),
        ("the container", {"NetworkingConfig": {"EndpointsConfig": {"fusewire_stack_watch": {"Aliases": []}}}}),
        ("EndpointsConfig", {"Aliases": ["webhook"]}),
        ("HostConfig", {"Init": False}),
        ("HostConfig", {"NetworkMode": "host"}),
        ("HostConfig", {"NetworkMode": "default"}),
        ("HostConfig", {"NetworkMode": "container:fusewire_stack-webhook-1"}),
        ("HostConfig", {"Mounts": None}),
        ("HostConfig", {"RestartPolicy": {"Name": "always"}}),
        ("HostConfig", {"LogConfig": {"Type": "syslog", "Config": {"syslog-address": "unix:///x"}}}),
        ("HostConfig", {"CapDrop": []}),
        ("HostConfig", {"CapDrop": ["all"]}),
        ("HostConfig", {"CapDrop": ["ALL", "x"]}),
        ("HostConfig", {"SecurityOpt": ["no-new-privileges:true", "seccomp=unconfined"]}),
        ("HostConfig", {"SecurityOpt": []}),
        ("HostConfig", {"ReadonlyRootfs": 1}),
        ("HostConfig", {"Tmpfs": {"/tmp": "exec,dev"}}),
        ("HostConfig", {"Tmpfs": {"/dev": ""}}),
        ("HostConfig", {"Memory": "1"}),
        ("HostConfig", {"Memory": True}),
        ("HostConfig", {"Memory": 2**63}),
        ("HostConfig", {"MemorySwap": -1}),
        ("HostConfig", {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["vendor.com/disk=0"]}]}),
        ("DeviceRequests", {"Driver": "cdi"}),
        ("DeviceRequests", {"DeviceIDs": ["vendor.com/disk=0"]}),
        ("DeviceRequests", {"Capabilities": [["gpu", "x"]]}),
        ("Mounts", {"Type": "bind"}),
        ("Mounts", {"Type": "bind", "Source": "/"}),
        ("Mounts", {"Source": "fusewire_stack_secrets-command"}),
        ("Mounts", {"Source": "/"}),
        ("Mounts", {"Source": ""}),
        ("Mounts", {"Target": "/proc"}),
        ("Mounts", {"Target": "/sys/fs/cgroup"}),
        ("Mounts", {"Target": "/runs/../dev"}),
    ],
    ids=str,
)  # fmt: skip
def test_other_values(place: str, change: dict[str, Any]) -> None:
    """A value that the actuator would not write within what is allowed is refused; the message names the key."""
    changed = body()
    places(changed)[place].update(change)
    assert next(iter(change)) in refused(changed)


def written(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"\xff",
        written(body()).encode("utf-16"),
        written(body()).encode() + b'{"HostConfig":{"Privileged":true}}',
        (written(body())[:-1] + ', "Memory": NaN}').encode(),
        written(body() | {"Env": ["A=\ud800"]}).encode(),
        b'{"Image":' * 100_000,
        b"[" * 500_000,
        (written(body())[:-1] + r', "\u0048ostConfig": {"Privile\u0067ed": true}}').encode(),
        (written(body())[:-1] + ', "hostconfig": {"Privileged": true}}').encode(),
    ],
    ids=[
        "nothing", "empty", "null", "a list", "no UTF-8", "UTF-16", "two documents", "NaN", "half a character",
        "deep", "deeper", "escaped", "another case",
    ],
)  # fmt: skip
def test_bodies_that_are_something_else(sent: bytes) -> None:
    """What is no JSON object in UTF-8, or says something a second time in disguise, is refused."""
    with pytest.raises(Refused):
        CREATION.body(sent)


def test_the_engine_is_told_only_what_was_judged() -> None:
    """Of a key that stands twice the engine hears the one that was looked at, whichever the sender hoped for."""
    plain = body()
    hidden = '{"HostConfig": {"Privileged": true}, ' + written(plain)[1:]
    assert json.loads(CREATION.body(hidden.encode())) == plain
    assert CREATION.body(hidden.encode()).count(b"HostConfig") == 1
    with pytest.raises(Refused):
        CREATION.body((written(plain)[:-1] + ', "HostConfig": {"Privileged": true}}').encode())


def test_labels_are_fusewires_own_unless_allowed() -> None:
    """Other programs of a host obey labels, so that only those of the allow-list are taken."""
    strict = Creation(Allowed(images=".*", volumes=".*", network=".*"))
    strict.body(json.dumps(body(labels={})).encode())
    with pytest.raises(Refused, match=r"Labels\['team'\]: its value is not allowed by ALLOWED_LABELS"):
        strict.body(json.dumps(body()).encode())


def test_a_value_is_never_repeated() -> None:
    """A refusal names the key; what stands in it may be a secret."""
    assert "hunter2" not in refused(body() | {"Env": ["hunter2"]})


def test_settings_are_checked() -> None:
    """A proxy that does not know what is allowed does not start."""
    with pytest.raises(ConfigError) as caught:
        Allowed.of({"ALLOWED_IMAGES": "(", "ALLOWED_VOLUMES": ""})
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "ALLOWED_IMAGES", "ALLOWED_VOLUMES", "ALLOWED_NETWORK",
    ]  # fmt: skip
