"""The configuration of your own servers that docs/configuration.md prints guards a run as it stands there."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusewire_webhook.cli.check import alertmanager_problems, ask, prometheus_problems, serving_problems
from fusewire_webhook.engine import sight
from fusewire_webhook.service import Service, serving
from fusewire_webhook.settings.config import (
    AlertmanagerConfig,
    AuthConfig,
    Config,
    ListenConfig,
    PrometheusConfig,
    RetryConfig,
    RunConfig,
)
from fusewire_webhook.settings.runs_folder import RunsFolder
from fusewire_webhook.stack.binaries import find_binaries
from servers import running

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
TRAINER = """
import os, time
import fusewire

run = fusewire.attach()
step = 0
while not run.should_stop:
    step += 1
    sick = run.attempt == 0 and os.path.exists("sick")
    run.step(step, approx_kl=90.0 if sick else 0.01, value_loss=1.0, policy_entropy=0.5, grad_norm=0.5)
    time.sleep(0.02)
"""


def printed(server: str, **places: str) -> str:
    """The YAML that the documentation has for a server, with its placeholders filled in."""
    text = (ROOT / "docs/configuration.md").read_text().partition("Your own servers need")[2]
    found = {
        "prometheus": next(
            block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "http_sd" in block
        ),
        "alertmanager": next(
            block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "route:" in block
        ),
    }[server]
    for place, value in places.items():
        assert place in found
        found = found.replace(place, value)
    return found


async def until(holds: Callable[[], bool]) -> None:
    """Return once it holds; the test's timeout bounds it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.2)


def state(service: Service) -> str:
    """What the run's view says of its watch."""
    return str((service.engine.view("toy").watch or {}).get("state"))


async def test_your_own_servers_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens on, what is printed scrapes the trainer, delivers beats and trips; ``check`` is content.

    Before, with a Prometheus that sends its token without a scheme, the watch is degraded and says what is
    missing, and the run counts as not scraped.
    """
    monkeypatch.setattr(sight, "FIRST_SCRAPE_SECONDS", 10.0)  # nothing else here takes 90 s
    programs = find_binaries(prometheus=True, alertmanager=True)
    assert programs.prometheus is not None
    assert programs.alertmanager is not None
    tokens = {name: tmp_path / f"{name}.token" for name in ("alert", "command")}
    for name, file in tokens.items():
        file.write_text(f"{name}-token-0123456789abcdef\n")
        file.chmod(0o600)
    (tmp_path / "train.py").write_text(TRAINER)
    for name in ("prometheus", "alertmanager"):
        (tmp_path / name).mkdir()
    prometheus_file = tmp_path / "prometheus/prometheus.yml"
    alertmanager_file = tmp_path / "alertmanager/alertmanager.yml"
    prometheus_file.write_text("global: {}\n")
    alertmanager_file.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    with (
        running(
            programs.prometheus,
            f"--config.file={prometheus_file}",
            "--storage.tsdb.path=data",
            "--rules.alert.resend-delay=5s",
            folder=prometheus_file.parent,
        ) as prometheus,
        running(
            programs.alertmanager,
            f"--config.file={alertmanager_file}",
            "--storage.path=data",
            "--cluster.listen-address=",
            folder=alertmanager_file.parent,
        ) as alertmanager,
    ):
        config = Config(
            runs_dir=str(tmp_path / "runs"),
            listen=ListenConfig(port=0),
            auth=AuthConfig(alert_token_file=str(tokens["alert"]), command_token_file=str(tokens["command"])),
            prometheus=PrometheusConfig(url=prometheus.url),
            alertmanager=AlertmanagerConfig(url=alertmanager.url),
            runs={
                "toy": RunConfig(
                    command=(sys.executable, "train.py"),
                    cwd=str(tmp_path),
                    retry=RetryConfig(settle_seconds=0.0, backoff_seconds=0.0),
                )
            },
        )
        async with serving(config, default_port=0) as service, asyncio.timeout(180):
            places = {
                "WEBHOOK:9095": service.url.removeprefix("http://"),
                "/path/alert.token": str(tokens["alert"]),
            }
            alertmanager_file.write_text(printed("alertmanager", **places))
            alertmanager.process.send_signal(signal.SIGHUP)
            places |= {
                "ALERTMANAGER:9093": alertmanager.url.removeprefix("http://"),
                "/path/rules": str(ROOT / "rules"),
            }
            configuration = printed("prometheus", **places)
            assert "type: Bearer, " in configuration
            prometheus_file.write_text(configuration.replace("type: Bearer, ", "", 1))
            prometheus.process.send_signal(signal.SIGHUP)
            try:
                await until(lambda: "type: Bearer" in service.deadman.status().problems.get("discovery", ""))
                await until(lambda: state(service) == "unscraped")
                found = await ask(prometheus_problems, prometheus.url, 1.0, config)
                assert [words for words in found if "authorization has no type" in words] == found
                found = await asyncio.to_thread(serving_problems, RunsFolder(Path(config.runs_dir)))
                assert any(words.startswith("discovery: Prometheus is refused at /sd") for words in found)
                assert any(words.startswith("toy: not scraped for ") for words in found)
                prometheus_file.write_text(configuration)
                prometheus.process.send_signal(signal.SIGHUP)
                await until(lambda: service.engine.view("toy").step >= 10)
                await until(lambda: service.deadman.status().beat_age is not None)
                await until(lambda: not service.deadman.reasons())  # rules that were just loaded are evaluated
                assert await ask(prometheus_problems, prometheus.url, 1.0, config) == []
                await until(lambda: state(service) == "watched")
                assert await asyncio.to_thread(serving_problems, RunsFolder(Path(config.runs_dir))) == []
                assert await ask(alertmanager_problems, alertmanager.url, None) == []
                (tmp_path / "sick").touch()
                await until(lambda: service.engine.view("toy").attempt == 1)
                assert service.engine.view("toy").trips["divergence"] == 1
            finally:
                await service.engine.close(stop_runs=True)
