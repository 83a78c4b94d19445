"""The HTTP surface: whose metrics, since when, is it alive, does it make progress."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

import fusewire

from .conftest import Clock, eventually, fetch, scrape

Attach = Callable[..., fusewire.Run]


def test_another_attempt_is_asked_for(attach: Attach) -> None:
    """A scrape meant for another attempt is refused with 409, one for this attempt or for any is answered."""
    run = attach(environ={"FUSEWIRE_ATTEMPT": "3"})
    assert fetch(run.port, "/metrics?attempt=3")[0] == 200
    assert fetch(run.port)[0] == 200
    status, text = fetch(run.port, "/metrics?attempt=4")
    assert (status, text) == (409, "this is attempt 3, not 4\n")


def test_the_scraper_sets_the_window(attach: Attach, clock: Clock) -> None:
    """With ``window=40`` a run of steps stays visible for 40 s instead of the configured 10 s."""
    run = attach(clock=clock)
    scrape(run, "?window=40")
    run.step(0, approx_kl=9.0)
    for step in range(20):
        clock.advance(1)
        run.step(step, approx_kl=0.0)
    clock.advance(15)
    assert scrape(run)['rl_approx_kl_run_min{steps="1"}'] == 9.0
    scrape(run, "?window=5")
    assert scrape(run)['rl_approx_kl_run_min{steps="1"}'] == 0.0


@pytest.mark.parametrize("window", ["0", "-1", "nan", "1e9", "soon"])
def test_an_unusable_window(attach: Attach, window: str) -> None:
    """It is refused, and the window stays what it was."""
    run = attach()
    status, text = fetch(run.port, f"/metrics?window={window}")
    assert status == 400
    assert "give seconds" in text


def test_paths(attach: Attach) -> None:
    """Alive is not the same question as ready; any other path is not found."""
    run = attach()
    assert fetch(run.port, "/healthz") == (200, "alive\n")
    assert fetch(run.port, "/readyz") == (200, "no step yet\n")
    assert fetch(run.port, "/")[0] == 404


def test_ready(attach: Attach, clock: Clock) -> None:
    """Ready means a step within 60 s or 10 usual steps, or a declared phase that is in its time."""
    run = attach(clock=clock)
    for step in range(5):
        clock.advance(10)
        run.step(step)
    clock.advance(99)
    assert fetch(run.port, "/readyz")[0] == 200
    clock.advance(2)
    assert fetch(run.port, "/readyz")[0] == 503
    assert fetch(run.port, "/healthz")[0] == 200
    with run.phase("evaluate", expect_seconds=600):
        clock.advance(599)
        assert fetch(run.port, "/readyz")[0] == 200
        clock.advance(2)
        assert fetch(run.port, "/readyz")[0] == 503


def test_text_format(attach: Attach) -> None:
    """A scraper that prefers OpenMetrics, as Prometheus does, gets the text format and is told so."""
    run = attach()
    run.step(0, approx_kl=1.0)
    request = urllib.request.Request(
        f"http://127.0.0.1:{run.port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.headers["Content-Encoding"] is None


@pytest.fixture
def busy_port() -> Iterator[socket.socket]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder


def test_a_port_that_stays_busy(attach: Attach, busy_port: socket.socket, tmp_path: Path) -> None:
    """Training is not held up; another port is taken, and stands in exporter.json."""
    port = busy_port.getsockname()[1]
    run = attach(port=port, run_dir=tmp_path)
    run.step(0, approx_kl=1.0)
    assert eventually(lambda: run.port) != port
    assert scrape(run)["rl_approx_kl"] == 1.0
    address = json.loads((tmp_path / "attempts/000/exporter.json").read_text())
    assert (address["port"], address["host"], address["attempt"]) == (run.port, "127.0.0.1", 0)


def test_a_port_that_becomes_free(attach: Attach, busy_port: socket.socket) -> None:
    """The port of an attempt that is just ending is waited for, from the background."""
    port = busy_port.getsockname()[1]
    run = attach(port=port)
    assert run.port is None
    busy_port.close()
    assert eventually(lambda: run.port) == port


def test_an_address_that_is_not_ours(attach: Attach) -> None:
    """A host that cannot be bound costs the exporter, not the training."""
    run = attach(environ={"FUSEWIRE_EXPORTER_HOST": "203.0.113.1"})
    run.step(0, approx_kl=1.0)
    assert run.errors.counts["exporter"] >= 1
    assert run.port is None


def test_ipv6(attach: Attach) -> None:
    """An IPv6 host works where the machine has IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    run = attach(environ={"FUSEWIRE_EXPORTER_HOST": "::1"})
    assert eventually(lambda: run.port)


def test_a_registry_of_the_user(attach: Attach) -> None:
    """Metrics of the user's own registry are served as well."""
    registry = CollectorRegistry()
    Gauge("my_gauge", "Mine.", registry=registry).set(4)
    seen = scrape(attach(registry=registry))
    assert seen["my_gauge"] == 4
    assert seen["rl_updates_total"] == 0


def test_two_runs_in_one_process(attach: Attach) -> None:
    """They do not get in each other's way."""
    first, second = attach(), attach(role="rollout")
    first.step(0, approx_kl=1.0)
    second.step(0, approx_kl=2.0)
    assert (scrape(first)["rl_approx_kl"], scrape(second)["rl_approx_kl"]) == (1.0, 2.0)


def test_addresses_of_other_processes(attach: Attach, tmp_path: Path) -> None:
    """A process with its own rank or role has an exporter, and a file of its own says where."""
    attach(run_dir=tmp_path)
    attach(run_dir=tmp_path, role="rollout", rank=2)
    names = sorted(path.name for path in (tmp_path / "attempts/000").glob("exporter*"))
    assert names == ["exporter-rollout-2.json", "exporter.json"]
