"""What can be demonstrated: which fault strikes, and what must have happened in the end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

RUN = "demo"
TARGET_RETURN = 475.0
"""Mean return at which Gymnasium counts CartPole-v1 as solved."""

Outcome = Literal["recovered", "locked", "notified"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One fault and its expected end."""

    name: str
    faults: tuple[str, ...]
    """NAME[:STRENGTH[:UPDATES]] of the trainer's ``--fault``; when it strikes is added."""
    outcome: Outcome = "recovered"
    failure_class: Literal["divergence", "infrastructure"] = "divergence"
    every_attempt: bool = False
    alert: str = ""
    """With ``notified``: the alert that must fire."""
    story: str = ""
    """One sentence for a person."""


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="lr-spike",
            faults=("lr-spike:1000:10",),
            story="ten updates with 1000 times the learning rate wreck the policy",
        ),
        Scenario(
            name="lr-spike-forever",
            faults=("lr-spike:1000:10",),
            every_attempt=True,
            outcome="locked",
            story="the spike comes back after each restart, until the breaker locks the run",
        ),
        Scenario(
            name="nan-gradient",
            faults=("nan-gradient",),
            story="one gradient becomes NaN, and the trainer dies of it",
        ),
        Scenario(
            name="entropy-collapse",
            faults=("entropy-collapse:0.7",),
            story="the entropy bonus turns into a penalty: the policy stops exploring",
        ),
        Scenario(
            name="critic-explosion",
            faults=("critic-explosion:1000",),
            story="rewards grow a thousandfold and leave the critic behind",
        ),
        Scenario(
            name="reward-collapse",
            faults=("reward-collapse",),
            story="rewards change their sign: the policy unlearns what it could",
        ),
        Scenario(
            name="hang",
            faults=("hang",),
            failure_class="infrastructure",
            story="the training thread hangs; the process lives and answers, but only SIGKILL ends it",
        ),
        Scenario(
            name="crash",
            faults=("crash",),
            failure_class="infrastructure",
            story="the process is killed outright, as by the kernel",
        ),
        Scenario(
            name="memory-leak",
            faults=("memory-leak:8:60",),
            outcome="notified",
            alert="HostMemoryLeak",
            story="memory leaks: people are told, nothing is stopped",
        ),
        Scenario(
            name="ignore-sigterm",
            faults=("ignore-sigterm", "gradient-overflow"),
            story="gradients overflow and nothing more is learnt; the trainer ignores SIGTERM and needs SIGKILL",
        ),
        Scenario(
            name="grandchildren",
            faults=("grandchildren:3", "lr-spike:1000:10"),
            story="a diverging trainer leaves processes behind that ignore SIGTERM",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast everything goes. The defaults are the demonstration's; tests are faster."""

    scrape_seconds: float = 0.25
    window_seconds: float = 2.0
    """Shortest time that a completed run of bad steps stays visible."""
    trainer: tuple[str, ...] = ("--pace-seconds", "0.25", "--updates", "2000", "--evaluate-every", "40")
    """Arguments of the trainer. An update takes at least the pace, so that several scrapes see each bad step."""
    strikes: str = "promoted:20"
    """WHEN of every fault."""
    snapshot_every: int = 10
    watch_steps: int = 10
    watch_seconds: float | None = None
    settle_seconds: float = 3.0
    grace_seconds: float = 3.0
    kill_seconds: float = 2.0
    return_window: int = 200
    seed: int = 1


def config(scenario: Scenario, pace: Pace) -> dict[str, Any]:
    """The configuration file of the demonstration, as YAML values."""
    command = [sys.executable, "-m", "fusewire_trainer.ppo", *pace.trainer]
    for fault in scenario.faults:
        command += ["--fault", f"{fault}@{pace.strikes}"]
    if scenario.every_attempt:
        command.append("--fault-every-attempt")
    return {
        "runs_dir": "runs",
        "listen": {"host": "127.0.0.1", "port": 0},
        "prometheus": {
            "scrape_interval_seconds": pace.scrape_seconds,
            "evaluation_interval_seconds": pace.scrape_seconds,
            "rule_files": ["preset:demo"],
        },
        "runs": {
            RUN: {
                "command": command,
                "algorithm": "ppo",
                "seed": pace.seed,
                "window_seconds": pace.window_seconds,
                "return_window_updates": pace.return_window,
                "stop": {
                    "grace_seconds": pace.grace_seconds,
                    "kill_seconds": pace.kill_seconds,
                    "gpu_release_seconds": 5.0,
                },
                "snapshots": {
                    "every_steps": pace.snapshot_every,
                    "watch_steps": pace.watch_steps,
                    "watch_seconds": pace.watch_seconds,
                    "keep_promoted": 5,
                    "keep_quarantined": 50,
                },
                "retry": {"settle_seconds": pace.settle_seconds, "backoff_seconds": 0.5},
            }
        },
    }
