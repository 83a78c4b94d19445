"""GPU and memory: NVML, torch's allocator, resident memory against its limit, and where it is heading."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from grafana.frame import (
    Links,
    attempt_variable,
    frame,
    run_annotations,
    run_variable,
)
from grafana.panels import (
    BAD,
    GOOD,
    WARNING,
    AnyPanel,
    bars,
    graph,
    looks,
    number,
    query,
    steps,
    total,
)
from grafana.queries import ATTEMPTS, RUN, alert_number, alert_value, new

FULL = "GpuMemoryNearLimit"
LEAK = "HostMemoryLeak"
BY_GPU = "by (run, attempt, gpu)"


def dashboard(links: Links) -> Dashboard:
    """Build it."""
    built = frame(
        "fusewire-gpu",
        "fusewire / GPU and memory",
        "GPU memory, utilisation, temperature, power; torch's allocator; resident memory against its limit.",
        links,
        since="now-3h",
    )
    built.with_variable(run_variable(many=False)).with_variable(attempt_variable())
    for mark in run_annotations()[:3]:
        built.annotation(mark)
    for panel in _figures():
        built.with_panel(panel)
    built.with_row(Row("Host memory"))
    for panel in _host():
        built.with_panel(panel)
    folded = Row("GPU: memory, utilisation, temperature, power, errors")
    for panel in (*_gpu_memory(), *_gpu_health()):
        folded.with_panel(panel)
    return built.with_row(folded)


def _figures() -> list[AnyPanel]:
    size = (4, 3)
    return [
        number("NVML", "Whether NVML answers for every visible GPU of the run.", "none",
               query(f"min(gpu_up{{{RUN}}})", "NVML"), size=size,
               names={0: ("no answer", WARNING), 1: ("answers", GOOD)}),
        number("Fullest GPU", f"Memory in use, of the GPU that has least left. {FULL} tells people.", "percentunit",
               query(f"max(gpu_memory_used_bytes{{{RUN}}} / gpu_memory_total_bytes{{{RUN}}})", "used"), size=size,
               thresholds=steps((None, GOOD), (alert_number(FULL), BAD))),
        number("GPUs", "That the run's attempts have seen in the time shown.", "none",
               total(f"count(group by (gpu) (last_over_time(gpu_memory_total_bytes{{{RUN}}}[$__range])))", "GPUs"),
               size=size),
        number("Energy", "Used by the GPUs of the run's attempts in the time shown.", "joule",
               total(f"sum(increase(gpu_energy_joules_total{{{RUN}}}[$__range]))", "energy"), size=size),
        number("Resident memory", "Of the trainer's process.", "bytes",
               query(f"max(process_resident_memory_bytes{{{RUN}}})", "resident"), size=size),
        number("OOM kills", "Processes of the cgroup that the kernel killed for want of memory.", "none",
               query(f"max(cgroup_oom_kills_total{{{RUN}}})", "kills"), size=size,
               thresholds=steps((None, GOOD), (1, BAD))),
    ]  # fmt: skip


def _host() -> list[AnyPanel]:
    limit = f"max by (run, attempt) (cgroup_memory_limit_bytes{{{ATTEMPTS}}})"
    chosen = f'group by (run, attempt) (up{{job="fusewire",{ATTEMPTS}}})'
    return [
        graph(
            "Resident memory and its limit",
            "Of the trainer's process, and of the cgroup that limits it (other processes may be charged to that).",
            "bytes",
            query(f"max by (run, attempt) (process_resident_memory_bytes{{{ATTEMPTS}}})",
                  "resident, attempt {{attempt}}"),
            query(f"max by (run, attempt) (cgroup_memory_current_bytes{{{ATTEMPTS}}})",
                  "cgroup, attempt {{attempt}}"),
            query(f"max by (run, attempt) (cgroup_memory_peak_bytes{{{ATTEMPTS}}})",
                  "cgroup's peak, attempt {{attempt}}"),
            query(limit, "limit, attempt {{attempt}}"),
        ).min(0),
        graph(
            "Leak forecast",
            f"Resident memory as {LEAK} sees it ahead, by its own expression; it tells people above the limit. The "
            "first minutes of an attempt are noise.",
            "bytes",
            query(f"max by (run, attempt) ({alert_value(LEAK)} and on (run, attempt) {chosen})",
                  "forecast, attempt {{attempt}}"),
            query(limit, "limit, attempt {{attempt}}"),
        ).min(0),
        graph(
            "Processor and open files",
            "Cores that the trainer's process keeps busy; open files, right axis: a leak of those ends runs too.",
            "none",
            query(f"max by (attempt) (rate(process_cpu_seconds_total{{{ATTEMPTS}}}[$__rate_interval]))",
                  "cores, attempt {{attempt}}"),
            query(f"max by (attempt) (process_open_fds{{{ATTEMPTS}}})", "open files, attempt {{attempt}}"),
        ).override_by_regexp("/^open files/", looks(axisPlacement="right")),
    ]  # fmt: skip


def _gpu_memory() -> list[AnyPanel]:
    return [
        graph(
            "GPU memory",
            f"In use on each GPU, by anybody. {FULL} tells people at the limit.",
            "bytes",
            query(f"max {BY_GPU} (gpu_memory_used_bytes{{{ATTEMPTS}}})", "GPU {{gpu}}, attempt {{attempt}}"),
            query(f"{alert_number(FULL):g} * max {BY_GPU} (gpu_memory_total_bytes{{{ATTEMPTS}}})",
                  "limit, GPU {{gpu}}, attempt {{attempt}}"),
        ).min(0),
        graph(
            "GPU memory of the trainer",
            "Held by its process as NVML sees it; reserved by torch's caching allocator; in tensors. A growing gap "
            "between the last two is fragmentation.",
            "bytes",
            query(f"sum {BY_GPU} (gpu_process_memory_bytes{{{ATTEMPTS}}})", "process, GPU {{gpu}}"),
            query(f"sum {BY_GPU} (torch_cuda_memory_reserved_bytes{{{ATTEMPTS}}})", "reserved, GPU {{gpu}}"),
            query(f"sum {BY_GPU} (torch_cuda_memory_allocated_bytes{{{ATTEMPTS}}})", "tensors, GPU {{gpu}}"),
        ).min(0),
        graph(
            "GPU utilisation",
            "Share of time with a kernel running. An idle GPU is not always a fault.",
            "percentunit",
            query(f"max {BY_GPU} (gpu_utilization_ratio{{{ATTEMPTS}}})", "GPU {{gpu}}, attempt {{attempt}}"),
        ).min(0).max(1),
    ]  # fmt: skip


def _gpu_health() -> list[AnyPanel]:
    return [
        graph(
            "GPU temperature",
            "Of the core.",
            "celsius",
            query(f"max {BY_GPU} (gpu_temperature_celsius{{{ATTEMPTS}}})", "GPU {{gpu}}, attempt {{attempt}}"),
        ),
        graph(
            "GPU power",
            "From the energy counter of the driver.",
            "watt",
            query(f"max {BY_GPU} (rate(gpu_energy_joules_total{{{ATTEMPTS}}}[$__rate_interval]))",
                  "GPU {{gpu}}, attempt {{attempt}}"),
        ).min(0),
        bars(
            "Uncorrected ECC errors",
            "New ones per interval; any is a reason to take the GPU out of service.",
            "none",
            query(new("gpu_ecc_errors_total", ATTEMPTS, by="run, attempt, gpu"),
                  "GPU {{gpu}}, attempt {{attempt}}"),
        ),
    ]  # fmt: skip
