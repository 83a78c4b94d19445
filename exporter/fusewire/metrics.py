"""Every metric of the exporter, once: name, type, labels, help. Renaming one breaks everybody's alert rules.

The metrics of the training signals follow from :mod:`fusewire.signals`; :func:`sample_names` lists both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import core
from prometheus_client.samples import Sample

from fusewire.signals import CATALOGUE, Signal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric family."""

    name: str
    """As it stands in the exposition; counters end in ``_total``."""
    help: str
    kind: Kind = "gauge"
    labels: tuple[str, ...] = ()

    def family(self, samples: Iterable[tuple[Sequence[str], float]] = ()) -> core.Metric:
        """A gauge or counter family with these label values and values."""
        family = core.Metric(self.name.removesuffix("_total"), self.help, self.kind)
        family.samples = [
            Sample(self.name, dict(zip(self.labels, labels, strict=True)), value) for labels, value in samples
        ]
        return family

    def value(self, value: float) -> core.Metric:
        """A family of one sample without labels."""
        return self.family([((), value)])

    def histogram(self, buckets: Sequence[tuple[str, float]], total: float) -> core.Metric:
        """A histogram family; ``buckets`` are (upper bound, cumulative count), the last one ``+Inf``."""
        return core.HistogramMetricFamily(self.name, self.help, buckets=list(buckets), sum_value=total)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names of the series that a query can select."""
        if self.kind == "histogram":
            return tuple(self.name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.name,)


def last(signal: Signal) -> Metric:
    """``rl_<signal>``."""
    return Metric(name=f"rl_{signal.name}", help=f"{signal.help} Value of the last step that reported it.")


def run_min(signal: Signal) -> Metric:
    """``rl_<signal>_run_min{steps}``."""
    return Metric(
        name=f"rl_{signal.name}_run_min",
        help="Highest value that this many consecutive reports all reached, within the window.",
        labels=("steps",),
    )


def run_max(signal: Signal) -> Metric:
    """``rl_<signal>_run_max{steps}``."""
    return Metric(
        name=f"rl_{signal.name}_run_max",
        help="Lowest value that this many consecutive reports all stayed at or under, within the window.",
        labels=("steps",),
    )


def minibatch_max(signal: Signal) -> Metric:
    """``rl_<signal>_minibatch_max``."""
    return Metric(
        name=f"rl_{signal.name}_minibatch_max",
        help=f"{signal.help} Largest minibatch of the last step that was reported by minibatches.",
    )


REPORTS = Metric(
    name="rl_reports_total",
    kind="counter",
    labels=("signal",),
    help="Steps of this attempt that reported the signal.",
)
NONFINITE = Metric(
    name="rl_nonfinite_total",
    kind="counter",
    labels=("signal",),
    help="Reports that were NaN or infinite.",
)
NONFINITE_STREAK = Metric(
    name="rl_nonfinite_streak",
    labels=("signal",),
    help="Longest run of consecutive NaN or infinite reports that ended in the window.",
)
STEP = Metric(name="rl_step", help="Number of the last policy update, as the trainer counts it.")
UPDATES = Metric(name="rl_updates_total", kind="counter", help="Policy updates that this attempt has reported.")
ENV_STEPS = Metric(
    name="rl_env_steps_total", kind="counter", help="Environment steps so far, as the trainer counts them."
)
EPISODES = Metric(
    name="rl_episodes_total", kind="counter", help="Finished episodes so far, as the trainer counts them."
)
LR_SCALE = Metric(name="rl_lr_scale", help="Factor on the configured learning rate that the attempt was asked for.")
SECONDS_SINCE_STEP = Metric(
    name="rl_seconds_since_step",
    help="Seconds since the last step, or since the attachment before the first; declared phases do not count.",
)
STEP_DURATION = Metric(
    name="rl_step_duration_seconds", kind="histogram", help="Time between two steps, without declared phases."
)
STEP_DURATION_USUAL = Metric(name="rl_step_duration_usual_seconds", help="Median duration of the recent steps.")
PHASE = Metric(name="rl_phase", labels=("phase",), help="1 while the trainer is in this declared phase.")
PHASE_SECONDS = Metric(name="rl_phase_seconds", help="Time in the present phase; 0 outside.")
PHASE_EXPECTED = Metric(
    name="rl_phase_expected_seconds", help="Time that the present phase was said to take; 0 outside or unsaid."
)
RETURN_SMOOTHED = Metric(
    name="rl_episode_return_smoothed", help="Mean of the last 10 finite reports of the episode return."
)
RETURN_PEAK = Metric(
    name="rl_episode_return_peak",
    help="Highest smoothed return of the rolling window, in the snapshot's lineage.",
)
RETURN_FLOOR = Metric(
    name="rl_episode_return_floor",
    help="Lowest smoothed return of the rolling window, in the snapshot's lineage.",
)
SNAPSHOTS = Metric(name="rl_snapshots_total", kind="counter", help="Snapshots that are complete on disk.")
SNAPSHOT_FAILURES = Metric(
    name="rl_snapshot_failures_total",
    kind="counter",
    labels=("reason",),
    help="Snapshots that were not written, or not on time.",
)
SNAPSHOT_LAST_STEP = Metric(name="rl_snapshot_last_step", help="Step of the newest complete snapshot.")
SNAPSHOT_STALL = Metric(
    name="rl_snapshot_stall_seconds", kind="histogram", help="Time for which a snapshot held up the training loop."
)
SNAPSHOT_IN_FLIGHT = Metric(name="rl_snapshot_in_flight", help="Snapshots that are being written now.")
ERRORS = Metric(
    name="fusewire_exporter_errors_total",
    kind="counter",
    labels=("where",),
    help="Errors of the exporter itself, kept away from the training loop.",
)
INFO = Metric(name="fusewire_exporter_info", labels=("version",), help="1, with the version of fusewire.")

GPU_UP = Metric(name="gpu_up", help="1 if NVML answers for every visible GPU.")
GPU_MEMORY_USED = Metric(name="gpu_memory_used_bytes", labels=("gpu",), help="Memory in use on the GPU.")
GPU_MEMORY_TOTAL = Metric(name="gpu_memory_total_bytes", labels=("gpu",), help="Memory of the GPU.")
GPU_PROCESS_MEMORY = Metric(
    name="gpu_process_memory_bytes",
    labels=("gpu",),
    help="Memory on the GPU held by this process; absent where NVML does not list it.",
)
GPU_UTILIZATION = Metric(
    name="gpu_utilization_ratio", labels=("gpu",), help="Share of the last sample time with a kernel running."
)
GPU_TEMPERATURE = Metric(name="gpu_temperature_celsius", labels=("gpu",), help="Temperature of the GPU's core.")
GPU_ENERGY = Metric(
    name="gpu_energy_joules_total", kind="counter", labels=("gpu",), help="Energy used since the driver was loaded."
)
GPU_ECC = Metric(
    name="gpu_ecc_errors_total",
    kind="counter",
    labels=("gpu",),
    help="Uncorrected ECC errors since the driver was loaded.",
)
TORCH_ALLOCATED = Metric(
    name="torch_cuda_memory_allocated_bytes", labels=("gpu",), help="Memory in tensors (CUDA device number)."
)
TORCH_RESERVED = Metric(
    name="torch_cuda_memory_reserved_bytes",
    labels=("gpu",),
    help="Memory held by the caching allocator (CUDA device number).",
)
CGROUP_CURRENT = Metric(name="cgroup_memory_current_bytes", help="Memory charged to the cgroup that limits us.")
CGROUP_INACTIVE_FILE = Metric(
    name="cgroup_memory_inactive_file_bytes",
    help="File cache in it that the kernel drops before it kills a process.",
)
CGROUP_LIMIT = Metric(name="cgroup_memory_limit_bytes", help="Its limit; absent without one.")
CGROUP_PEAK = Metric(name="cgroup_memory_peak_bytes", help="Most memory that was ever charged to it.")
CGROUP_OOM_KILLS = Metric(
    name="cgroup_oom_kills_total", kind="counter", help="Processes of it killed for want of memory."
)

ALL: tuple[Metric, ...] = (
    REPORTS, NONFINITE, NONFINITE_STREAK, STEP, UPDATES, ENV_STEPS, EPISODES, LR_SCALE, SECONDS_SINCE_STEP,
    STEP_DURATION, STEP_DURATION_USUAL, PHASE, PHASE_SECONDS, PHASE_EXPECTED, RETURN_SMOOTHED, RETURN_PEAK,
    RETURN_FLOOR, SNAPSHOTS, SNAPSHOT_FAILURES, SNAPSHOT_LAST_STEP, SNAPSHOT_STALL, SNAPSHOT_IN_FLIGHT, ERRORS,
    INFO, GPU_UP,
    GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_PROCESS_MEMORY, GPU_UTILIZATION, GPU_TEMPERATURE, GPU_ENERGY, GPU_ECC,
    TORCH_ALLOCATED, TORCH_RESERVED, CGROUP_CURRENT, CGROUP_INACTIVE_FILE, CGROUP_LIMIT, CGROUP_PEAK,
    CGROUP_OOM_KILLS,
)  # fmt: skip

PROCESS_NAMES: tuple[str, ...] = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)
"""Series of :class:`prometheus_client.ProcessCollector`."""


def sample_names(signals: Sequence[Signal] = CATALOGUE) -> frozenset[str]:
    """Name of every series that an exporter with these signals can show."""
    families = [*ALL]
    for signal in signals:
        families += [last(signal), run_min(signal), run_max(signal)]
        families.append(minibatch_max(signal))
    return frozenset(PROCESS_NAMES).union(*(family.sample_names for family in families))
