"""The configuration file: what is accepted, and the one line that each mistake gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire.attempt import AttemptParameters
from fusewire_webhook.engine.launching import launch_of, purge_argv
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings import checks, loader
from fusewire_webhook.settings.config import PLACEHOLDERS, PURGE_PLACEHOLDERS, Config, RunConfig

TOKEN = "k7Zq0vJ2mB4xR9sT1wY6"


def write(folder: Path, text: str) -> Path:
    path = folder / "fusewire.yml"
    path.write_text(text)
    return path


def errors(folder: Path, text: str) -> list[str]:
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        loader.load(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(str(path)) for line in lines]


def error(folder: Path, text: str) -> str:
    (only,) = errors(folder, text)
    return only


def run_with(settings: str) -> str:
    return f"runs:\n  cartpole:\n    command: [python, train.py]\n{settings}"


def test_a_file_becomes_the_dataclasses(tmp_path: Path) -> None:
    """Nested sections, lists, durations and defaults arrive as the dataclasses say."""
    path = write(
        tmp_path,
        run_with(
            "    algorithm: ppo\n    env: {OMP_NUM_THREADS: '1'}\n    stop: {grace_seconds: 1m}\n"
            "    snapshots: {every_steps: 20, watch_seconds: 250ms}\n    retry: {success_exit_codes: [0, 7]}\n"
        ),
    )
    run = loader.load(path).runs["cartpole"]
    assert run.command == ("python", "train.py")
    assert run.algorithm == "ppo"
    assert run.env == {"OMP_NUM_THREADS": "1"}
    assert run.stop.grace_seconds == 60.0
    assert run.snapshots.watch_seconds == 0.25
    assert run.snapshots.watch_steps == 100
    assert run.retry.success_exit_codes == (0, 7)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """A relative path in the file means the same from whatever folder fusewire is called."""
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    path = write(tmp_path, "runs_dir: somewhere\nprometheus: {rule_files: [rules.yaml]}\n")
    config = loader.load(path)
    assert config.runs_dir == str(tmp_path / "somewhere")
    assert config.prometheus.rule_files == (str(tmp_path / "rules.yaml"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            run_with("    retry: {lr_facter: 0.5}"),
            ": runs.cartpole.retry.lr_facter: unknown key; did you mean 'lr_factor'?",
        ),
        ("lissen: {port: 1}", ": lissen: unknown key; did you mean 'listen'?"),
        ("listen: {port: '9095'}", ": listen.port: must be a whole number, not '9095'"),
        ("listen: {port: yes}", ": listen.port: must be a whole number, not True"),
        ("listen: 9095", ": listen: must hold keys and values, not 9095"),
        ("runs: {a: {}}", ": runs.a.command: is missing"),
        (
            "runs: {a: {command: python train.py}}",
            ": runs.a.command: must be a list, such as [python, train.py], not 'python train.py'",
        ),
        ("runs: {a: {command: []}}", ": runs.a.command: is empty;"),
        (
            run_with("    env: {OMP_NUM_THREADS: 1}"),
            ": runs.cartpole.env.OMP_NUM_THREADS: must be a text, not 1; put it in quotes: '1'",
        ),
        (run_with("    env: {FUSEWIRE_SEED: '1'}"), ": runs.cartpole.env: FUSEWIRE_SEED is set by fusewire"),
        (run_with("    mode: look"), ": runs.cartpole.mode: 'look' is not one of: act, observe"),
        (
            run_with("    stop: {grace_seconds: 5 parsecs}"),
            ": runs.cartpole.stop.grace_seconds: must be seconds, or a duration such as 250ms, 1s, 5m",
        ),
        (run_with("    seed: -1"), ": runs.cartpole.seed: -1 is negative"),
        (run_with("    stop: {grace_seconds: .inf}"), ": runs.cartpole.stop.grace_seconds: must be seconds"),
        (run_with("    stop: {kill_seconds: 0}"), ": runs.cartpole.stop.kill_seconds: 0 must be more than 0"),
        (run_with("    retry: {lr_factor: 1.5}"), ": runs.cartpole.retry.lr_factor: 1.5 is not in (0, 1]"),
        (run_with("    snapshots: {watch_steps: 0}"), ": runs.cartpole.snapshots.watch_steps: 0 must be more"),
        (run_with("    snapshots: {keep_total: 1}"), ": runs.cartpole.snapshots.keep_total: is less than"),
        (run_with("    retry: {fatal_exit_codes: [300]}"), ": runs.cartpole.retry.fatal_exit_codes: holds"),
        (
            run_with("    retry: {fatal_exit_codes: [3], success_exit_codes: [3]}"),
            ": runs.cartpole.retry.fatal_exit_codes: 3 stands in success_exit_codes too",
        ),
        (run_with("    window_seconds: 1s"), ": runs.cartpole.window_seconds: 1 s is shorter than two scrapes"),
        (run_with("    cwd: nowhere"), ": runs.cartpole.cwd: "),
        ("runs: {../x: {command: [a]}}", ": runs: run name '../x' is not usable"),
        ("prometheus: {scrape_interval_seconds: 0}", ": prometheus.scrape_interval_seconds: must be more than 0"),
        ("prometheus: {url: localhost:9090}", ": prometheus.url: 'localhost:9090' is no address"),
        ("prometheus: {rule_files: [none.yaml]}", ": prometheus.rule_files: "),
        ("alertmanager: {people_file: none.yml}", ": alertmanager.people_file: "),
        (
            "alertmanager: {url: 'http://a:9093', people_file: fusewire.yml}",
            ": alertmanager.people_file: is for an Alertmanager that fusewire starts; yours has its own receivers",
        ),
        ("listen: {host: 0.0.0.0}", ": listen.host: 0.0.0.0 can be reached from other hosts"),
        ("listen: {port: 70000}", ": listen.port: 70000 is no port"),
        ("listen: {tls: {cert_file: fusewire.yml}}", ": listen.tls.key_file: is missing"),
        ("auth: {alert_token_file: none}", ": auth.alert_token_file: "),
        ("a: b: c\n", ":1: not YAML: mapping values are not allowed here"),
        ("runs_dir: a\nlisten: {\n", ":3: not YAML: "),
        ("runs_dir: a\nruns_dir: b\n", ":2: not YAML: the key 'runs_dir' stands here twice"),
        ("? [a, b]\n: c\n", ":1: not YAML: a key must be a text"),
        ("runs_dir: !!python/object/apply:os.getcwd []\n", ":1: not YAML: "),
        ("runs_dir: 2024-02-31\n", ": not YAML: day is out of range for month"),
        ("- a\n", ": must hold keys and values, not a list"),
    ],
)
def test_a_mistake_gets_one_line_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    """Every mistake is refused with the file, the key's path and what to write instead."""
    assert error(tmp_path, text).startswith(message)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Who wrote several mistakes is told of each in a line of its own, whatever depth they lie at."""
    text = "lissen: 1\nlisten: {port: yes}\nruns: {a: {command: [1, 2]}, b: {}}\n"
    assert [line.split(": ")[1] for line in errors(tmp_path, text)] == [
        "lissen",
        "listen.port",
        "runs.a.command[0]",
        "runs.a.command[1]",
        "runs.b.command",
    ]
    text = "listen: {port: -1}\nruns: {a: {command: [], cwd: none, seed: 1, window_seconds: 1s}}\n"
    assert [line.split(": ")[1] for line in errors(tmp_path, text)] == [
        "listen.port",
        "runs.a.command",
        "runs.a.cwd",
        "runs.a.window_seconds",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that does not exist is named together with the flag that names another."""
    with pytest.raises(ConfigError, match=r"none\.yml: no such file; name another with --config"):
        loader.load(tmp_path / "none.yml")


def test_no_runs_means_none_not_all(tmp_path: Path) -> None:
    """An empty ``runs`` loads (``fusewire check`` may want it) but is refused where runs are to be guarded."""
    config = loader.load(write(tmp_path, "runs: {}\n"))
    with pytest.raises(ConfigError, match="which runs"):
        checks.require_runs(config, source="fusewire.yml")


def test_a_placeholder_that_nobody_fills_in_is_a_warning(tmp_path: Path) -> None:
    """With the one that was meant; those that exist, a shell's variables and other templates are fine."""
    right = ["{" + name + "}" for name in PLACEHOLDERS]
    command = ["python", "{lr_scal}", "--keep={step}", "${HOME}", "{{x}}", '{"a": 1}', *right]
    config = Config(runs={"toy": RunConfig(command=tuple(command), purge_command=("rm", "{watermark}", "{seed}"))})
    assert checks.warnings(config) == (
        "runs.toy.command: {lr_scal} goes to the program as it stands; did you mean {lr_scale}?",
        "runs.toy.command: {step} goes to the program as it stands; "
        "filled in are {run}, {run_dir}, {attempt}, {lr_scale}, {seed}, {resume_from}",
        "runs.toy.purge_command: {seed} goes to the program as it stands; "
        "filled in are {watermark}, {run}, {run_dir}",
    )


def test_every_placeholder_that_there_is_gets_filled_in(tmp_path: Path) -> None:
    """In the command and in the purge command, each by something."""
    config = RunConfig(
        command=tuple(f"-{{{name}}}" for name in PLACEHOLDERS),
        purge_command=tuple(f"-{{{name}}}" for name in PURGE_PLACEHOLDERS),
    )
    parameters = AttemptParameters(run="toy", run_dir=str(tmp_path), attempt=3, resume_from="step-1")
    purge = purge_argv(config, run="toy", run_dir=tmp_path, watermark="w")
    assert not [word for word in (*launch_of(parameters, config).argv, *purge) if "{" in word or word == "-"]


def test_a_token_file_that_all_can_read_is_a_warning(tmp_path: Path) -> None:
    """An exposed token file is announced with the remedy; a private one is not."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o644)
    config = loader.load(write(tmp_path, "auth: {alert_token_file: token}\n"))
    assert "chmod 600" in checks.warnings(config)[0]
    token.chmod(0o600)
    assert checks.warnings(config) == ()


def test_beyond_loopback_needs_two_different_tokens(tmp_path: Path) -> None:
    """A listener that others reach needs both tokens, and whoever sends alerts must not hold the other."""
    for name in ("alert", "command"):
        (tmp_path / name).write_text(TOKEN)
    text = "listen: {host: 0.0.0.0}\nauth: {alert_token_file: alert, command_token_file: command}\n"
    assert "holds the alert token" in error(tmp_path, text)
    (tmp_path / "command").write_text(TOKEN[::-1])
    config = loader.load(write(tmp_path, text))
    assert any("clear text" in warning for warning in checks.warnings(config))


@pytest.mark.parametrize("content", ["", "short", "two words of some length", "käse-käse-käse-käse"])
def test_an_unusable_token_is_refused(tmp_path: Path, content: str) -> None:
    """A token that is empty, short, or cannot stand in a header is refused without being printed."""
    (tmp_path / "token").write_text(content)
    message = error(tmp_path, "auth: {command_token_file: token}\n")
    assert message.startswith(": auth.command_token_file: ")
    assert not content or content not in message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("1s", 1.0), ("1.5m", 90.0), ("2 h", 7200.0), ("1d", 86400.0), ("5", None), ("-1s", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    """A duration is a number with a unit; anything else is not one."""
    assert loader.duration(text) == seconds


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    """Everything has a default: an empty file is a configuration."""
    assert loader.load(write(tmp_path, "")).listen == Config().listen
