"""Which Prometheus and Alertmanager are used, and what their own checkers say about files."""

from __future__ import annotations

import asyncio
import glob
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewire_webhook.errors import ConfigError, StackError

RELOAD_FLAG = "--scrape.discovery-reload-interval"
CHECK_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """Programs of the stack, as absolute paths; None where it is not needed or not installed."""

    prometheus: str | None
    alertmanager: str | None
    promtool: str | None


def find_binaries(*, prometheus: bool, alertmanager: bool, path: str | None = None) -> Binaries:
    """Look for the programs that are needed on ``path`` (by default ``PATH``).

    Raises:
        ConfigError: one is missing; the message names the Debian package that brings it.
    """
    return Binaries(
        prometheus=_which(("prometheus",), "prometheus", path) if prometheus else None,
        alertmanager=(
            _which(("alertmanager", "prometheus-alertmanager"), "prometheus-alertmanager", path)
            if alertmanager
            else None
        ),
        promtool=shutil.which("promtool", path=path),
    )


def _which(names: Sequence[str], package: str, path: str | None) -> str:
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return str(Path(found).resolve())
    raise ConfigError(
        f"no program {' or '.join(names)} on PATH: install it (Debian: apt-get install {package}) "
        "or name the URL of a running one in the configuration"
    )


def resolve_rule_files(patterns: Sequence[str | Path]) -> tuple[str, ...]:
    """Absolute paths of the rule files that files, folders and globs name, each once and in order.

    Raises:
        ConfigError: one of them names no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        else:
            files = [Path(name) for name in sorted(glob.glob(str(path)))]  # noqa: PTH207 (absolute patterns)
        files = [file for file in files if file.is_file()]
        if not files:
            raise ConfigError(f"{pattern}: no rule file is there; see prometheus.rule_files")
        found.update((str(file.resolve()), None) for file in files)
    return tuple(found)


async def check_rules(promtool: str | None, files: Sequence[str]) -> None:
    """Let promtool read the rule files; without promtool Prometheus itself will refuse a bad one.

    Raises:
        ConfigError: promtool refuses one, in promtool's own words with file and line.
    """
    if promtool is None or not files:
        return
    code, output = await _run(promtool, "check", "rules", *files)
    if code == 0:
        return
    raise ConfigError(
        f"rule file is not usable: {_first_complaint(output, files)}; correct it: `fusewire check` tells all"
    )


def _first_complaint(output: str, files: Sequence[str]) -> str:
    """The first file that promtool complains of, with its words in one line."""
    lines = [line.strip() for line in output.splitlines()]
    about = [number for number, line in enumerate(lines) if line.startswith(tuple(files))]
    if not about:
        return lines[-1] if lines else "promtool failed"
    words = [lines[about[0]]]
    for line in lines[about[0] + 1 :]:
        if not line or line.startswith((*files, "Checking")):
            break
        words.append(line)
    return " ".join(words)


async def takes_reload_flag(prometheus: str) -> bool:
    """Does this Prometheus know the hidden flag that passes discovered targets on sooner than every 5 s?"""
    code, _ = await _run(prometheus, f"{RELOAD_FLAG}=1s", "--version")
    return code == 0


async def _run(*argv: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CHECK_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise StackError(f"{argv[0]} did not answer within {CHECK_SECONDS:g} s") from None
    return process.returncode or 0, output.decode(errors="replace")
