"""What a configuration must satisfy beyond its types, whether it came from a file or from flags."""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fusewire.attempt import check_run_name
from fusewire.errors import RunNameError
from fusewire_webhook.actuators.docker_spec import volume_parts
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings import packs
from fusewire_webhook.settings.config import (
    PLACEHOLDERS,
    PURGE_PLACEHOLDERS,
    AuthConfig,
    Config,
    DockerConfig,
    ListenConfig,
    RetryConfig,
    RunConfig,
)
from fusewire_webhook.settings.problems import Problems
from fusewire_webhook.settings.redact import exposed, read_secret

_Complain = Callable[[str, str], None]
"""``complain(key, what)`` notes what is wrong at a key, with the remedy; checking goes on."""

_PLACEHOLDER = re.compile(r"(?<![${])\{([A-Za-z_]\w*)\}(?!\})")
"""Neither a variable of the shell nor another program's template."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check(config: Config, *, source: str) -> None:
    """Refuse a configuration that could not work or would not be safe.

    Args:
        source: the file, or ``command line``, for the message.

    Raises:
        ConfigError: names the source, the keys and the remedies.
    """
    problems = Problems(source)
    complain = problems.add
    _listener(config.listen, config.auth, complain)
    for key, url in (("prometheus.url", config.prometheus.url), ("alertmanager.url", config.alertmanager.url)):
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            complain(key, f"{url!r} is no address; write one such as http://127.0.0.1:9090")
        if url is not None and urlsplit(url).password is not None:
            complain(key, "holds a password, which logs and the process list would show; leave it out")
    people = config.alertmanager.people_file
    if people is not None and config.alertmanager.url is not None:
        complain(
            "alertmanager.people_file", "is for an Alertmanager that fusewire starts; yours has its own receivers"
        )
    elif people is not None and not Path(people).is_file():
        complain("alertmanager.people_file", f"{people}: no such file")
    for name in ("scrape_interval_seconds", "evaluation_interval_seconds"):
        if getattr(config.prometheus, name) <= 0:
            complain(f"prometheus.{name}", "must be more than 0")
    for path in packs.rule_files(config.prometheus.rule_files):
        if not (Path(path).is_dir() or any(Path(path).parent.glob(Path(path).name))):
            complain("prometheus.rule_files", f"{path}: no such file")
    for name, run in config.runs.items():
        try:
            check_run_name(name)
        except RunNameError as error:
            complain("runs", str(error))
        _run(run, f"runs.{name}", complain, scrape_seconds=config.prometheus.scrape_interval_seconds)
        if run.docker is not None:
            _docker(run, run.docker, f"runs.{name}", complain, runs_dir=Path(config.runs_dir).absolute())
    problems.refuse()


def require_runs(config: Config, *, source: str) -> None:
    """Refuse a configuration that guards nothing: an empty selection never means "all".

    Raises:
        ConfigError: ``runs`` is empty.
    """
    if not config.runs:
        raise ConfigError(
            f"{source}: runs: which runs? Name at least one, with its command, "
            "or call: fusewire run --name NAME -- COMMAND …"
        )


def require_commands(config: Config, *, source: str) -> None:
    """Refuse a command that this machine cannot start, before anything is started for it.

    Raises:
        ConfigError: names the runs and the programs.
    """
    problems = Problems(source)
    for name, run in config.runs.items():
        program = run.command[0]
        if run.docker is None and "{" not in program and _which(program, run) is None:
            where = f"in {Path(run.cwd or '.').absolute()}" if "/" in program else "on PATH"
            problems.add(
                f"runs.{name}.command",
                f"there is no program {program} {where}; correct the command, such as python train.py",
            )
    problems.refuse()


def _which(program: str, run: RunConfig) -> str | None:
    """As the trainer's start looks for it: in its folder and with its own PATH."""
    where = Path(run.cwd or ".").absolute() / program if "/" in program else program
    return shutil.which(where, path=run.env.get("PATH"))


def warnings(config: Config) -> tuple[str, ...]:
    """What is legal and still worth a sentence to the user."""
    found = [
        f"{key}: {path} can be read by every user of this host; chmod 600 {path}"
        for key, path in _token_files(config.auth)
        if exposed(path)
    ]
    if (
        config.auth.alert_token_file is not None
        and config.listen.tls is None
        and not is_loopback(config.listen.host)
    ):
        found.append("listen.tls: tokens travel in clear text beyond this host; set a certificate")
    for name, run in config.runs.items():
        found += _unfilled(f"runs.{name}.command", run.command, PLACEHOLDERS)
        found += _unfilled(f"runs.{name}.purge_command", run.purge_command, PURGE_PLACEHOLDERS)
    return tuple(found)


def _unfilled(key: str, argv: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """Placeholders that nobody fills in: a misspelt one, or the trainer's own."""
    for name in dict.fromkeys(name for word in argv for name in _PLACEHOLDER.findall(word)):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {{{close[0]}}}?" if close else f"filled in are {{{'}, {'.join(known)}}}"
            yield f"{key}: {{{name}}} goes to the program as it stands; {remedy}"


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a listener on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token_files(auth: AuthConfig) -> list[tuple[str, str]]:
    named = (("auth.alert_token_file", auth.alert_token_file), ("auth.command_token_file", auth.command_token_file))
    return [(key, path) for key, path in named if path is not None]


def _listener(listen: ListenConfig, auth: AuthConfig, complain: _Complain) -> None:
    if listen.port is not None and not 0 <= listen.port <= 65535:
        complain("listen.port", f"{listen.port} is no port: take 1 to 65535, or 0 for a free one")
    if not listen.host:
        complain("listen.host", "is empty; 127.0.0.1 for this host only, 0.0.0.0 for every network")
    tokens = _token_files(auth)
    if listen.host and not is_loopback(listen.host) and len(tokens) < 2:
        complain(
            "listen.host",
            f"{listen.host} can be reached from other hosts, who could stop your runs: set "
            "auth.alert_token_file and auth.command_token_file, or listen on 127.0.0.1",
        )
    secrets = []
    for key, path in tokens:
        try:
            secrets.append(read_secret(path, key=key))
        except ConfigError as error:
            complain(*str(error).split(": ", 1))
    if len(secrets) == 2 and secrets[0].matches(secrets[1].reveal()):
        complain("auth.command_token_file", "holds the alert token; whoever sends alerts must not command runs")
    if listen.tls is not None:
        for name in ("cert_file", "key_file"):
            if not getattr(listen.tls, name):
                complain(f"listen.tls.{name}", "is missing; TLS needs cert_file and key_file")
        for field in dataclasses.fields(listen.tls):
            path = getattr(listen.tls, field.name)
            if path and not Path(path).is_file():
                complain(f"listen.tls.{field.name}", f"{path}: no such file")


def _run(run: RunConfig, key: str, complain: _Complain, *, scrape_seconds: float) -> None:
    if not run.command or not run.command[0]:
        complain(f"{key}.command", "is empty; write the trainer's argv, such as [python, train.py]")
    if run.cwd is not None and not Path(run.cwd).is_dir():
        complain(f"{key}.cwd", f"{run.cwd}: no such folder")
    for name, value in run.env.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in value:
            complain(f"{key}.env", f"{name!r} is no name of a variable, or its value holds a NUL")
        if name.startswith("FUSEWIRE_"):
            complain(f"{key}.env", f"{name} is set by fusewire itself; leave it out")
    if run.window_seconds < 2 * scrape_seconds:
        complain(
            f"{key}.window_seconds",
            f"{run.window_seconds:g} s is shorter than two scrapes ({2 * scrape_seconds:g} s): "
            "what happens between them would not be seen",
        )
    _numbers(run, key, complain)
    _retry(run.retry, f"{key}.retry", complain)
    if run.snapshots.keep_total < run.snapshots.keep_promoted:
        complain(f"{key}.snapshots.keep_total", "is less than keep_promoted")


def _docker(run: RunConfig, docker: DockerConfig, key: str, complain: _Complain, *, runs_dir: Path) -> None:
    if run.cwd is not None:
        complain(f"{key}.cwd", "is a folder of this machine; for a container set docker.working_dir")
    if not docker.image:
        complain(f"{key}.docker.image", "is empty; name the image that holds the trainer")
    if re.fullmatch(r"unix:///.+|tcp://[^/:]+:\d+", docker.endpoint) is None:
        complain(
            f"{key}.docker.endpoint",
            f"{docker.endpoint!r} is no address; write unix:///var/run/docker.sock or tcp://HOST:PORT",
        )
    if docker.network in ("", "bridge", "default", "none"):
        complain(
            f"{key}.docker.network",
            f"{docker.network!r} gives containers no name; take a network that Prometheus is on too, or host",
        )
    if re.fullmatch(r"(\d+(:\d+)?)?", docker.user) is None:
        complain(f"{key}.docker.user", f"{docker.user!r} is none; write UID or UID:GID, such as '10001:10001'")
    if re.fullmatch(r"(all|[1-9]\d*|device=[^,\s]+(,[^,\s]+)*)?", docker.gpus) is None:
        complain(f"{key}.docker.gpus", f"{docker.gpus!r} is none; write all, a number, or device=0,1")
    targets = []
    for volume in docker.volumes:
        parts = volume_parts(volume)
        if parts is None:
            complain(f"{key}.docker.volumes", f"{volume!r} is none; write NAME:/path or NAME:/path:ro")
        elif not parts[2]:
            targets.append(parts[1])
    if not any(runs_dir.is_relative_to(target) for target in targets):
        complain(
            f"{key}.docker.volumes",
            f"none of them holds the runs folder; mount one at {runs_dir}, here and in the trainer",
        )


def _retry(retry: RetryConfig, key: str, complain: _Complain) -> None:
    if not 0 < retry.lr_factor <= 1:
        complain(f"{key}.lr_factor", f"{retry.lr_factor:g} is not in (0, 1]; 0.5 halves, 1 keeps the rate")
    if not 0 < retry.lr_scale_floor <= 1:
        complain(f"{key}.lr_scale_floor", f"{retry.lr_scale_floor:g} is not in (0, 1]")
    if retry.backoff_max_seconds < retry.backoff_seconds:
        complain(f"{key}.backoff_max_seconds", "is less than backoff_seconds")
    for name in ("success_exit_codes", "fatal_exit_codes"):
        if any(not 0 <= code <= 255 for code in getattr(retry, name)):
            complain(f"{key}.{name}", "holds a number that is no exit code: 0 to 255")
    both = set(retry.success_exit_codes) & set(retry.fatal_exit_codes)
    if both:
        complain(f"{key}.fatal_exit_codes", f"{min(both)} stands in success_exit_codes too")


_MAY_BE_ZERO = {
    "seed",
    "every_steps",
    "keep_quarantined",
    "keep_quarantined_days",
    "grace_seconds",
    "backoff_seconds",
    "settle_seconds",
}
_CHECKED_ELSEWHERE = {"lr_factor", "lr_scale_floor"}


def _numbers(section: object, key: str, complain: _Complain) -> None:
    """Every number of a run's section is positive, or not negative where 0 has a meaning."""
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, field.name)
        path = f"{key}.{field.name}"
        if dataclasses.is_dataclass(value):
            _numbers(value, path, complain)
        elif (
            isinstance(value, int | float) and not isinstance(value, bool) and field.name not in _CHECKED_ELSEWHERE
        ):
            if field.name in _MAY_BE_ZERO and value < 0:
                complain(path, f"{value:g} is negative")
            if field.name not in _MAY_BE_ZERO and value <= 0:
                complain(path, f"{value:g} must be more than 0")
