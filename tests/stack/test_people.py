"""People are told by the Alertmanager that ``fusewire run`` starts."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.settings.people import read_people


@pytest.mark.stack
async def test_a_locked_run_pages_people_before_fusewire_ends(tmp_path: Path) -> None:
    """The integrations of `alertmanager.people_file` get the page, although nothing is left to guard."""
    told: list[dict[str, Any]] = []

    async def page(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/page", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    people = {"webhook_configs": [{"url": f"http://127.0.0.1:{runner.addresses[0][1]}/page"}]}
    (tmp_path / "people.yml").write_text(json.dumps(people))
    (tmp_path / "fusewire.yml").write_text("alertmanager: {people_file: people.yml}\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fusewire_webhook", "run", "--name", "toy", "--", "sh", "-c", "exit 1"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(150):
        out, _ = await process.communicate()
    await runner.cleanup()
    assert process.returncode == 3
    assert b"waiting until people are paged" in out
    pages = [alert["labels"] for post in told for alert in post["alerts"]]
    assert ("BreakerLocked", "toy") in [(labels["alertname"], labels["run"]) for labels in pages]


def test_secrets_lie_beside_the_file_that_names_them(tmp_path: Path) -> None:
    """Their paths are seen from it, wherever Alertmanager's own configuration lies."""
    path = tmp_path / "people.yml"
    path.write_text(
        "slack_configs: [{api_url_file: slack.url, channel: '#rl', http_config: {tls_config: {ca_file: /ca}}}]"
    )
    assert read_people(str(path)) == {
        "slack_configs": [
            {
                "api_url_file": str(tmp_path / "slack.url"),
                "channel": "#rl",
                "http_config": {"tls_config": {"ca_file": "/ca"}},
            }
        ]
    }
    assert read_people(None) == {}


@pytest.mark.parametrize("text", ["", "[]", "slack_configs: []", "receivers: [{name: people}]", "name: people"])
def test_what_is_no_receiver_is_refused(tmp_path: Path, text: str) -> None:
    """With an example: a whole configuration, or nothing, would page nobody."""
    path = tmp_path / "people.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"people.yml: must hold .* such as slack_configs"):
        read_people(str(path))
