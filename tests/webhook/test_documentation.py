"""The documentation of the configuration holds what the code takes."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusewire_webhook.settings.config import Config, DockerConfig, RunConfig, TlsConfig
from fusewire_webhook.settings.loader import load
from fusewire_webhook.web import api

ROOT = Path(__file__).parents[2]


def keys(cls: type[Any]) -> Iterator[str]:
    """Every key of the configuration, without its path."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield field.name
        if dataclasses.is_dataclass(hints[field.name]):
            yield from keys(typing.cast(type, hints[field.name]))


def test_every_key_is_documented() -> None:
    """docs/configuration.md names each key of the dataclasses, and no key that does not exist."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    known = {*keys(Config), *keys(RunConfig), *keys(TlsConfig), *keys(DockerConfig)}
    told = {part for name in re.findall(r"(?:`|### runs\.NAME\.)([a-z_.]+)", text) for part in name.split(".")}
    assert known - told == set()
    tables = re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", text, re.MULTILINE)
    first_columns = {name.rpartition(".")[2] for cell in tables for name in re.findall(r"`([a-z_.]+)`", cell)}
    assert first_columns - known == set()


def test_the_example_is_a_configuration() -> None:
    """fusewire.example.yml loads, and what it leaves as comments is not needed."""
    config = load(ROOT / "fusewire.example.yml")
    assert list(config.runs) == ["cartpole"]


def test_every_path_is_documented() -> None:
    """The table of the HTTP surface names every path of the API."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    for method, path, _ in api.routes():
        assert f"{method} `{path.replace('{run}', 'RUN').replace('{verb}', 'VERB')}" in text
