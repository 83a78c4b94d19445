"""Bad input to ``fusewire``: one line that names the file, key or path and the remedy, and exit code 2 or 1."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.cli import build_parser, main
from fusewire_webhook.cli.run import with_flags
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings import packs
from fusewire_webhook.settings.checks import require_commands
from fusewire_webhook.settings.config import Config, DockerConfig, PrometheusConfig, RunConfig
from fusewire_webhook.settings.runs_folder import RunsFolder, ServingAddress

from .site import away


@pytest.fixture
def fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run ``fusewire`` in an empty folder and return its one line of complaint."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 2) -> str:
        assert main(arguments) == code
        lines = capsys.readouterr().err.splitlines()
        (error,) = (line for line in lines if not line.startswith("fusewire: warning: "))
        assert error.startswith("fusewire: ")
        return error.removeprefix("fusewire: ")

    return call


Fails = Callable[..., str]


def test_an_unknown_key(fails: Fails, tmp_path: Path) -> None:
    """The file, the key's path and the nearest known key."""
    (tmp_path / "fusewire.yml").write_text("runs: {a: {command: ['true'], retri: {}}}\n")
    assert fails("run") == "fusewire.yml: runs.a.retri: unknown key; did you mean 'retry'?"


def test_no_runs(fails: Fails) -> None:
    """Nothing to guard is refused, with how to name something."""
    assert "which runs?" in fails("run")
    assert "which runs?" in fails("serve")


def test_serve_without_servers(fails: Fails, tmp_path: Path) -> None:
    """``serve`` does not start servers; it says which key names yours, and which command starts some."""
    (tmp_path / "fusewire.yml").write_text("runs: {a: {command: ['true']}}\n")
    assert fails("serve").startswith("fusewire.yml: prometheus.url: is missing")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-x", "a b"])
def test_a_run_name_that_leaves_the_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is no plain name is refused before anything is created."""
    with pytest.raises(SystemExit) as caught:
        main(["run", f"--name={name}", "--", "true"])
    assert caught.value.code == 2
    assert "is not usable" in capsys.readouterr().err


def test_no_prometheus(fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is named, with the package or the key that helps."""
    monkeypatch.setenv("PATH", str(tmp_path))
    error = fails("run", "--", sys.executable)
    assert "prometheus" in error.lower()
    assert "PATH" in error


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_a_rule_file_with_a_syntax_error(fails: Fails, tmp_path: Path) -> None:
    """promtool's words with the file; nothing was started."""
    rules = tmp_path / "bad.rules.yaml"
    rules.write_text("groups:\n- name: a\n  rules:\n  - alert: A\n    expr: 'sum('\n")
    error = fails("run", "--rules", str(rules), "--", "true")
    assert "bad.rules.yaml" in error
    assert error.endswith("; correct the file")
    assert not (tmp_path / "runs" / "run").exists()


def test_rules_that_could_stop_nothing(fails: Fails, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trip rule that loses its run, and ranges that are too short for the scrapes: both are refused by both."""
    pack = (packs.folder() / "presets" / "literal.rules.yaml").read_text()
    rules = tmp_path / "mine.rules.yaml"

    def refused(words: str) -> bool:
        said = fails("run", "--rules", str(rules), "--", "true")
        assert main(["check", "--rules", str(rules)]) == 1
        return words in said and words in capsys.readouterr().out

    rules.write_text(
        pack.replace("max by (run, attempt, algorithm) (last_over_time(rl_value", "max(last_over_time(rl_value")
    )
    assert refused("loses the labels attempt, run")
    (tmp_path / "fusewire.yml").write_text("prometheus: {scrape_interval_seconds: 2s}\n")
    rules.write_text(pack)
    assert refused("prometheus.scrape_interval_seconds to less than 1.33")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("program", "settings", "where"),
    [
        ("nosuchcmd", "", "nosuchcmd on PATH"),
        ("./train", "", "./train in "),
        ("true", ", env: {PATH: /nowhere}", "true on PATH"),
        ("./train.txt", ", cwd: bin", "./train.txt in "),
    ],
)
def test_a_command_that_does_not_exist(
    fails: Fails, tmp_path: Path, program: str, settings: str, where: str
) -> None:
    """It is named with where it was looked for, as the trainer's own start would look for it."""
    (tmp_path / "bin").mkdir()
    for name, mode in (("train", 0o755), ("train.txt", 0o644)):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(mode)
    (tmp_path / "fusewire.yml").write_text(f"runs: {{a: {{command: ['{program}']{settings}}}}}\n")
    assert f"runs.a.command: there is no program {where}" in fails("run")


def test_commands_that_exist() -> None:
    """A program of the run's folder, of its PATH, of a template or of a container is not missed."""
    folder = str(Path(sys.executable).parent)
    name = Path(sys.executable).name
    runs = {
        "cwd": RunConfig(command=(f"./{name}",), cwd=folder),
        "env": RunConfig(command=(name,), env={"PATH": folder}),
        "template": RunConfig(command=("{run_dir}/train",)),
        "docker": RunConfig(command=("/app/train",), docker=DockerConfig(image="x")),
    }
    require_commands(Config(runs=runs), source="x")


def test_no_such_rules(fails: Fails) -> None:
    """A file or preset that does not exist is named, with what there is."""
    assert fails("run", "--rules", "none.yaml", "--", "true").endswith("none.yaml: no such file")
    assert "there is no preset 'nervous'; there are " in fails("run", "--rules", "preset:nervous", "--", "true")


def configured(tmp_path: Path, text: str = "") -> None:
    servers = f"prometheus: {{url: '{away()}'}}\nalertmanager: {{url: '{away()}'}}\n"
    (tmp_path / "fusewire.yml").write_text(f"{servers}runs: {{a: {{command: ['true']}}}}\n{text}")


def test_a_port_in_use(fails: Fails, tmp_path: Path) -> None:
    """The key and the address, and that another port or 0 helps."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        configured(tmp_path, f"listen: {{port: {port}}}\n")
        assert fails("run") == (
            f"listen.port: 127.0.0.1:{port}: another process has it; set another listen.port, or 0 for a free one"
        )


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_host(fails: Fails, tmp_path: Path, host: str) -> None:
    """An address that is not this host's is named."""
    for name in ("alert", "command"):
        (tmp_path / name).write_text(f"{name}-token-0123456789")
    tokens = "auth: {alert_token_file: alert, command_token_file: command}\n"
    configured(tmp_path, f"{tokens}listen: {{host: {host}, port: 0}}\n")
    assert host in fails("serve")


def test_a_second_fusewire_on_the_same_folder(fails: Fails, tmp_path: Path) -> None:
    """The folder and the PID of its guard; nothing is started twice."""
    configured(tmp_path)
    folder = RunsFolder(tmp_path / "runs")
    folder.prepare()
    with folder.locked():
        error = fails("run")
    assert error.startswith(f"{tmp_path / 'runs'}: another fusewire guards this folder (PID ")


def test_a_runs_folder_that_is_a_file(fails: Fails, tmp_path: Path) -> None:
    """The path and what is wrong with it."""
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in fails("run", "--runs", "file", "--", "true")


def test_an_address_file_that_is_garbage(fails: Fails, tmp_path: Path) -> None:
    """A damaged file is named together with what to do about it."""
    folder = RunsFolder(tmp_path / "runs")
    folder.prepare()
    folder.address_file.write_text("{")
    assert fails("status").startswith(f"{folder.address_file}: cannot be read")


def test_an_address_is_gone_with_its_webhook(tmp_path: Path) -> None:
    """While it serves the address stands there, afterwards it does not."""
    folder = RunsFolder(tmp_path)
    folder.prepare()
    address = ServingAddress(url="http://127.0.0.1:1", pid=1)
    with folder.announced(address):
        assert folder.address() == address
    assert folder.address() is None


def test_without_the_extra(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "rich" else found(name, *rest)
    )
    assert fails("status") == (
        "rich not installed: pip install 'fusewire[webhook]' brings the command line and the webhook"
    )


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` works for each command, and each has a handler."""
    parser = build_parser()
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    names = set(action.choices)
    assert {"run", "serve", "status", "trip", "pause", "resume", "reset", "promote", "rollback", "log", "replay",
            "check"} <= names  # fmt: skip
    for name in names:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0


def flags(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"command": [], "name": None, "algorithm": None, "rules": None} | given)


TWO = Config(
    runs={"a": RunConfig(command=("x",), algorithm="ppo"), "b": RunConfig(command=("y",))},
    prometheus=PrometheusConfig(rule_files=("mine.yaml",)),
)


@pytest.mark.parametrize(
    ("config", "given", "runs"),
    [
        (Config(), {"command": ["t", "--lr", "1"]}, {"run": RunConfig(command=("t", "--lr", "1"))}),
        (Config(), {"command": ["t"], "name": "n"}, {"n": RunConfig(command=("t",))}),
        (TWO, {}, TWO.runs),
        (TWO, {"name": "b"}, {"b": RunConfig(command=("y",))}),
        (TWO, {"name": "a", "command": ["t"]}, {"a": RunConfig(command=("t",), algorithm="ppo")}),
        (TWO, {"name": "b", "algorithm": "grpo"}, {"b": RunConfig(command=("y",), algorithm="grpo")}),
    ],
)
def test_flags_on_top_of_the_file(config: Config, given: dict[str, Any], runs: dict[str, RunConfig]) -> None:
    """A command is guarded alone, with the named run's settings; a name picks; nothing else changes."""
    result = with_flags(config, flags(**given))
    assert result.runs == runs
    assert result.prometheus == config.prometheus


def test_rules_of_the_flags_replace_those_of_the_file() -> None:
    """``--rules`` says all rules, so that nothing unexpected trips."""
    assert with_flags(TWO, flags(rules=["preset:demo"])).prometheus.rule_files == ("preset:demo",)


@pytest.mark.parametrize(
    ("given", "words"), [({"name": "c"}, "there are a, b"), ({"algorithm": "ppo"}, "pick one with --name")]
)
def test_flags_that_do_not_fit_the_file(given: dict[str, Any], words: str) -> None:
    """A flag that could mean several things is refused."""
    with pytest.raises(ConfigError, match=words):
        with_flags(TWO, flags(**given))


@pytest.mark.parametrize("command", [("run", "--", "true"), ("reset", "run", "--why", "space")])
def test_a_disk_that_takes_no_more_is_told_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The file that was to be written and what the system said, no traceback."""
    folder = RunsFolder(tmp_path / "runs")
    folder.prepare()
    Journal(folder.journal).close()
    refused = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    program = f"{refused}; runpy.run_module('fusewire_webhook', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in {1, 2}
    assert [line.startswith(f"fusewire: {tmp_path}/runs/") for line in done.stderr.splitlines()] == [True], done


def test_webhook_whose_address_cannot_be_told_serves_all_the_same(tmp_path: Path) -> None:
    """A disk that is full at the start of `serve` leaves no trainer unguarded."""
    folder = RunsFolder(tmp_path)
    folder.address_file.mkdir(parents=True)  # nothing can take its place
    with folder.announced(ServingAddress(url="http://127.0.0.1:1", pid=1)):
        assert folder.address_file.is_dir()


def test_two_runs_folders_that_lead_to_one_new_run_folder_are_guarded_once(tmp_path: Path) -> None:
    """Also where the run's folder is not there yet: it is made, so that it can be locked."""
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    first, second = RunsFolder(tmp_path / "real"), RunsFolder(tmp_path / "linked")
    refused = pytest.raises(ConfigError, match="linked/toy: is guarded already")
    with first.runs_locked(["toy"]), refused, second.runs_locked(["toy"]):
        pytest.fail("guarded twice")
