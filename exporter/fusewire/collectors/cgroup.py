"""Memory of the cgroup that limits this process, version 2 or 1.

A limit may stand at the process's own cgroup or at any of its parents (a Slurm job, a pod's slice); what counts is
the one with the smallest limit, and its own usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import core
from prometheus_client.registry import Collector

from fusewire import metrics
from fusewire.guard import Errors

_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number of bytes near 2^63."""


@dataclass(frozen=True)
class _Version:
    current: str
    limit: str
    peak: str
    events: str
    inactive_file: str
    """Key in ``memory.stat``, of the cgroup and all beneath it."""


_V2 = _Version("memory.current", "memory.max", "memory.peak", "memory.events", "inactive_file")
_V1 = _Version(
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "total_inactive_file",
)


class CgroupCollector(Collector):
    """Reads a few small files at each scrape; those that are not there are left out."""

    def __init__(
        self,
        errors: Errors,
        root: Path = Path("/sys/fs/cgroup"),
        membership: Path = Path("/proc/self/cgroup"),
    ) -> None:
        self._errors = errors
        self._root = root
        self._membership = membership

    def describe(self) -> Iterable[core.Metric]:
        """Nothing: what exists shows at a scrape."""
        return ()

    def collect(self) -> Iterator[core.Metric]:
        """Current, the file cache in it, limit, peak and OOM kills."""
        try:
            found = self._find()
            if found is None:
                return
            folder, files, limit = found
            values = (
                (metrics.CGROUP_CURRENT, _number(folder / files.current)),
                (metrics.CGROUP_INACTIVE_FILE, _keyed(folder / "memory.stat", files.inactive_file)),
                (metrics.CGROUP_LIMIT, limit),
                (metrics.CGROUP_PEAK, _number(folder / files.peak)),
                (metrics.CGROUP_OOM_KILLS, _keyed(folder / files.events, "oom_kill")),
            )
        except (OSError, ValueError) as error:
            self._errors.note("collector", error)
            return
        for metric, value in values:
            if value is not None:
                yield metric.value(value)

    def _find(self) -> tuple[Path, _Version, int | None] | None:
        """Folder of the tightest cgroup, how its files are called, and its limit."""
        for line in self._membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, files = self._root, _V2
            elif "memory" in controllers.split(","):
                root, files = self._root / "memory", _V1
            else:
                continue
            folder = _beneath(root, path)
            chain = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
            chain = [each for each in chain if (each / files.current).exists()]
            if not chain:
                continue
            limited = [(limit, each) for each in chain if (limit := _limit(each / files.limit)) is not None]
            if not limited:
                return chain[0], files, None
            limit, tightest = min(limited, key=lambda item: item[0])
            return tightest, files, limit
        return None


def _beneath(root: Path, path: str) -> Path:
    """The cgroup's folder; the root itself where a container does not see the host's path."""
    folder = root / path.strip("/")
    return folder if folder.is_dir() and ".." not in folder.parts else root


def _limit(path: Path) -> int | None:
    limit = _number(path)
    return None if limit is None or limit >= _UNLIMITED else limit


def _number(path: Path) -> int | None:
    """The number in the file; None without such a file, or for ``max``."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    return None if text == "max" else int(text)


def _keyed(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((int(value) for name, value in (line.split() for line in lines) if name == key), None)
