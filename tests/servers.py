"""Prometheus and Alertmanager on ports that the kernel picks as they bind: nobody else can be faster."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')


@dataclass(frozen=True)
class Server:
    """One that runs."""

    process: subprocess.Popen[bytes]
    url: str


@contextlib.contextmanager
def running(*command: str, folder: Path) -> Iterator[Server]:
    """Start a server in ``folder``; yields it once it is ready, and kills it at the end."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--web.listen-address=127.0.0.1:0"], cwd=folder, stdout=output, stderr=output
        )
    try:
        end = time.monotonic() + 60
        while (url := _ready(log)) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Server(process, url)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def _ready(log: Path) -> str | None:
    """The server's URL, once it answers."""
    found = _LISTENING.search(log.read_text())
    if found is None:
        return None
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://{found[1]}/-/ready", timeout=5).close()
        return f"http://{found[1]}"
    return None
