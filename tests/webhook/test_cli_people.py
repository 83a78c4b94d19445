"""What people see and decide on the command line, against a webhook that serves and against a journal alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.attempt import AttemptParameters
from fusewire.snapshots import NullObserver, SnapshotStore, SnapshotWriter
from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.breaker.events import AlertReported, Command, SnapshotJudged, SnapshotSeen, StepsWatched
from fusewire_webhook.settings.config import Config
from fusewire_webhook.watch.promoter import Promoter
from tests.snapshots.support import write

from .site import call, configured, served, until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


async def locked(config: Config) -> FakeActuator:
    """Leave a LOCKED run behind, with nobody serving; the machine that it ran on."""
    actuator = FakeActuator()
    async with served(config, actuator) as service:
        actuator.exit("cartpole", 0, 1)
        assert (await service.engine.wait_finished("cartpole")).state == "locked"
    return actuator


async def test_a_command_reaches_the_serving_webhook(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """``pause`` is journaled with who and why, and its effect is told."""
    async with served(config, FakeActuator()) as service:
        assert await call("pause", "cartpole", "--why", "looking", "--who", "ada", "--runs", config.runs_dir) == 0
        (pause,) = service.engine.view("cartpole").pauses
    assert pause == {"source": "cli", "who": "ada", "why": "looking", "silence": ""}
    assert "pause by ada: looking" in capsys.readouterr().out


async def stable(config: Config, service: Any, *steps: int) -> list[str]:
    """Snapshots that the gate has promoted; their names."""
    names = [write(Path(config.runs_dir) / "cartpole", step) for step in steps]
    for name in names:
        await service.engine.promote("cartpole", name, by="gate", evidence={}, baselines={})
    return names


async def test_a_rollback_past_stable_snapshots_needs_a_yes(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal it is refused and says how many would go; with ``--yes`` it says where they lie."""
    rollback = ("rollback", "cartpole", "--why", "so", "--runs", config.runs_dir)
    async with served(config, FakeActuator()) as service:
        names = await stable(config, service, 100, 200, 300)
        write(Path(config.runs_dir) / "cartpole", 400)
        assert await call(*rollback, "--to", "100") == 2
        assert "moves 3 snapshots (2 stable) to quarantine: say --yes" in capsys.readouterr().err
        assert await call(*rollback, "--scratch") == 2
        assert "moves 4 snapshots (3 stable) to quarantine: say --yes" in capsys.readouterr().err
        assert service.engine.view("cartpole").attempt == 0
        assert await call(*rollback, "--to", "300") == 0  # no stable one goes
        await until(lambda: service.engine.view("cartpole").attempt == 1)
        assert await call(*rollback, "--to", "100", "--yes") == 0
        quarantine = Path(config.runs_dir) / "cartpole" / "quarantine"
        assert f"2 snapshots (2 stable) to quarantine: {quarantine}" in capsys.readouterr().out
        await until(lambda: service.engine.view("cartpole").attempt == 2 and service.engine.view("cartpole").live)
        assert await call(*rollback, "--to", "300") == 0  # it comes back
        await until(lambda: service.engine.view("cartpole").resumed_from == names[2])


@pytest.mark.parametrize(("said", "done"), [("y\n", True), ("\n", False), ("no\n", False), ("", False)])
async def test_on_a_terminal_a_rollback_asks(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, done: bool
) -> None:
    """Only a yes goes on."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(said))
    async with served(config, FakeActuator()) as service:
        await stable(config, service, 100, 200)
        code = await call("rollback", "cartpole", "--to", "100", "--why", "so", "--runs", config.runs_dir)
        assert code == (0 if done else 2)
        if done:
            await until(lambda: service.engine.view("cartpole").attempt == 1)
        assert service.engine.view("cartpole").attempt == (1 if done else 0)
    assert "moves 1 snapshot (1 stable) to quarantine. Go on? [y/N]" in capsys.readouterr().out


async def test_a_resume_tells_what_was_held_and_can_dismiss_it(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer names the alert and what it will do; ``--dismiss`` keeps it from doing it."""
    started = "2026-01-01T00:00:00Z"
    alert = AlertReported(alertname="KLSpike", status="firing", attempt=0, action="trip", starts_at=started)
    actuator = FakeActuator()

    async def say(*words: str) -> str:
        assert await call(*words, "cartpole", "--why", "so", "--runs", config.runs_dir) == 0
        return capsys.readouterr().out

    async with served(config, actuator) as service:
        await say("pause")
        await service.engine.submit("cartpole", alert)
        told = await say("resume")
        assert "the pause held KLSpike" in told
        assert "keep_firing_for" in told
        await say("pause")
        await service.engine.submit("cartpole", alert)
        told = await say("resume", "--dismiss")
        assert "dismissed: KLSpike; until it has resolved" in told
        assert "no new violation of that rule stops this attempt" in told
        await service.engine.submit("cartpole", alert)
        assert actuator.stops == []


async def test_the_name_of_the_caller_is_the_default(config: Config) -> None:
    """Without ``--who`` the journal holds user@host."""
    async with served(config, FakeActuator()) as service:
        assert await call("pause", "cartpole", "--why", "looking", "--runs", config.runs_dir) == 0
        assert "@" in service.engine.view("cartpole").pauses[0]["who"]


async def test_a_trip_stops_the_trainer(config: Config) -> None:
    """A person's trip does what an alert does."""
    actuator = FakeActuator()
    async with served(config, actuator):
        assert await call("trip", "cartpole", "--why", "the critic looks wrong", "--runs", config.runs_dir) == 0
        await until(lambda: actuator.alive("cartpole") == [1])
    assert actuator.stops == [("cartpole", 0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reset", "cartpole"), "only a locked run can be reset"),
        (("trip", "acrobot"), "no run 'acrobot' is guarded here"),
        (("rollback", "cartpole", "--to", "400"), "no usable snapshot 400"),
    ],
)
async def test_an_impossible_command_is_one_line(
    config: Config, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """Exit code 2 and the webhook's own sentence on stderr."""
    async with served(config, FakeActuator()):
        assert await call(*arguments, "--why", "so", "--runs", config.runs_dir) == 2
    error = capsys.readouterr().err
    assert error.startswith("fusewire: ")
    assert words in error
    assert error.count("\n") == 1


async def test_a_locked_run_is_reset_without_a_webhook(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """``fusewire run`` has ended with LOCKED: the reset is journaled, and the next start acts on it."""
    actuator = await locked(config)
    assert await call("reset", "cartpole", "--why", "found the bug", "--runs", config.runs_dir) == 0
    assert "the next fusewire run acts on it" in capsys.readouterr().out
    async with served(config, actuator) as service:
        await until(lambda: actuator.alive("cartpole") == [1])
        assert service.engine.view("cartpole").state != "locked"


@pytest.mark.parametrize("serving", [True, False], ids=["a webhook serves", "none serves"])
async def test_a_locked_run_is_reset_to_where_a_person_chooses(
    config: Config, capsys: pytest.CaptureFixture[str], serving: bool
) -> None:
    """A rollback names the way; it asks for a yes as a rollback does, and a later reset undoes it."""
    actuator = FakeActuator()

    async def say(*words: str, code: int = 0) -> str:
        assert await call(*words, "cartpole", "--why", "so", "--runs", config.runs_dir) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    async def choose() -> None:
        told = await say("rollback", "--to", "100", "--yes", code=2)
        assert "reset it to that snapshot: `fusewire reset … --to STEP`, or --scratch" in told
        assert "moves 1 snapshot (1 stable) to quarantine: say --yes" in await say("reset", "--to", "100", code=2)
        assert "1 snapshot (1 stable) to quarantine: " in await say("reset", "--to", "100", "--yes")

    async with served(config, actuator) as service:
        names = await stable(config, service, 100, 200)
        actuator.exit("cartpole", 0, 1)
        assert (await service.engine.wait_finished("cartpole")).state == "locked"
        if serving:
            await choose()
            await until(lambda: actuator.alive("cartpole") == [1])
    if not serving:
        await choose()
    async with served(config, actuator) as service:
        await until(lambda: actuator.alive("cartpole") == [1])
        await until(lambda: service.engine.view("cartpole").procedure is None)
        view = service.engine.view("cartpole")
        assert (view.resumed_from, [one["name"] for one in view.promoted]) == (names[0], names[:1])
        actuator.exit("cartpole", 1, 1)
        assert (await service.engine.wait_finished("cartpole")).state == "locked"
        assert f"going back to {names[1]}" in await say("reset", "--to", "200")
        await until(lambda: actuator.alive("cartpole") == [2])
        assert service.engine.view("cartpole").resumed_from == names[1]


async def test_a_step_means_the_same_with_and_without_a_webhook(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rejected snapshot is not taken for its step; both ways say how it can be named."""
    actuator = await locked(config)
    run_dir = Path(config.runs_dir) / "cartpole"
    name = write(run_dir, 7)
    SnapshotStore(run_dir).reject(name, ["it tripped"])
    promote = ("promote", "cartpole", "--snapshot", "7", "--why", "so", "--runs", config.runs_dir)
    assert await call(*promote) == 2
    without = capsys.readouterr().err
    async with served(config, actuator):
        assert await call(*promote) == 2
    assert capsys.readouterr().err == without
    assert f"rejected, so only by its full name: {name}" in without


async def test_an_impossible_command_is_not_journaled_without_a_webhook(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same refusals hold as with a webhook."""
    await locked(config)
    assert await call("rollback", "cartpole", "--scratch", "--why", "so", "--runs", config.runs_dir) == 2
    assert "it is locked" in capsys.readouterr().err
    async with served(config, FakeActuator()) as service:
        assert service.engine.view("cartpole").state == "locked"


async def test_nothing_is_journaled_beside_a_webhook_that_does_not_answer(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock of a living webhook keeps the command line from writing the journal behind its back."""
    async with served(config, FakeActuator()):
        (Path(config.runs_dir) / ".fusewire" / "webhook.json").unlink()
        assert await call("pause", "cartpole", "--why", "so", "--runs", config.runs_dir) == 2
    assert "another fusewire guards this folder" in capsys.readouterr().err


async def test_status_says_the_same_with_and_without_a_webhook(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal alone gives the picture that the webhook gave."""
    async with served(config, FakeActuator()):
        assert await call("status", "--json", "--runs", config.runs_dir) == 0
        alive = json.loads(capsys.readouterr().out)
    assert await call("status", "cartpole", "--json", "--runs", config.runs_dir) == 0
    (from_journal,) = json.loads(capsys.readouterr().out)["runs"]
    assert alive["monitoring"] is not None
    assert alive["runs"] == [from_journal | {"algorithm": "ppo"}]


async def test_status_for_people(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """The table names the run and its state; the details of a locked run say why."""
    await locked(config)
    assert await call("status", "cartpole", "--runs", config.runs_dir) == 0
    text = capsys.readouterr().out
    assert "LOCKED" in text
    assert "locked because: " in text
    assert "No webhook serves this folder" in text


async def test_the_log_tells_what_was_decided(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Every decision stands below the event that led to it; ``--json`` has every field."""
    await locked(config)
    assert await call("log", "cartpole", "--runs", config.runs_dir) == 0
    text = capsys.readouterr().out
    assert "attempt 0 exited with code 1" in text
    assert "→ locked: " in text
    assert await call("log", "cartpole", "--json", "--runs", config.runs_dir) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entries[0]["kind"] == "run_declared"
    assert [entry["seq"] for entry in entries] == sorted(entry["seq"] for entry in entries)


async def test_replay_proves_the_state(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    """Folding the journal again gives what the webhook says, and a difference is found."""
    async with served(config, FakeActuator()) as service:
        await service.engine.command("cartpole", Command(verb="pause", who="ada", why="looking"))
        assert await call("replay", "cartpole", "--runs", config.runs_dir) == 0
        assert "that is what the serving webhook says" in capsys.readouterr().out
        attempt = service.engine.view("cartpole").attempt
        service.engine.saw("cartpole", StepsWatched(attempt=attempt, step=70, watched=70))
        service.engine.looked("cartpole", attempt, 7.0, scrape_interval=1.0)
        view = service.engine.view("cartpole")
        assert (view.step, view.watch is not None) == (70, True)
        assert await call("replay", "cartpole", "--runs", config.runs_dir) == 0
        assert "that is what the serving webhook says" in capsys.readouterr().out
        folded = service.engine._runs["cartpole"].folded
        folded.state = folded.state.but(lr_scale=0.25)
        assert await call("replay", "cartpole", "--runs", config.runs_dir) == 1
    assert "lr_scale: the journal gives 1.0, the webhook says 0.25" in capsys.readouterr().out


async def test_the_journal_of_a_webhook_that_ended_has_the_last_step_it_saw(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """``status`` says the same step before and after the end, however little of it was journaled in between."""
    async with served(config, FakeActuator()) as service:
        attempt = service.engine.view("cartpole").attempt
        service.engine.saw("cartpole", StepsWatched(attempt=attempt, step=70, watched=7))
        assert service.engine.view("cartpole").journaled_step == 0
    assert await call("status", "cartpole", "--json", "--runs", config.runs_dir) == 0
    (view,) = json.loads(capsys.readouterr().out)["runs"]
    assert (view["step"], view["live"]) == (70, True)


@pytest.mark.parametrize("command", ["log", "replay", "status"])
async def test_an_unknown_run_is_one_line(config: Config, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Exit code 2 and the folder's name."""
    await locked(config)
    assert await call(command, "acrobot", "--runs", config.runs_dir) == 2
    assert capsys.readouterr().err == f"fusewire: no run 'acrobot' was ever guarded in {config.runs_dir}\n"


async def test_a_folder_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy is the flag that names another folder."""
    assert await call("status", "--runs", str(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"fusewire: {tmp_path}: no runs were ever guarded here; name the folder with --runs\n"
    )


async def test_the_serving_webhook_says_why_a_candidate_waits(
    config: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``snapshots`` shows the gate's reasons while a webhook serves, after that the journaled ones, else none."""
    parameters, folder = AttemptParameters(run="cartpole"), Path(config.runs_dir) / "cartpole"
    writer = SnapshotWriter(folder, parameters, parent=None, lineage=dict, observer=NullObserver())
    assert writer.save(4, {"weight": np.zeros(4, np.float32)})
    writer.close()
    verdict = {
        "name": "step-000000000004-a000",
        "answer": "inconclusive",
        "reasons": ["12 of 50 steps", "too young"],
    }
    monkeypatch.setattr(Promoter, "latest", lambda _self, run: [verdict] if run == "cartpole" else [])

    async def why() -> str:
        assert await call("snapshots", "cartpole", "--json", "--runs", config.runs_dir) == 0
        return str(json.loads(capsys.readouterr().out)["why"])

    assert await why() == ""
    async with served(config, FakeActuator()) as service:
        assert await why() == "12 of 50 steps; too young"
        for kind, more in (
            (SnapshotSeen, {}),
            (SnapshotJudged, {"answer": "inconclusive", "reasons": ("paused: the run is paused",)}),
        ):
            await service.engine.submit("cartpole", kind(name=verdict["name"], step=4, attempt=0, **more))
    assert await why() == "paused: the run is paused"


async def test_the_journal_names_the_state_that_holds_a_candidate_now(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a webhook, a reason that was journaled in an earlier state of the run is not repeated."""
    actuator = FakeActuator()
    name = write(Path(config.runs_dir) / "cartpole", 4)
    async with served(config, actuator) as service:
        await service.engine.submit("cartpole", SnapshotSeen(name=name, step=4, attempt=0))
        said = SnapshotJudged(
            name=name, step=4, attempt=0, answer="inconclusive", reasons=("state: the run is open",)
        )
        await service.engine.submit("cartpole", said)
        actuator.exit("cartpole", 0, 1)
        assert (await service.engine.wait_finished("cartpole")).state == "locked"
    assert await call("snapshots", "cartpole", "--json", "--runs", config.runs_dir) == 0
    assert json.loads(capsys.readouterr().out)["why"] == "state: the run is locked"
