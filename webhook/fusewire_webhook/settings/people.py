"""How the Alertmanager that ``fusewire run`` starts tells people: the integrations of a receiver, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.loader import read_yaml

EXAMPLE = "slack_configs: [{api_url_file: /path/slack.url, channel: '#rl'}]"


def read_people(path: str | None) -> dict[str, Any]:
    """Alertmanager's integrations, with the paths of its secrets as seen from the file; empty: people are not told.

    What stands in an integration is for Alertmanager to judge.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    if path is None:
        return {}
    document = read_yaml(Path(path))
    if not isinstance(document, dict) or not document or not all(map(_is_integration, document.items())):
        raise ConfigError(
            f"{path}: must hold what a receiver of Alertmanager does beside its name, such as {EXAMPLE}"
        )
    anchored: dict[str, Any] = _anchored(document, Path(path).absolute().parent)
    return anchored


def _is_integration(item: tuple[Any, Any]) -> bool:
    return str(item[0]).endswith("_configs") and isinstance(item[1], list) and bool(item[1])


def _anchored(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_anchored(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str(folder / one) if str(key).endswith("_file") and isinstance(one, str) else _anchored(one, folder)
        for key, one in value.items()
    }
