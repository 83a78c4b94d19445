"""Real servers: an alert goes all the way, deaths are mended, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.stack import ChildDeath, start_stack
from fusewire_webhook.stack import free_port as any_free_port

from .site import RULES, serve

pytestmark = pytest.mark.stack


def settings(tmp_path: Path, port: int, **changes: Any) -> dict[str, Any]:
    (tmp_path / "rules.yaml").write_text(RULES)
    return {
        "folder": tmp_path / "stack", "webhook_host": "127.0.0.1", "webhook_port": port,
        "rule_files": [tmp_path / "rules.yaml"], "scrape_interval": 0.25, "evaluation_interval": 0.25,
        "fast": True, **changes,
    }  # fmt: skip


async def ended(pid: int) -> bool:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_an_alert_goes_all_the_way(tmp_path: Path) -> None:
    """A violation at a discovered target reaches the webhook firing and later resolved, with the target's labels
    and the token."""
    (tmp_path / "token").write_text("secret\n")
    async with (
        serve() as site,
        start_stack(**settings(tmp_path, site.port, alert_token_file=tmp_path / "token")) as stack,
    ):
        assert await stack.check() == {}
        await site.alert("Watchdog")
        site.value = 2.0
        labels = (await site.alert("TooHigh"))["labels"]
        assert (labels["run"], labels["attempt"], labels["job"]) == ("r", "0", "fusewire")
        site.value = 0.0
        await site.alert("TooHigh", "resolved")
        assert site.tokens == {"/sd": "Bearer secret", "/alerts": "Bearer secret"}
    assert "secret" not in (tmp_path / "stack/prometheus.yml").read_text()


async def test_secrets_of_the_people_file_stay_unreadable_to_others(tmp_path: Path) -> None:
    """A password in the people's file is in no file that other users of the host can read."""
    hook = {
        "url": "http://127.0.0.1:1/page",
        "http_config": {"basic_auth": {"username": "u", "password": "hunter2"}},
    }
    async with start_stack(**settings(tmp_path, 1, people={"webhook_configs": [hook]})):
        kept = [
            path for path in (tmp_path / "stack").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()
        ]
        assert [path.name for path in kept] == ["alertmanager.yml"]
        assert [path for path in kept if path.stat().st_mode & 0o077] == []


async def test_a_dead_server_is_started_again(tmp_path: Path) -> None:
    """The unexpected end of a server is reported, and it answers again at the same URL."""
    deaths: asyncio.Queue[ChildDeath] = asyncio.Queue()
    async with start_stack(**settings(tmp_path, 1, on_death=deaths.put_nowait)) as stack:
        for name, child in stack.children.items():
            before = child.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            death = await asyncio.wait_for(deaths.get(), 30)
            assert (death.name.lower(), death.exit_code) == (name, -signal.SIGKILL)
            assert name in await stack.check()
            for _ in range(600):
                if not await stack.check():
                    break
                await asyncio.sleep(0.05)
            assert await stack.check() == {}
            assert child.pid != before
    assert deaths.empty()


async def test_nothing_is_left_after_closing(tmp_path: Path) -> None:
    """Leaving the stack ends both servers."""
    async with start_stack(**settings(tmp_path, 1)) as stack:
        pids = [child.pid for child in stack.children.values()]
    assert len(pids) == 2
    assert [await ended(pid) for pid in pids if pid] == [True, True]


STARTER = """
import asyncio, json, sys
from pathlib import Path
from fusewire_webhook.stack import start_stack

async def main():
    async with start_stack(Path(sys.argv[1]), webhook_host="127.0.0.1", webhook_port=1, rule_files=[],
                           scrape_interval=1, evaluation_interval=1) as stack:
        print(json.dumps([child.pid for child in stack.children.values()]), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_servers_do_not_outlive_their_starter(tmp_path: Path) -> None:
    """After SIGKILL of the process that started the stack, both servers are gone."""
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    line = (await asyncio.wait_for(starter.stdout.readline(), 60)).decode()
    pids = [int(pid) for pid in line.strip("[]\n").split(",")]
    starter.kill()
    await starter.wait()
    assert [await ended(pid) for pid in pids] == [True, True]


async def test_a_port_that_is_taken_meanwhile(tmp_path: Path) -> None:
    """When somebody takes the chosen port first, the server starts on another one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        choices = iter([port, any_free_port(), port, any_free_port()])
        async with start_stack(**settings(tmp_path, 1, pick_port=lambda: next(choices))) as stack:
            assert await stack.check() == {}
            assert str(port) not in stack.prometheus_url + stack.alertmanager_url


async def test_servers_that_run_elsewhere(tmp_path: Path) -> None:
    """With URLs nothing is started; one that does not answer is told by check()."""
    url = f"http://127.0.0.1:{any_free_port()}"
    async with start_stack(**settings(tmp_path, 1, prometheus_url=url + "/", alertmanager_url=url)) as stack:
        assert stack.children == {}
        assert stack.prometheus_url == url
        assert set(await stack.check()) == {"prometheus", "alertmanager"}
