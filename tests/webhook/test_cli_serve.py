"""``fusewire serve`` as a process of its own: a service that trainers outlive."""

from __future__ import annotations

import asyncio
import json
import re
import signal

import aiohttp
import pytest

from .process_site import LEAVES, Site, site
from .site import until

__all__ = ["site"]


def address(site: Site) -> dict[str, object]:
    file = site.runs / ".fusewire" / "webhook.json"
    found: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
    return found


async def test_trainers_outlive_the_service(site: Site) -> None:
    """A restart of the service does not touch the trainer: the next one finds it and goes on."""
    site.configure(site.trainer(LEAVES))
    first = await site.start("serve")
    await until(lambda: len(site.pids()) == 1 and address(site).get("pid") == first.pid)
    first.send_signal(signal.SIGTERM)
    code, _, error = await site.end(first)
    assert code == 0
    assert "serving 1 run on http://127.0.0.1:" in error
    assert address(site) == {}
    assert len(site.left()) == 1
    second = await site.start("serve")
    await until(lambda: address(site).get("pid") == second.pid)
    await asyncio.sleep(0.5)
    assert len(site.pids()) == 1
    code, out, _ = await site.call("replay", "toy")
    assert (code, "that is what the serving webhook says" in out) == (0, True)


async def test_an_alert_becomes_a_restart(site: Site) -> None:
    """Alertmanager's POST stops the real trainer and starts the next attempt; a repetition does nothing.

    The service's own log has each decision, with its time, in the words of ``fusewire log``.
    """
    site.configure(site.trainer(LEAVES))
    process = await site.start("serve")
    await until(lambda: len(site.pids()) == 1 and address(site).get("pid") == process.pid)
    labels = {"alertname": "KLSpike", "run": "toy", "attempt": "0", "action": "trip", "class": "divergence"}
    alert = {"status": "firing", "labels": labels, "annotations": {"summary": "KL is high"}}
    async with aiohttp.ClientSession() as session:
        for expected in (2, 2):
            async with session.post(f"{address(site)['url']}/alerts", json={"alerts": [alert]}) as response:
                assert response.status == 200
            await until(lambda n=expected: len(site.pids()) == n)
        view: dict[str, object] = {}
        async with asyncio.timeout(60):
            while view.get("state") != "half_open":  # what has come up is journaled a moment later
                async with session.get(f"{address(site)['url']}/api/runs/toy") as response:
                    view = await response.json()
        async with session.get(f"{address(site)['url']}/metrics") as response:
            metrics = await response.text()
    assert (view["state"], view["attempt"], view["lr_scale"]) == ("half_open", 1, 0.5)
    assert 'fusewire_trips_total{failure_class="divergence",run="toy"} 1.0' in metrics
    assert 'fusewire_run_state{run="toy",state="half_open"} 1.0' in metrics
    assert "fusewire_restart_seconds_count 1.0" in metrics
    code, out, _ = await site.call("log", "toy")
    assert code == 0
    assert "trip alert KLSpike firing (attempt 0): KL is high" in out
    process.send_signal(signal.SIGTERM)
    _, told, _ = await site.end(process)
    lines = told.splitlines()
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  \S", line) for line in lines), told
    for words in (
        "toy: trip alert KLSpike firing (attempt 0): KL is high",
        "toy → OPEN: divergence: KLSpike on attempt 0",
        "toy: attempt 0 is gone",
        "toy: goes on from scratch",
        "toy: attempt 1 runs, from scratch, learning-rate scale 0.5",
        "toy → HALF_OPEN",
    ):
        assert any(line[21:].startswith(words) for line in lines), (words, told)


@pytest.mark.stack
async def test_serve_beside_running_servers(site: Site) -> None:
    """With a Prometheus and an Alertmanager that run already, ``check`` finds them right and ``serve`` is ready."""
    fast = "scrape_interval_seconds: 250ms"
    site.configure(site.trainer(LEAVES), prometheus=f"{{{fast}, rule_files: ['preset:demo']}}", alertmanager="{}")
    guard = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    line = (await guard.stdout.readuntil(b"Alertmanager http://")) if guard.stdout else b""
    rest = await guard.stdout.readline() if guard.stdout else b""
    prometheus = line.decode().rpartition("Prometheus ")[2].partition(",")[0]
    alertmanager = "http://" + rest.decode().strip()
    site.configure(
        site.trainer(LEAVES),
        prometheus=f"{{{fast}, url: '{prometheus}'}}",
        alertmanager=f"{{url: '{alertmanager}'}}",
    )
    for _ in range(20):
        code, out, _ = await site.call("check")
        if code == 0:
            break
        await asyncio.sleep(1)
    assert code == 0, out
    assert f"ok     Prometheus {prometheus}" in out
    assert f"ok     Alertmanager {alertmanager}" in out
    site.configure(
        site.trainer(LEAVES),
        prometheus=f"{{scrape_interval_seconds: 5s, url: '{prometheus}'}}",
        alertmanager=f"{{url: '{alertmanager}'}}",
    )
    for command, expected in (("check", 1), ("serve", 2)):
        code, out, error = await site.call(command)
        assert code == expected
        assert "prometheus.scrape_interval_seconds to less than 0.333" in out + error
    guard.send_signal(signal.SIGINT)
    await site.end(guard)
