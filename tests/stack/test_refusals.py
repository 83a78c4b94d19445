"""What keeps the stack from starting, told in one line before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fusewire_webhook.errors import ConfigError, StackError, WebhookError
from fusewire_webhook.stack import start_stack
from fusewire_webhook.stack.binaries import find_binaries, resolve_rule_files

GOOD = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: vector(1)\n"


async def refusal(folder: Path, kind: type[WebhookError] = ConfigError, **settings: object) -> str:
    defaults = {
        "webhook_host": "127.0.0.1", "webhook_port": 1, "rule_files": [],
        "scrape_interval": 1.0, "evaluation_interval": 1.0,
    }  # fmt: skip
    with pytest.raises(kind) as raised:
        async with start_stack(folder, **{**defaults, **settings}):  # type: ignore[arg-type]
            pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (GOOD + "  - alert: B\n    expr: rl_x > > 1\n", "7:11", "parse error"),
        (GOOD.replace("  - alert", "   alert"), "line 5", "mapping values are not allowed"),
        (GOOD.replace("alert:", "allert:"), "line 4", "allert"),
    ],
)
async def test_a_rule_file_with_an_error(tmp_path: Path, text: str, line: str, why: str) -> None:
    """The file and the line are named in promtool's own words, and nothing was started or written."""
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "wrong.yaml").write_text(text)
    said = await refusal(tmp_path / "stack", rule_files=[tmp_path])
    assert str(tmp_path / "wrong.yaml") in said
    assert line in said
    assert why in said
    assert "fusewire check" in said
    assert not (tmp_path / "stack").exists()


async def test_rule_files_that_are_not_there(tmp_path: Path) -> None:
    """A pattern that matches nothing is named."""
    assert "nothing-*.yaml" in await refusal(tmp_path, rule_files=[tmp_path / "nothing-*.yaml"])


async def test_no_programs(tmp_path: Path) -> None:
    """A missing program is named with the Debian package that brings it."""
    assert "apt-get install prometheus" in await refusal(tmp_path, path=str(tmp_path))


def test_debians_name_of_alertmanager(tmp_path: Path) -> None:
    """Alertmanager is found under its own name and under Debian's."""
    for name in ("prometheus-alertmanager", "alertmanager"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        found = find_binaries(prometheus=False, alertmanager=True, path=str(tmp_path))
        assert found.alertmanager == str(program)


async def test_a_prometheus_that_knows_no_alertmanager(tmp_path: Path) -> None:
    """A Prometheus that runs elsewhere cannot be told of an Alertmanager that starts here."""
    assert "alertmanager.url" in await refusal(tmp_path, prometheus_url="http://127.0.0.1:9090")


@pytest.mark.stack
async def test_a_server_that_refuses_its_configuration(tmp_path: Path) -> None:
    """What a server says about its configuration is passed on."""
    people = {"no_such_configs": []}
    assert "no_such_configs" in await refusal(tmp_path / "stack", StackError, people=people)


@pytest.mark.stack
async def test_no_free_port(tmp_path: Path) -> None:
    """A port that stays taken ends in a refusal that says so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = await refusal(tmp_path / "stack", StackError, pick_port=lambda: taken.getsockname()[1])
    assert "port is taken" in said


def test_rule_files_once_and_in_order(tmp_path: Path) -> None:
    """Folders and globs give each file once, as an absolute path."""
    for name in ("b.yaml", "a.yml", "note.txt"):
        (tmp_path / name).write_text(GOOD)
    found = resolve_rule_files([tmp_path / "b.yaml", tmp_path, str(tmp_path / "*.yml")])
    assert found == (str(tmp_path / "b.yaml"), str(tmp_path / "a.yml"))
