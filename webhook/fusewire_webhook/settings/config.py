"""The configuration: frozen dataclasses, loaded from one YAML file and checked before anything starts.

The schema is the dataclasses below: unknown keys and values of another type are refused with the key's path.
Secrets are named by file, never written into the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PLACEHOLDERS = ("run", "run_dir", "attempt", "lr_scale", "seed", "resume_from")
"""What ``{…}`` in a run's command is filled in."""
PURGE_PLACEHOLDERS = ("watermark", "run", "run_dir")
"""Likewise in its purge command."""


@dataclass(frozen=True, kw_only=True)
class AuthConfig:
    """Who may talk to the webhook. Without token files it listens on loopback only."""

    alert_token_file: str | None = None
    """File with the bearer token that Alertmanager and Prometheus send."""
    command_token_file: str | None = None
    """File with the bearer token of people (CLI, API, console)."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """TLS of the webhook's listener."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str | None = None
    """Require client certificates signed by it."""


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Where the webhook listens."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: 9095 for ``fusewire serve``, a free one for ``fusewire run``."""
    tls: TlsConfig | None = None


@dataclass(frozen=True, kw_only=True)
class PrometheusConfig:
    """The Prometheus that watches the runs. Without ``url``, ``fusewire run`` starts one."""

    url: str | None = None
    scrape_interval_seconds: float = 1.0
    evaluation_interval_seconds: float = 1.0
    rule_files: tuple[str, ...] = ()
    """Of a Prometheus started here: files, folders, globs, ``default``, ``preset:NAME``; empty: ``default``."""


@dataclass(frozen=True, kw_only=True)
class AlertmanagerConfig:
    """The Alertmanager that delivers the alerts. Without ``url``, ``fusewire run`` starts one."""

    url: str | None = None
    people_file: str | None = None
    """Of an Alertmanager started here: file with the integrations by which people are told; None: they are not."""


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """How an attempt is stopped."""

    grace_seconds: float = 30.0
    """Between SIGTERM to the root process and SIGTERM to what is left of its tree."""
    kill_seconds: float = 10.0
    """Between SIGTERM to the tree and SIGKILL, and again until every process must be gone."""
    gpu_release_seconds: float = 30.0
    """Bound on waiting for the tree's GPU memory to be seen free."""


@dataclass(frozen=True, kw_only=True)
class SnapshotConfig:
    """When a snapshot is written, when it becomes stable, and which are kept."""

    every_steps: int = 100
    """``run.snapshot_due`` is true at multiples of it."""
    watch_steps: int = 100
    """M: steps that Prometheus must have seen after a snapshot before it can become stable."""
    watch_seconds: float | None = None
    """T: seconds that must have passed too; None: longest ``for:`` + window + 2 × (scrape + evaluation)."""
    verify: Literal["full", "sampled"] = "full"
    keep_promoted: int = 3
    """The newest K promoted snapshots are always kept; older ones thin out exponentially."""
    keep_total: int = 20
    keep_days: float | None = None
    keep_bytes: int | None = None
    keep_quarantined: int = 5
    keep_quarantined_days: float = 1.0
    """What came into quarantine later than that, the number does not delete: a person may want it back."""
    keep_quarantined_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """What a failure changes at the restart, and how often."""

    lr_factor: float = 0.5
    """The learning-rate scale is multiplied by it at each divergence."""
    lr_scale_floor: float = 0.125
    new_seed: bool = True
    """A divergence restarts with a new seed and discards the snapshot's generator states."""
    divergences_per_incident: int = 3
    divergences_per_run: int = 10
    infrastructure_failures: int = 5
    """Infrastructure failures in a row (without a promotion between them) before LOCKED."""
    backoff_seconds: float = 1.0
    """Before the first infrastructure restart; doubles with each further one."""
    backoff_max_seconds: float = 300.0
    settle_seconds: float = 5.0
    """How long evidence on a self-inflicted exit may still arrive."""
    probation_steps: int | None = None
    """Watched steps within which an incident must end; None: 20 × watch_steps."""
    without_stable: Literal["scratch", "lock"] = "scratch"
    """What a divergence does while no snapshot is stable."""
    success_exit_codes: tuple[int, ...] = ()
    """Exit codes that mean finished although ``run.complete()`` was not called."""
    fatal_exit_codes: tuple[int, ...] = ()
    """Exit codes that mean: do not restart."""


@dataclass(frozen=True, kw_only=True)
class DockerConfig:
    """The trainer is a container that the webhook creates, not a process of its machine."""

    image: str
    """Must be on the Docker host: nothing is pulled."""
    endpoint: str = "unix:///var/run/docker.sock"
    """The Docker Engine API: a unix socket, or ``tcp://HOST:PORT`` of a socket proxy."""
    network: str = ""
    """Network that Prometheus is on too, or ``host``."""
    exporter_host: str | None = None
    """Address under which Prometheus reaches the exporter; None: the container's name on the network."""
    volumes: tuple[str, ...] = ()
    """``NAME:/path[:ro]`` or ``/path:/path[:ro]``; one holds the runs folder, at the webhook's own path."""
    user: str = ""
    """``UID[:GID]``; empty: the image's. It must be able to write what the webhook writes, and the reverse."""
    working_dir: str = ""
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm, which data loaders share memory through; None: the engine's default of 64 MiB."""
    cpus: float | None = None
    gpus: str = ""
    """``all``, a number, or ``device=ID,ID``; empty: none."""
    read_only: bool = False
    """The image's own files cannot be changed."""
    tmpfs: tuple[str, ...] = ()
    """Paths that are memory, such as ``/tmp``."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One guarded run."""

    command: tuple[str, ...]
    """argv; the :data:`PLACEHOLDERS` in it are filled in."""
    algorithm: str = ""
    mode: Literal["act", "observe"] = "act"
    """``observe`` journals what would have been done and does nothing."""
    seed: int = 0
    """Run seed; the seeds of the attempts derive from it."""
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    window_seconds: float = 10.0
    return_window_updates: int = 100
    purge_command: tuple[str, ...] = ()
    """Run after a rollback, with the :data:`PURGE_PLACEHOLDERS` filled in: removes the bad policy's data."""
    purge_timeout_seconds: float = 300.0
    docker: DockerConfig | None = None
    """None: a process of this machine."""
    stop: StopConfig = StopConfig()
    snapshots: SnapshotConfig = SnapshotConfig()
    retry: RetryConfig = RetryConfig()


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole file."""

    runs_dir: str = "runs"
    listen: ListenConfig = ListenConfig()
    auth: AuthConfig = AuthConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    runs: dict[str, RunConfig] = field(default_factory=dict)
