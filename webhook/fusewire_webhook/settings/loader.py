"""YAML → :class:`~fusewire_webhook.settings.config.Config`.

The dataclasses are the schema: unknown keys are refused, values must be of the field's type, fields named
``…_seconds`` also take ``250ms``, ``1s``, ``5m``, ``2h``, ``1d``. Paths in the file are relative to its folder.
Every mistake is told, each in a line: ``file: key.path: what is wrong and the remedy``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings import packs
from fusewire_webhook.settings.checks import check
from fusewire_webhook.settings.config import Config
from fusewire_webhook.settings.problems import Problems

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def load(path: Path) -> Config:
    """Read, build and check the configuration file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds an unknown key or an unusable value.
    """
    document = read_yaml(path)
    config = build(Config, document if document is not None else {}, source=str(path))
    config = _anchor(config, path.parent.resolve())
    check(config, source=str(path))
    return config


def read_yaml(path: Path) -> Any:
    """The file's document; a key that appears twice is an error.

    Raises:
        ConfigError: it cannot be read or is not YAML; the message names the line.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name another with --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: not YAML: {error.problem or error.context}") from error
    except Exception as error:  # PyYAML lets out what float(), int(), date() and deep nesting raise
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def build(cls: type[T], document: Any, *, source: str, path: str = "") -> T:
    """An instance of the dataclass ``cls`` from plain YAML values.

    Raises:
        ConfigError: unknown or missing keys, values of another type: all of them.
    """
    if not isinstance(document, dict):
        raise _wrong(source, path, f"must hold keys and values, not {_said(document)}")
    problems = Problems(source)
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in document:
        if key not in known:
            problems.add(_join(path, key), f"unknown key{_suggestion(str(key), list(known))}")
    for name, field in known.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in document:
            problems.add(_join(path, name), "is missing")
    hints = typing.get_type_hints(cls)
    values = {}
    for name in document:
        if name in known:
            with problems.gathering():
                values[name] = _value(hints[name], document[name], source=source, path=_join(path, name), name=name)
    problems.refuse()
    return cls(**values)


def duration(text: str) -> float | None:
    """Seconds of ``250ms``, ``1s``, ``5m``, ``2h`` or ``1d``; None where ``text`` is not a duration."""
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def _value(hint: Any, value: Any, *, source: str, path: str, name: str) -> Any:
    """``value`` as the type that ``hint`` names; ``name`` is that of the field it belongs to."""
    place = {"source": source, "path": path}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return (
            None
            if value is None
            else _value(next(a for a in arguments if a is not type(None)), value, **place, name=name)
        )
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), {} if value is None else value, **place)
    if origin is Literal:
        if value not in arguments:
            choices = ", ".join(map(str, arguments))
            raise _wrong(source, path, f"{_said(value)} is not one of: {choices}")
        return value
    if origin in (tuple, dict):
        return _container(hint, value, **place, name=name)
    return _scalar(hint, value, **place, name=name)


def _container(hint: Any, value: Any, *, source: str, path: str, name: str) -> Any:
    arguments = get_args(hint)
    problems = Problems(source)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(source, path, f"must be a list, such as [python, train.py], not {_said(value)}")
        items = []
        for index, item in enumerate(value):
            with problems.gathering():
                items.append(_value(arguments[0], item, source=source, path=f"{path}[{index}]", name=name))
        problems.refuse()
        return tuple(items)
    if not isinstance(value, dict):
        raise _wrong(source, path, f"must hold keys and values, not {_said(value)}")
    pairs = {}
    for key, item in value.items():
        with problems.gathering():
            known = _value(arguments[0], key, source=source, path=path, name=name)
            pairs[known] = _value(arguments[1], item, source=source, path=_join(path, key), name=name)
    problems.refuse()
    return pairs


def _scalar(hint: Any, value: Any, *, source: str, path: str, name: str) -> Any:
    if hint is float:
        seconds = duration(value) if name.endswith("_seconds") and isinstance(value, str) else None
        number = seconds if seconds is not None else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            kind = "seconds, or a duration such as 250ms, 1s, 5m" if name.endswith("_seconds") else "a number"
            raise _wrong(source, path, f"must be {kind}, not {_said(value)}")
        return float(number)
    if type(value) is not hint:
        wanted = {int: "a whole number", str: "a text", bool: "true or false"}[hint]
        remedy = f"; put it in quotes: '{value}'" if hint is str and isinstance(value, bool | int | float) else ""
        raise _wrong(source, path, f"must be {wanted}, not {_said(value)}{remedy}")
    return value


def _anchor(config: Config, folder: Path) -> Config:
    """Make every path of the file absolute, seen from the file's folder."""

    def at(path: str) -> str:
        return str(folder / Path(path).expanduser())

    def maybe(path: str | None) -> str | None:
        return None if path is None else at(path)

    tls = config.listen.tls
    if tls is not None:
        tls = dataclasses.replace(
            tls,
            cert_file=at(tls.cert_file) if tls.cert_file else "",
            key_file=at(tls.key_file) if tls.key_file else "",
            client_ca_file=maybe(tls.client_ca_file),
        )
    rules = tuple(entry if packs.is_name(entry) else at(entry) for entry in config.prometheus.rule_files)
    return dataclasses.replace(
        config,
        runs_dir=at(config.runs_dir),
        listen=dataclasses.replace(config.listen, tls=tls),
        auth=dataclasses.replace(
            config.auth,
            alert_token_file=maybe(config.auth.alert_token_file),
            command_token_file=maybe(config.auth.command_token_file),
        ),
        prometheus=dataclasses.replace(config.prometheus, rule_files=rules),
        alertmanager=dataclasses.replace(config.alertmanager, people_file=maybe(config.alertmanager.people_file)),
        runs={name: dataclasses.replace(run, cwd=maybe(run.cwd)) for name, run in config.runs.items()},
    )


class _StrictLoader(yaml.SafeLoader):
    """YAML 1.1 without objects, and without the silent loss of a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _wrong(source: str, path: str, what: str) -> ConfigError:
    return ConfigError(f"{source}: {path}: {what}" if path else f"{source}: {what}")


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _said(value: Any) -> str:
    names = {dict: "keys and values", list: "a list", type(None): "nothing"}
    return names.get(type(value)) or repr(value)


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
