"""The whole stack in containers, from the committed files and compose.test.yaml."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from actuators.docker_engine import Engine, unavailable
from fusewire_webhook.breaker.state import RunState
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.engine.journal import Entry, Journal
from fusewire_webhook.errors import JournalError

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
PROJECT = "fusewire_stack"
PORTS = {"prometheus": 9090, "alertmanager": 9093, "webhook": 9095}
BUILD_SECONDS = 1800.0


class Stack:
    """See the module's docstring.

    Args:
        demo: with the settings of the demonstration; else those of a plain ``docker compose up``.
    """

    def __init__(self, engine: Engine, *, demo: bool = True) -> None:
        self.engine = engine
        self._settings = ("--env-file", "demo.env") if demo else ()
        self._environment = {**engine.environment, "DOCKER_SOCKET": str(engine.socket)}
        self._entries: list[Entry] = []

    def compose(self, *arguments: str, seconds: float = 120.0) -> str:
        """What ``docker compose ARGUMENTS`` prints."""
        files = (*self._settings, "-f", "compose.yaml", "-f", "compose.test.yaml")
        done = subprocess.run(
            ["docker", "compose", *files, *arguments],
            cwd=COMPOSE, env=self._environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"docker compose {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def container(self, service: str) -> str:
        """Name of a service's container."""
        return f"{PROJECT}-{service}-1"

    def inspect(self, service: str, template: str) -> str:
        """A value of a service's container, by a template of ``docker inspect``."""
        return self.engine.docker("inspect", "--format", template, self.container(service))

    def kill(self, service: str) -> None:
        """Kill a service's processes as the kernel would: what the engine is told to kill it does not restart."""
        os.kill(int(self.inspect(service, "{{.State.Pid}}")), signal.SIGKILL)

    def healthy(self, *services: str) -> bool:
        """Whether all of them say that they are."""
        return all(self.inspect(service, "{{.State.Health.Status}}") == "healthy" for service in services)

    def resident(self, service: str) -> int:
        """Bytes of memory of all processes of a service: the sum of their resident sets."""
        pids = self.engine.docker("top", self.container(service), "-o", "pid").split()[1:]
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def entries(self) -> list[Entry]:
        """The journal of the demonstration's run, as far as it can be read."""
        mount = self.engine.docker("volume", "inspect", "--format", "{{.Mountpoint}}", "fusewire-runs", check=False)
        path = Path(mount or "/nonexistent") / ".fusewire" / "journal.db"
        if path.exists():
            after = self._entries[-1].seq if self._entries else 0
            with contextlib.suppress(JournalError):
                self._entries += list(Journal(path, read_only=True).read("demo", after=after))
        return self._entries

    def state(self) -> RunState:
        """The breaker's state of the demonstration's run."""
        return fold(entry.event for entry in self.entries())

    def targets(self) -> list[tuple[str, str]]:
        """Host and health of every trainer that Prometheus scrapes."""
        with urllib.request.urlopen(
            "http://127.0.0.1:9090/api/v1/targets?scrapePool=fusewire", timeout=10
        ) as answer:
            found = json.load(answer)["data"]["activeTargets"]
        return [(urlsplit(target["scrapeUrl"]).hostname or "", target["health"]) for target in found]

    def ready(self) -> list[str]:
        """What ``/readyz`` of the webhook finds wrong; empty: it is ready."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:9095/readyz", timeout=10) as answer:
                found: list[str] = json.load(answer)["reasons"]
        except urllib.error.HTTPError as error:
            with error:
                found = json.load(error)["reasons"]
        return found

    def until(self, what: Callable[[], bool], seconds: float, *, why: str) -> float:
        """Wait; how long it took."""
        started = time.monotonic()
        while not what():
            if time.monotonic() - started > seconds:
                raise AssertionError(f"not within {seconds:.0f} s: {why}\n{self.story()}")
            time.sleep(0.1)
        return time.monotonic() - started

    def story(self) -> str:
        """What the demonstration and the webhook have said, for a failure's message."""
        said = [self.engine.docker("logs", "--tail", "60", self.container(name), check=False) for name in ("demo",)]
        return "\n".join([*said, str(self.state()), *(str(entry.event) for entry in self.entries()[-20:])])


@contextlib.contextmanager
def running_stack(engine: Engine, *, demo: bool = True) -> Iterator[Stack]:
    """A stack that is not up yet; leaving it ends all its containers and removes its volumes."""
    for service, port in PORTS.items():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                unavailable(f"port {port} of {service} is in use on this machine")
    stack = Stack(engine, demo=demo)
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--remove-orphans")
        engine.clear()
        engine.docker("volume", "rm", "--force", "fusewire-runs", check=False)


def install_compose(engine: Engine) -> None:
    """Make ``docker compose`` of the single binary that setup.sh has installed."""
    binary = ROOT / ".venv" / "bin" / "docker-compose"
    found = str(binary) if binary.exists() else shutil.which("docker-compose")
    if found is None:
        unavailable("docker compose is not installed; tests/compose/setup.sh does")
    plugins = engine.folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "docker-compose").unlink(missing_ok=True)
    (plugins / "docker-compose").symlink_to(found)


def build_images(engine: Engine) -> None:
    """The images of the test; minutes, the first time."""
    subprocess.run(
        [str(ROOT / "tests" / "compose" / "images.sh")],
        env=engine.environment, check=True, timeout=BUILD_SECONDS, stdout=subprocess.DEVNULL,
    )  # fmt: skip
