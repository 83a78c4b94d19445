"""Where the rule files lie that come with fusewire, and what ``prometheus.rule_files`` means by their names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fusewire_webhook.errors import ConfigError

DEFAULT = "default"
_PRESET = "preset:"
_IN_PLACE_OF = {"literal": "divergence.rules.yaml"}
"""Of a preset the file of the default pack that it replaces; a preset without one is a pack of its own."""


def folder() -> Path:
    """The folder ``rules/``: beside the packages in a checkout, inside this one in a wheel."""
    installed = Path(str(resources.files("fusewire_webhook"))) / "_rules"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "rules"


def runbooks() -> Path:
    """The folder ``docs/runbooks`` of the pack's annotations: within a wheel's rules, beside a checkout's."""
    within = folder() / "docs" / "runbooks"
    return within if within.is_dir() else folder().parent / "docs" / "runbooks"


def is_name(entry: str) -> bool:
    """Whether an entry of ``rule_files`` names a pack of fusewire and not a file."""
    return entry == DEFAULT or entry.startswith(_PRESET)


def rule_files(entries: Sequence[str]) -> tuple[str, ...]:
    """The paths and globs that ``prometheus.rule_files`` stands for; empty means the default pack.

    ``default`` is the default pack, ``preset:NAME`` one of ``rules/presets`` with what it leaves of the default
    pack, anything else a path.

    Raises:
        ConfigError: there is no such preset.
    """
    found: list[str] = []
    for entry in entries or (DEFAULT,):
        if entry == DEFAULT:
            found.append(str(folder() / "*.rules.yaml"))
        elif entry.startswith(_PRESET):
            name = entry.removeprefix(_PRESET)
            presets = {
                path.name.removesuffix(".rules.yaml"): path for path in (folder() / "presets").glob("*.rules.yaml")
            }
            if name not in presets:
                raise ConfigError(
                    f"prometheus.rule_files: there is no preset {name!r}; there are {', '.join(sorted(presets))}"
                )
            if name in _IN_PLACE_OF:
                rest = sorted(folder().glob("*.rules.yaml"))
                found += [str(path) for path in rest if path.name != _IN_PLACE_OF[name]]
            found.append(str(presets[name]))
        else:
            found.append(entry)
    return tuple(found)
