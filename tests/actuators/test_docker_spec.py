"""What the engine is asked to create, and how the exporter in it is reached."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.choice import actuator_of
from fusewire_webhook.actuators.dispatch import DispatchingActuator
from fusewire_webhook.actuators.docker_api import unframed
from fusewire_webhook.actuators.docker_spec import container, network_alias, volume_parts
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.errors import ActuatorError, ConfigError
from fusewire_webhook.settings.checks import check
from fusewire_webhook.settings.config import Config, DockerConfig, RunConfig
from fusewire_webhook.settings.loader import build
from fusewire_webhook.settings.placing import place_of

LAUNCH = Launch(
    run="r", attempt=2, argv=("python", "train.py"), environment={"B": "2", "A": "1"}, run_dir="/runs/r"
)
PLAIN = DockerConfig(image="trainer:1", network="trainers", volumes=("fusewire-runs:/runs",))
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


def test_everything_of_the_section_reaches_the_engine() -> None:
    """Image, network, volumes, limits, user, GPUs and labels of the configuration are what is asked for."""
    docker = dataclasses.replace(
        PLAIN,
        volumes=("fusewire-runs:/runs", "/data:/data:ro"),
        user="10001:10001",
        working_dir="/work",
        memory_bytes=8_000_000_000,
        shm_bytes=1_000_000_000,
        cpus=1.5,
        gpus="device=0,3",
        read_only=True,
        tmpfs=("/tmp",),
        labels={"team": "rl"},
    )
    body = container(LAUNCH, docker, start="mark")
    host = body["HostConfig"]
    assert (body["Image"], body["Entrypoint"], body["Cmd"]) == ("trainer:1", [""], ["python", "train.py"])
    assert (body["User"], body["WorkingDir"], body["Env"]) == ("10001:10001", "/work", ["A=1", "B=2"])
    assert body["Labels"] == {
        "team": "rl", "fusewire.run": "r", "fusewire.attempt": "2", "fusewire.run_dir": "/runs/r",
        "fusewire.start": "mark",
    }  # fmt: skip
    assert host["Mounts"] == [
        {"Type": "volume", "Source": "fusewire-runs", "Target": "/runs", "ReadOnly": False},
        {"Type": "bind", "Source": "/data", "Target": "/data", "ReadOnly": True},
    ]
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (8_000_000_000, 8_000_000_000, 1_000_000_000)
    assert (host["NanoCpus"], host["ReadonlyRootfs"], host["Tmpfs"]) == (1_500_000_000, True, {"/tmp": ""})
    assert host["DeviceRequests"] == [{"Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "3"]}]
    assert body["NetworkingConfig"] == {"EndpointsConfig": {"trainers": {"Aliases": ["fusewire-r-2"]}}}


def test_a_container_is_no_more_than_asked_for() -> None:
    """Without limits and GPUs none are sent; privileges and restarts by the engine are never asked for."""
    host = container(LAUNCH, PLAIN, start="mark")["HostConfig"]
    assert not {"Memory", "NanoCpus", "ShmSize", "DeviceRequests", "Privileged", "Binds"} & host.keys()
    assert host["RestartPolicy"] == {"Name": "no"}
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])


@pytest.mark.parametrize(
    ("gpus", "asked"), [("all", {"Count": -1}), ("2", {"Count": 2}), ("device=GPU-1", {"DeviceIDs": ["GPU-1"]})]
)
def test_gpus(gpus: str, asked: dict[str, object]) -> None:
    """``all``, a number and devices are what docker run --gpus means by them."""
    (request,) = container(LAUNCH, dataclasses.replace(PLAIN, gpus=gpus), start="m")["HostConfig"]["DeviceRequests"]
    assert asked.items() <= request.items()


@given(NAMES, NAMES, st.integers(0, 9999))
def test_host_names(one: str, other: str, attempt: int) -> None:
    """Every run has a host name that DNS allows, and no two runs share one."""
    name = network_alias(one, attempt)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert (name == network_alias(other, attempt)) == (one == other)


def test_where_the_exporter_is_reached() -> None:
    """By the container's name on a network, on loopback on the host's network, or where the configuration says."""

    def reached(docker: DockerConfig | None) -> tuple[str | None, str]:
        place = place_of("r", RunConfig(command=("x",), docker=docker))
        return place.bind, place.reached(2, place.bind or "127.0.0.1")

    assert reached(None) == (None, "127.0.0.1")
    assert reached(PLAIN) == ("0.0.0.0", "fusewire-r-2")
    assert reached(dataclasses.replace(PLAIN, network="host")) == (None, "127.0.0.1")
    assert reached(dataclasses.replace(PLAIN, network="host", exporter_host="gpu7")) == ("0.0.0.0", "gpu7")


def config(tmp_path: Path, **docker: object) -> Config:
    section = {"image": "trainer:1", "network": "trainers", "volumes": [f"runs:{tmp_path}"], **docker}
    runs = {"r": {"command": ["python"], "docker": section}}
    return build(Config, {"runs_dir": str(tmp_path / "runs"), "runs": runs}, source="file")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"image": ""}, "docker.image: is empty"),
        ({"endpoint": "/var/run/docker.sock"}, "docker.endpoint: '/var/run/docker.sock' is no address"),
        ({"network": "bridge"}, "docker.network: 'bridge' gives containers no name"),
        ({"user": "me"}, "docker.user: 'me' is none"),
        ({"gpus": "0,1"}, "docker.gpus: '0,1' is none"),
        ({"volumes": ["runs"]}, "docker.volumes: 'runs' is none"),
        ({"volumes": ["runs:/elsewhere"]}, "docker.volumes: none of them holds the runs folder"),
        ({"volumes": ["runs:/:ro"]}, "docker.volumes: none of them holds the runs folder"),
        ({"memory_bytes": 0}, "docker.memory_bytes: 0 must be more than 0"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, section: dict[str, object], complaint: str) -> None:
    """A docker section that could not work is refused before anything starts, with key and remedy."""
    with pytest.raises(ConfigError, match=re.escape(f"file: runs.r.{complaint}")):
        check(config(tmp_path, **section), source="file")


def test_a_folder_of_this_machine_is_none_of_the_container(tmp_path: Path) -> None:
    """``cwd`` is refused for a container, with the key that means the same there."""
    whole = config(tmp_path)
    run = dataclasses.replace(whole.runs["r"], cwd=str(tmp_path))
    with pytest.raises(ConfigError, match=r"runs\.r\.cwd: .*docker\.working_dir"):
        check(dataclasses.replace(whole, runs={"r": run}), source="file")


def test_volumes() -> None:
    """Named volumes and folders, read-only or not."""
    assert volume_parts("runs:/runs") == ("runs", "/runs", False)
    assert volume_parts("/data:/data:ro") == ("/data", "/data", True)
    assert volume_parts("runs:runs") is None


def test_frames_of_output() -> None:
    """Frame headers are taken off both streams, also of an output that ends in the middle of a frame."""
    frames = b"\1\0\0\0\0\0\0\3one\2\0\0\0\0\0\0\3two\1\0\0\0\0\0\0\5thr"
    assert unframed(frames) == b"onetwothr"


def test_which_actuator(tmp_path: Path) -> None:
    """A configuration without containers gets the local actuator alone."""
    assert isinstance(actuator_of(Config(runs={"r": RunConfig(command=("x",))})), LocalActuator)
    assert isinstance(actuator_of(config(tmp_path)), DispatchingActuator)


async def test_each_run_by_its_own_actuator(tmp_path: Path) -> None:
    """A start goes where the run's configuration says, everything else to whoever made the handle."""

    class Other(FakeActuator):
        async def start(self, launch: Launch) -> dict[str, object]:
            return {**await super().start(launch), "actuator": "other"}

    fake, other = FakeActuator(), Other()
    both = DispatchingActuator({"fake": fake, "other": other}, kind_of={"r": "fake", "s": "other"})
    launches = {run: Launch(run=run, attempt=0, argv=("x",), environment={}, run_dir="") for run in ("r", "s")}
    handles = {run: await both.start(launch) for run, launch in launches.items()}
    assert (set(fake.processes), set(other.processes)) == ({("r", 0)}, {("s", 0)})
    assert (await both.stop(handles["s"], grace_seconds=0)).confirmed
    assert (await both.status(handles["r"])).phase == "running"
    changed = DispatchingActuator({"fake": fake, "other": other}, kind_of={"r": "other", "s": "fake"})
    assert await changed.find("r", 0, "") == handles["r"]
    assert await changed.find("r", 1, "") is None
    with pytest.raises(ActuatorError, match="of no actuator"):
        await both.status({"actuator": "slurm"})
