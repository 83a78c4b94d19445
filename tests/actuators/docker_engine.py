"""A Docker engine of the tests' own: started in a temporary folder, ended and removed afterwards."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

WANTED = os.environ.get("FUSEWIRE_TEST_DOCKER") == "1"
"""Then an engine that cannot be started is a failure, else a reason to skip."""
START_SECONDS = 30.0
SHELL_IMAGE = "fusewire-test-shell:1"
FLAGS = (
    "--iptables=false", "--ip6tables=false", "--bridge=none",
    "--containerd-namespace=fusewire-test", "--containerd-plugins-namespace=fusewire-test-plugins",
)  # fmt: skip
"""No network of its own and nothing left behind in the kernel's tables (containers use the host's network), and
apart from another engine of this machine where both use its containerd."""


class Engine:
    """A running dockerd."""

    def __init__(self, folder: Path, *, socket: Path | None = None) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock" if socket is None else socket
        self.endpoint = f"unix://{self.socket}"
        self.environment = {**os.environ, "DOCKER_HOST": self.endpoint, "DOCKER_CONFIG": str(folder / "config")}

    def docker(self, *arguments: str, stdin: bytes | None = None, check: bool = True) -> str:
        """What ``docker ARGUMENTS`` prints on stdout."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, input=stdin, capture_output=True, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="replace").strip()

    def images(self) -> set[str]:
        """``repository:tag`` of every image."""
        return set(self.docker("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines())

    def trainers(self) -> list[str]:
        """Names of all containers that an actuator has made, whatever their state."""
        return self.docker("ps", "--all", "--filter", "label=fusewire.run", "--format", "{{.Names}}").split()

    def clear(self) -> None:
        """Remove what :meth:`trainers` names."""
        if found := self.trainers():
            self.docker("rm", "--force", *found, check=False)

    def import_shell(self) -> None:
        """An image with a shell, ``sleep`` and nothing else, from this machine's own files."""
        if SHELL_IMAGE in self.images():
            return
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
            for program in ("/bin/sh", "/bin/sleep", "/bin/true", "/bin/cat", "/bin/tail"):
                archive.add(program, program)
            for library in _libraries(("/bin/sh", "/bin/sleep", "/bin/true", "/bin/cat", "/bin/tail")):
                archive.add(library, library)
            archive.addfile(_folder("/tmp"))
        self.docker("import", "-", SHELL_IMAGE, stdin=buffer.getvalue())


@contextlib.contextmanager
def running_engine() -> Iterator[Engine]:
    """Start dockerd; skip (or fail, with FUSEWIRE_TEST_DOCKER=1) where that is not possible.

    FUSEWIRE_TEST_DOCKER_SOCKET names one that runs already; its images are kept.
    """
    if given := os.environ.get("FUSEWIRE_TEST_DOCKER_SOCKET"):
        with tempfile.TemporaryDirectory(prefix="fwdocker-", dir="/tmp") as name:
            yield Engine(Path(name), socket=Path(given))
        return
    missing = [program for program in ("dockerd", "docker") if shutil.which(program) is None]
    if missing:
        unavailable(f"{' and '.join(missing)} not installed; tests/compose/setup.sh does")
    if os.geteuid() != 0:
        unavailable("only root can start dockerd")
    folder = Path(tempfile.mkdtemp(prefix="fwdocker-", dir="/tmp"))
    engine = Engine(folder)
    roots = ("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"))
    command = ["dockerd", "--host", engine.endpoint, *roots, "--pidfile", str(folder / "pid"), *FLAGS]
    try:
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                _until_ready(engine, process)
                yield engine
                engine.clear()
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    finally:
        _remove(folder)


def _until_ready(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if engine.socket.exists() and engine.docker("version", check=False):
            return
        time.sleep(0.1)
    lines = (engine.folder / "log").read_text(errors="replace").strip().splitlines()
    unavailable(f"dockerd does not start: {lines[-1] if lines else 'no output'}")


def _remove(folder: Path) -> None:
    """Remove what dockerd leaves; a mount that it has not undone yet is undone first."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point = line.split()[1]
        if point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def unavailable(why: str) -> NoReturn:
    """Skip, or fail where the engine is wanted."""
    if WANTED:
        pytest.fail(f"FUSEWIRE_TEST_DOCKER=1, but {why}")
    pytest.skip(f"no Docker engine: {why}")


def _libraries(programs: Sequence[str]) -> set[str]:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(/\S+\.so\S*)", said))


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777
    return info
