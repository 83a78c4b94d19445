"""What every actuator must do, whatever it starts: subclass :class:`ActuatorContract` and say how."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal, TypeVar

import pytest

from fusewire_webhook.actuators import Actuator, Gone, Launch
from fusewire_webhook.errors import ActuatorError

T = TypeVar("T")

Behaviour = Literal["runs", "exits 3", "obeys with 0", "ignores TERM", "is preempted", "cannot start"]
"""``runs``: until SIGTERM kills it; ``obeys with 0``: ends with code 0 on SIGTERM; ``is preempted``: ends by a
SIGTERM that no actuator sent."""


async def soon(answer: Awaitable[T]) -> T:
    """A wait that must end, with a bound that only a hang reaches."""
    return await asyncio.wait_for(answer, 30)


class ActuatorContract(ABC):
    """Subclasses provide a fixture ``actuator`` and the three methods below."""

    cannot_express: frozenset[Behaviour] = frozenset()
    """Behaviours that this actuator has no way to start; their tests are skipped."""

    @abstractmethod
    def argv(self, behaviour: Behaviour) -> tuple[str, ...]:
        """A command that behaves so."""

    @abstractmethod
    def successor(self, actuator: Actuator) -> Actuator:
        """The actuator that another webhook process has after the first was killed."""

    def launch(self, tmp_path: Path, behaviour: Behaviour = "runs", run: str = "r") -> Launch:
        if behaviour in self.cannot_express:
            pytest.skip(f"cannot start something that {behaviour}")
        return Launch(run=run, attempt=0, argv=self.argv(behaviour), environment={}, run_dir=str(tmp_path / run))

    @abstractmethod
    async def ready(self, tmp_path: Path, launch: Launch) -> None:
        """Return once the started command has got so far that its behaviour holds."""

    async def test_a_started_attempt_runs(self, actuator: Actuator, tmp_path: Path) -> None:
        """After start() an attempt is queued, starting or running."""
        handle = await actuator.start(self.launch(tmp_path))
        status = await actuator.status(handle)
        assert status.phase in {"queued", "starting", "running"}
        assert status.exit_code is None

    async def test_a_handle_is_json(self, actuator: Actuator, tmp_path: Path) -> None:
        """A handle survives the journal: JSON and back, it still means the same attempt."""
        handle = await actuator.start(self.launch(tmp_path))
        back = json.loads(json.dumps(handle))
        assert back == handle
        gone = await actuator.stop(back, grace_seconds=30)
        assert gone.confirmed

    async def test_start_is_idempotent(self, actuator: Actuator, tmp_path: Path) -> None:
        """Starting the same attempt again adopts it: the same handle, no second process."""
        launch = self.launch(tmp_path)
        first = await actuator.start(launch)
        assert await actuator.start(launch) == first
        assert await self.successor(actuator).start(launch) == first

    async def test_starts_at_once_are_one_start(self, actuator: Actuator, tmp_path: Path) -> None:
        """Callers that start the same attempt at the same time get the same handle."""
        launch = self.launch(tmp_path)
        handles = await asyncio.gather(*(actuator.start(launch) for _ in range(4)))
        assert all(handle == handles[0] for handle in handles)

    async def test_start_after_the_exit_starts_nothing(self, actuator: Actuator, tmp_path: Path) -> None:
        """An attempt that has ended is adopted as ended: its number is never used twice."""
        launch = self.launch(tmp_path, "exits 3")
        await soon(actuator.wait(await actuator.start(launch)))
        again = await actuator.start(launch)
        assert (await actuator.status(again)).exit_code == 3

    async def test_find(self, actuator: Actuator, tmp_path: Path) -> None:
        """find() gives the handle of a started attempt and None for one that was never started."""
        launch = self.launch(tmp_path)
        assert await actuator.find("r", 0, launch.run_dir) is None
        handle = await actuator.start(launch)
        assert await actuator.find("r", 0, launch.run_dir) == handle
        assert await self.successor(actuator).find("r", 0, launch.run_dir) == handle
        assert await actuator.find("r", 1, launch.run_dir) is None

    async def test_exit_status_is_kept(self, actuator: Actuator, tmp_path: Path) -> None:
        """wait() returns the exit code, and status() tells it to anybody later."""
        handle = await actuator.start(self.launch(tmp_path, "exits 3"))
        status = await soon(actuator.wait(handle))
        assert (status.phase, status.exit_code, status.reason) == ("exited", 3, "")
        assert await actuator.status(handle) == status
        assert await self.successor(actuator).status(handle) == status
        assert await soon(self.successor(actuator).wait(handle)) == status

    async def test_stop(self, actuator: Actuator, tmp_path: Path) -> None:
        """stop() ends a running attempt by SIGTERM, and its exit is not taken for a preemption or an OOM kill."""
        launch = self.launch(tmp_path)
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        gone = await actuator.stop(handle, grace_seconds=30)
        assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 143, 0)
        status = await actuator.status(handle)
        assert (status.phase, status.exit_code) == ("exited", 143)
        assert status.reason == ""

    async def test_stop_of_one_that_obeys(self, actuator: Actuator, tmp_path: Path) -> None:
        """A trainer that ends by itself on SIGTERM keeps its own exit code."""
        launch = self.launch(tmp_path, "obeys with 0")
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        gone = await actuator.stop(handle, grace_seconds=30)
        assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 0, 0)

    async def test_stop_of_one_that_ignores(self, actuator: Actuator, tmp_path: Path) -> None:
        """A trainer that ignores SIGTERM is killed after its grace, and that is told."""
        launch = self.launch(tmp_path, "ignores TERM")
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        gone = await actuator.stop(handle, grace_seconds=0.1)
        assert (gone.confirmed, gone.exit_code) == (True, 137)
        assert gone.killed >= 1

    async def test_stop_twice(self, actuator: Actuator, tmp_path: Path) -> None:
        """Two stops at once and one later all confirm, with the same exit code."""
        launch = self.launch(tmp_path)
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        answers = list(await asyncio.gather(*(actuator.stop(handle, grace_seconds=30) for _ in range(2))))
        answers.append(await actuator.stop(handle, grace_seconds=30))
        assert [(gone.confirmed, gone.exit_code) for gone in answers] == [(True, 143)] * 3

    async def test_a_stop_in_a_hurry(self, actuator: Actuator, tmp_path: Path) -> None:
        """A second stop with a shorter grace hurries the first one on."""
        launch = self.launch(tmp_path, "ignores TERM")
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        patient = asyncio.create_task(actuator.stop(handle, grace_seconds=3600))
        await asyncio.sleep(0.2)
        hurried = await soon(actuator.stop(handle, grace_seconds=0.0))
        assert (hurried.confirmed, hurried.exit_code) == (True, 137)
        assert (await soon(patient)).exit_code == 137

    async def test_a_stop_at_once(self, actuator: Actuator, tmp_path: Path) -> None:
        """Nothing is waited for any more, also where another stop's grace is under way; both are confirmed."""
        launch = self.launch(tmp_path, "ignores TERM")
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        patient = asyncio.create_task(actuator.stop(handle, grace_seconds=3600))
        await asyncio.sleep(0.2)
        hurried = await soon(actuator.stop(handle, grace_seconds=3600, at_once=True))
        assert (hurried.confirmed, hurried.exit_code) == (True, 137)
        assert (await soon(patient)).exit_code == 137

    async def test_stop_of_an_exited_attempt(self, actuator: Actuator, tmp_path: Path) -> None:
        """Stopping what has ended confirms at once and changes neither code nor reason."""
        handle = await actuator.start(self.launch(tmp_path, "exits 3"))
        before = await soon(actuator.wait(handle))
        gone = await actuator.stop(handle, grace_seconds=30)
        assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 3, 0)
        assert await actuator.status(handle) == before

    async def test_stop_by_a_successor(self, actuator: Actuator, tmp_path: Path) -> None:
        """A webhook that was restarted stops what its predecessor started."""
        launch = self.launch(tmp_path)
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        gone: Gone = await self.successor(actuator).stop(handle, grace_seconds=30)
        assert (gone.confirmed, gone.exit_code) == (True, 143)

    async def test_wait_returns_when_it_is_stopped(self, actuator: Actuator, tmp_path: Path) -> None:
        """A wait that is under way ends with the stop."""
        launch = self.launch(tmp_path)
        handle = await actuator.start(launch)
        await self.ready(tmp_path, launch)
        waiting = asyncio.create_task(actuator.wait(handle))
        await asyncio.sleep(0)
        assert not waiting.done()
        await actuator.stop(handle, grace_seconds=30)
        assert (await soon(waiting)).exit_code == 143

    async def test_preemption(self, actuator: Actuator, tmp_path: Path) -> None:
        """A SIGTERM that the actuator did not send is told apart, also after a stop that came too late."""
        handle = await actuator.start(self.launch(tmp_path, "is preempted"))
        status = await soon(actuator.wait(handle))
        assert (status.phase, status.exit_code, status.reason) == ("exited", 143, "preempted")
        await actuator.stop(handle, grace_seconds=30)
        assert await actuator.status(handle) == status

    async def test_a_command_that_cannot_start(self, actuator: Actuator, tmp_path: Path) -> None:
        """A command that cannot be executed is an ActuatorError of one line, and was never started."""
        launch = self.launch(tmp_path, "cannot start")
        for _ in range(2):
            with pytest.raises(ActuatorError) as raised:
                await actuator.start(launch)
            assert "\n" not in str(raised.value)
            assert await actuator.find("r", 0, launch.run_dir) is None

    async def test_close_stops_nothing(self, actuator: Actuator, tmp_path: Path) -> None:
        """close() lets go of resources and leaves the attempt running."""
        handle = await actuator.start(self.launch(tmp_path))
        await actuator.close()
        assert (await self.successor(actuator).status(handle)).phase != "exited"

    async def test_runs_are_apart(self, actuator: Actuator, tmp_path: Path) -> None:
        """Stopping one run's attempt leaves another run's alone."""
        one = await actuator.start(self.launch(tmp_path, run="r"))
        two = await actuator.start(self.launch(tmp_path, run="s"))
        assert one != two
        await actuator.stop(one, grace_seconds=30)
        assert (await actuator.status(two)).phase != "exited"
