"""NVML behind the real pynvml, cgroups in a folder, the torch allocator: what cannot be read is absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

import fusewire
import nvml_fake
from fusewire.collectors import CgroupCollector, NvmlCollector, TorchMemoryCollector
from fusewire.guard import Errors
from nvml_fake import GIB, Control, Gpu, Process

from .conftest import Clock, eventually, fetch, samples

# NVML ------------------------------------------------------------------------------------------------------

READ = """
import json, os, sys
from prometheus_client import CollectorRegistry
from fusewire.collectors import NvmlCollector
from fusewire.guard import Errors
errors = Errors()
collector = NvmlCollector(errors, gpus=sys.argv[1], pid=42)
collector.refresh()
seen = {f"{s.name}{list(s.labels.values())}": s.value for family in collector.collect() for s in family.samples}
print(json.dumps([seen, errors.counts["collector"]]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_fake.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "gpus")


@pytest.fixture
def read(library: Path, control: Control) -> Callable[..., dict[str, float]]:
    """What a fresh process with the fake driver reads."""

    def run(gpus: str = "all", **variables: str) -> dict[str, float]:
        environment = os.environ | nvml_fake.environment(library, control) | variables
        done = subprocess.run(
            [sys.executable, "-c", READ, gpus], env=environment, capture_output=True, text=True, check=True
        )
        seen, errors = json.loads(done.stdout)
        assert errors == 0
        return dict(seen)

    return run


def test_all_that_a_gpu_tells(read: Callable[..., dict[str, float]], control: Control) -> None:
    """Memory, this process's memory, utilisation, temperature, energy and ECC errors, in base units."""
    gpu = Gpu(total=80 * GIB, used=5 * GIB, temperature=61, utilization=75, energy=12_500, ecc=2)
    control.write(gpus=[gpu], processes=[Process(gpu=0, pid=41, used=GIB), Process(gpu=0, pid=42, used=3 * GIB)])
    assert read() == {
        "gpu_up[]": 1,
        "gpu_memory_used_bytes['0']": 5 * GIB,
        "gpu_memory_total_bytes['0']": 80 * GIB,
        "gpu_process_memory_bytes['0']": 3 * GIB,
        "gpu_utilization_ratio['0']": 0.75,
        "gpu_temperature_celsius['0']": 61,
        "gpu_energy_joules_total['0']": 12.5,
        "gpu_ecc_errors_total['0']": 2,
    }


def test_one_gpu_is_lost(read: Callable[..., dict[str, float]], control: Control) -> None:
    """gpu_up falls, and the other GPUs' values are still there."""
    control.write(gpus=[Gpu(used=1), Gpu(fail=nvml_fake.LOST), Gpu(used=3)])
    seen = read()
    assert seen["gpu_up[]"] == 0
    assert seen["gpu_memory_used_bytes['0']"] == 1
    assert seen["gpu_memory_used_bytes['2']"] == 3
    assert "gpu_memory_used_bytes['1']" not in seen


def test_values_that_a_gpu_does_not_have(read: Callable[..., dict[str, float]], control: Control) -> None:
    """They are absent, and the GPU is up."""
    control.write(gpus=[Gpu(used=1, unsupported=1)])
    assert read() == {"gpu_up[]": 1, "gpu_memory_used_bytes['0']": 1, "gpu_memory_total_bytes['0']": 80 * GIB}


@pytest.mark.parametrize(
    ("visible", "seen"), [("1", ["1"]), ("GPU-fake-0,2", ["0", "2"]), ("", []), ("GPU-other", [])]
)
def test_visible_gpus(
    read: Callable[..., dict[str, float]], control: Control, visible: str, seen: list[str]
) -> None:
    """Only those that the process may use are shown, by number or UUID; a lost one elsewhere is no matter."""
    control.write(gpus=[Gpu(), Gpu(), Gpu()])
    found = read("visible", CUDA_VISIBLE_DEVICES=visible)
    assert [name for name in ("0", "1", "2") if f"gpu_memory_used_bytes['{name}']" in found] == seen


def test_no_driver(read: Callable[..., dict[str, float]], control: Control) -> None:
    """A driver that is not loaded is gpu_up 0, and no error of ours."""
    control.write(gpus=[Gpu()], init=nvml_fake.DRIVER_NOT_LOADED)
    assert read() == {"gpu_up[]": 0}


@pytest.mark.parametrize("load", ["no module", "no library"])
def test_no_nvml(load: str) -> None:
    """Neither pynvml nor a library: gpu_up 0, tried again only after a while."""
    tries = []

    class NvmlError(Exception):
        pass

    def init() -> None:
        raise NvmlError("library not found")

    def loader() -> Any:
        tries.append(load)
        if load == "no module":
            raise ImportError
        return SimpleNamespace(nvmlInit=init, NVMLError=NvmlError)

    clock = Clock()
    errors = Errors()
    collector = NvmlCollector(errors, load=loader, clock=clock)
    for _ in range(3):
        collector.refresh()
    assert len(tries) == 1
    clock.advance(61)
    collector.refresh()
    assert len(tries) == 2
    assert read_here(collector) == {"gpu_up": 0}
    assert errors.counts["collector"] == 0


def test_a_slow_driver_does_not_slow_a_scrape(library: Path, control: Control, train: Any) -> None:
    """NVML is asked in the background: a scrape shows the last answer while a query takes minutes."""
    control.write(gpus=[Gpu(used=7)])
    trainer = train(
        "import fusewire, time; run = fusewire.attach(); print(run.port, flush=True); time.sleep(600)",
        **nvml_fake.environment(library, control),
    )
    port = int(trainer.line())
    eventually(lambda: samples(fetch(port)[1]).get('gpu_memory_used_bytes{gpu="0"}') == 7)
    control.write(gpus=[Gpu(used=8)], delay_ms=600_000)
    for _ in range(20):
        assert samples(fetch(port)[1])['gpu_memory_used_bytes{gpu="0"}'] == 7


# cgroups ---------------------------------------------------------------------------------------------------


def read_here(collector: Collector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def cgroups(tmp_path: Path, membership: str) -> CgroupCollector:
    (tmp_path / "membership").write_text(membership)
    return CgroupCollector(Errors(), tmp_path / "cgroup", tmp_path / "membership")


def test_cgroup_v2(tmp_path: Path) -> None:
    """Current, file cache, limit, peak and OOM kills of the process's cgroup."""
    write(
        tmp_path / "cgroup/job/step",
        memory__current="1000\n", memory__max="4000\n", memory__peak="2000\n",
        memory__events="low 0\noom 3\noom_kill 2\n", memory__stat="anon 600\ninactive_file 300\n",
    )  # fmt: skip
    assert read_here(cgroups(tmp_path, "0::/job/step\n")) == {
        "cgroup_memory_current_bytes": 1000,
        "cgroup_memory_inactive_file_bytes": 300,
        "cgroup_memory_limit_bytes": 4000,
        "cgroup_memory_peak_bytes": 2000,
        "cgroup_oom_kills_total": 2,
    }


def test_the_tightest_limit(tmp_path: Path) -> None:
    """A limit that stands at a parent counts, with the parent's usage; the root of a container has no files."""
    write(tmp_path / "cgroup/job/step", memory__current="1000", memory__max="max")
    write(tmp_path / "cgroup/job", memory__current="3500", memory__max="4000")
    seen = read_here(cgroups(tmp_path, "0::/job/step\n"))
    assert seen == {"cgroup_memory_current_bytes": 3500, "cgroup_memory_limit_bytes": 4000}


def test_without_a_limit(tmp_path: Path) -> None:
    """The limit is absent, not infinite or zero."""
    write(tmp_path / "cgroup", memory__current="1000", memory__max="max")
    assert read_here(cgroups(tmp_path, "0::/\n")) == {"cgroup_memory_current_bytes": 1000}


def test_the_path_of_the_host(tmp_path: Path) -> None:
    """In a container without a cgroup namespace the named folder is not there: the root is taken."""
    write(tmp_path / "cgroup", memory__current="1000", memory__max="2000")
    assert read_here(cgroups(tmp_path, "0::/kubepods/pod1/abc\n"))["cgroup_memory_limit_bytes"] == 2000


def test_cgroup_v1(tmp_path: Path) -> None:
    """The memory controller of version 1; its huge number for "no limit" is no limit."""
    files = {
        "memory__usage_in_bytes": "1000",
        "memory__limit_in_bytes": "9223372036854771712",
        "memory__max_usage_in_bytes": "2000",
        "memory__oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "memory__stat": "inactive_file 1\ntotal_inactive_file 300\n",
    }  # fmt: skip
    write(tmp_path / "cgroup/memory/job", **files)
    collector = cgroups(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n")
    assert read_here(collector) == {
        "cgroup_memory_current_bytes": 1000,
        "cgroup_memory_inactive_file_bytes": 300,
        "cgroup_memory_peak_bytes": 2000,
        "cgroup_oom_kills_total": 1,
    }
    write(tmp_path / "cgroup/memory/job", memory__limit_in_bytes="4000")
    assert read_here(collector)["cgroup_memory_limit_bytes"] == 4000


@pytest.mark.parametrize("membership", ["", "0::/nothing\n", "4:cpu:/job\n"])
def test_no_cgroup(tmp_path: Path, membership: str) -> None:
    """Without a memory cgroup there is nothing, and no error."""
    assert read_here(cgroups(tmp_path, membership)) == {}


def test_a_cgroup_file_full_of_nonsense(tmp_path: Path) -> None:
    """It is counted; the scrape goes on."""
    write(tmp_path / "cgroup", memory__current="many")
    (tmp_path / "membership").write_text("0::/\n")
    errors = Errors()
    assert read_here(CgroupCollector(errors, tmp_path / "cgroup", tmp_path / "membership")) == {}
    assert errors.counts["collector"] == 1


# torch -----------------------------------------------------------------------------------------------------


def allocator(initialised: bool) -> Any:
    def bytes_of(kind: int) -> Callable[[int], int]:
        def read(device: int) -> int:
            assert initialised, "this would initialise CUDA"
            return kind + device

        return read

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialised,
            device_count=lambda: 2,
            memory_allocated=bytes_of(100),
            memory_reserved=bytes_of(200),
        )
    )


def test_torch_allocator() -> None:
    """Allocated and reserved bytes by CUDA device (on a fake: no GPU was at hand)."""
    assert read_here(TorchMemoryCollector(Errors(), lambda: allocator(True))) == {
        'torch_cuda_memory_allocated_bytes{gpu="0"}': 100,
        'torch_cuda_memory_allocated_bytes{gpu="1"}': 101,
        'torch_cuda_memory_reserved_bytes{gpu="0"}': 200,
        'torch_cuda_memory_reserved_bytes{gpu="1"}': 201,
    }


@pytest.mark.parametrize("torch", [None, SimpleNamespace(), allocator(False)])
def test_torch_is_left_alone(torch: Any) -> None:
    """Not imported, half imported, CUDA not initialised: nothing is shown and nothing is touched."""
    errors = Errors()
    assert read_here(TorchMemoryCollector(errors, lambda: torch)) == {}
    assert errors.counts["collector"] == 0


def test_process_metrics(attach: Callable[..., fusewire.Run]) -> None:
    """Resident memory and the other standard process metrics are there."""
    seen = samples(fetch(attach().port)[1])
    assert seen["process_resident_memory_bytes"] > 1 << 20
    assert seen["process_open_fds"] > 3
