"""The stack in containers: the demonstration recovers, whichever container is killed in the middle of it.

Takes minutes (images, then three demonstrations): only with FUSEWIRE_TEST_DOCKER=1, as `make test-compose` has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from actuators.docker_engine import WANTED, Engine, running_engine
from fusewire_webhook.breaker import events as ev

from .stack_site import Stack, build_images, install_compose, running_stack

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not WANTED, reason="minutes long: set FUSEWIRE_TEST_DOCKER=1, or call make test-compose"),
]

HEALTHY_SECONDS = 60.0
WEBHOOK_BYTES = 150_000_000
DEMO_SECONDS = 420.0
SERVICES = ("socket-proxy", "webhook", "prometheus", "alertmanager")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        install_compose(running)
        build_images(running)
        yield running


@pytest.fixture
def stack(engine: Engine) -> Iterator[Stack]:
    with running_stack(engine) as one:
        yield one


def tripped(stack: Stack) -> bool:
    return any(
        isinstance(entry.event, ev.AlertReported) and entry.event.action == "trip" for entry in stack.entries()
    )


def candidate(stack: Stack) -> bool:
    return any(isinstance(entry.event, ev.SnapshotPromoted) for entry in stack.entries())


def recovered(stack: Stack) -> None:
    """The demonstration's own verdict, and that nothing was lost or done twice on the way."""
    stack.until(
        lambda: stack.inspect("demo", "{{.State.Status}}") == "exited", DEMO_SECONDS, why="the demonstration ends"
    )
    assert stack.inspect("demo", "{{.State.ExitCode}}") == "0", stack.story()
    events = [entry.event for entry in stack.entries()]
    started = [event.attempt for event in events if isinstance(event, ev.AttemptStarted)]
    assert started == [0, 1], stack.story()
    stops = [event for event in events if isinstance(event, ev.StopConfirmed)]
    assert [event.attempt for event in stops] == [0]
    rollbacks = [event for event in events if isinstance(event, ev.RolledBack) and event.target]
    assert len(rollbacks) == 1
    assert stack.state().phase == "closed"
    assert stack.engine.trainers() == ["fusewire-demo-1"]
    assert stack.healthy(*SERVICES)


def test_the_stack_comes_up_and_the_run_recovers(stack: Stack) -> None:
    """All healthy within a minute, the webhook small; the wrecked run is stopped, rolled back, and recovers.

    Trainers outlive the stack, unless it is taken down with its orphans.
    """
    started = time.monotonic()
    stack.compose("up", "--detach")
    seconds = time.monotonic() - started
    assert stack.healthy(*SERVICES)
    assert seconds <= HEALTHY_SECONDS
    recovered(stack)
    sizes = {service: stack.resident(service) for service in SERVICES}
    print(
        f"\nall healthy after {seconds:.1f} s; resident, MB:", {name: size // 10**6 for name, size in sizes.items()}
    )
    assert sizes["webhook"] <= WEBHOOK_BYTES
    stack.until(
        lambda: stack.targets() == [("fusewire-demo-1", "up")], 30, why="the trainer is scraped by its name"
    )
    stack.compose("stop")
    assert stack.engine.docker("inspect", "--format", "{{.State.Running}}", "fusewire-demo-1") == "true"
    stack.compose("down", "--remove-orphans")
    assert stack.engine.trainers() == []


@pytest.mark.parametrize("victim", ["webhook", "prometheus", "alertmanager", "socket-proxy"])
def test_a_container_is_killed_in_the_middle(stack: Stack, victim: str) -> None:
    """Killed just before the fault, and (the webhook) again in the middle of its work, nothing is lost."""
    stack.compose("up", "--detach")
    stack.until(lambda: candidate(stack), DEMO_SECONDS, why="a snapshot is promoted")
    stack.kill(victim)
    if victim == "webhook":
        stack.until(lambda: tripped(stack), DEMO_SECONDS, why="the run trips")
        stack.kill(victim)
    recovered(stack)
    assert int(stack.inspect(victim, "{{.RestartCount}}")) >= 1


def test_a_plain_start(engine: Engine) -> None:
    """Without any setting the run of setup/run trains under the default rules, and the webhook is ready.

    The webhook's image has no torch, and a trainer reaches Prometheus by name but neither webhook nor proxy.
    """
    with running_stack(engine, demo=False) as stack:
        stack.compose("up", "--detach")
        stack.until(lambda: stack.healthy(*SERVICES), HEALTHY_SECONDS, why="all are healthy")
        stack.until(lambda: stack.targets() == [("fusewire-cartpole-0", "up")], 60, why="the trainer is scraped")
        stack.until(lambda: stack.ready() == [], 60, why="the webhook is ready")
        status = stack.engine.docker(
            "exec", stack.container("webhook"), "fusewire", "status", "cartpole", "--runs", "/runs"
        )
        assert "closed" in status.lower()
        names = "[name for name in ('torch', 'gymnasium') if importlib.util.find_spec(name)]"
        print_heavy = ("python", "-c", f"import importlib.util; print({names})")
        assert stack.engine.docker("exec", stack.container("webhook"), *print_heavy) == "[]"
        for service, answer in (
            ("webhook:9095", "none"),
            ("socket-proxy:2375", "none"),
            ("prometheus:9090", "some"),
        ):
            fetch = f"wget -T 5 -q -O /dev/null http://{service}/ && echo some || echo none"
            assert stack.engine.docker("exec", "fusewire-cartpole-0", "sh", "-c", fetch) == answer, service
        stack.compose("down", "--remove-orphans")
        assert stack.engine.trainers() == []
