"""Starting, adopting and telling how an attempt ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fusewire_webhook.actuators import keeper
from fusewire_webhook.actuators.attempt_files import Exit
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.errors import ActuatorError

from .programs import NoGpu, alive, appears, ends, is_reaped, launch, look, python, shell

STARTER = """
import asyncio, json, os, sys
from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.local import LocalActuator

async def main():
    script = 'echo x >>"$1/starts"; exec sleep 600'
    handle = await LocalActuator().start(
        Launch(run="r", attempt=0, argv=("sh", "-c", script, "sh", sys.argv[1]), environment={},
               run_dir=sys.argv[1] + "/r"))
    print(json.dumps(handle), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_trainer_outlives_its_starter(actuator: LocalActuator, tmp_path: Path) -> None:
    """After SIGKILL of the process that called start(), another one adopts the attempt and stops it."""
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    handle = json.loads(await asyncio.wait_for(starter.stdout.readline(), 60))
    await appears(tmp_path / "starts")
    starter.kill()
    await starter.wait()
    run_dir = str(tmp_path / "r")
    assert await actuator.find("r", 0, run_dir) == handle
    assert (await actuator.status(handle)).phase == "running"
    assert await actuator.start(replace(shell(tmp_path, "echo x >>$T/starts"), run_dir=run_dir)) == handle
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code) == (True, 143)
    assert (tmp_path / "starts").read_text() == "x\n"


async def test_the_command_runs_once(actuator: LocalActuator, tmp_path: Path) -> None:
    """However many start the same attempt at the same time, its command is executed once."""
    order = shell(tmp_path, "echo x >>$T/starts; echo up >$T/up; sleep 600")
    others = [LocalActuator(gpu=NoGpu()) for _ in range(5)]
    handles = await asyncio.gather(*(each.start(order) for each in [actuator, *others]))
    await appears(tmp_path / "up")
    await asyncio.gather(*(each.close() for each in others))
    assert all(handle == handles[0] for handle in handles)
    assert (tmp_path / "starts").read_text() == "x\n"


async def test_a_starter_that_died_meanwhile(tmp_path: Path) -> None:
    """A keeper whose starter died before it claimed the attempt starts nothing and leaves no claim."""
    folder = tmp_path / "attempts" / "000"
    folder.mkdir(parents=True)
    order = {
        "folder": str(folder), "log": str(folder / "output.log"), "cwd": None, "environment": {},
        "argv": ["/bin/sh", "-c", f"echo x >{tmp_path}/started"],
    }  # fmt: skip
    read, write = os.pipe()
    orphaned = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", keeper.__file__, stdin=asyncio.subprocess.PIPE, stdout=write
    )
    os.close(write)
    os.close(read)
    await asyncio.wait_for(orphaned.communicate(json.dumps(order).encode()), 30)
    assert not (folder / "keeper.json").exists()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("argv", "cwd", "names"),
    [
        (("no-such-trainer", "-x"), None, "no-such-trainer"),
        (("/etc/passwd",), None, "/etc/passwd"),
        (("true",), "/no/such/folder", "/no/such/folder"),
    ],
)
async def test_exec_failures(
    actuator: LocalActuator, tmp_path: Path, argv: tuple[str, ...], cwd: str | None, names: str
) -> None:
    """A command or folder that does not exist or may not be executed is named in one line."""
    with pytest.raises(ActuatorError, match=names) as raised:
        await actuator.start(replace(launch(tmp_path, *argv), cwd=cwd))
    assert "\n" not in str(raised.value)
    assert await actuator.find("r", 0, str(tmp_path / "r")) is None


async def test_a_run_directory_that_cannot_be_written(actuator: LocalActuator, tmp_path: Path) -> None:
    """A run directory that is a file is an ActuatorError that names it."""
    (tmp_path / "r").write_text("")
    with pytest.raises(ActuatorError, match=str(tmp_path / "r")):
        await actuator.start(shell(tmp_path, "true"))


async def test_a_damaged_keeper_file(actuator: LocalActuator, tmp_path: Path) -> None:
    """A keeper's file that cannot be read is an error that names it, never "was not started"."""
    folder = tmp_path / "r" / "attempts" / "000"
    folder.mkdir(parents=True)
    for text in ("{", "[]", '{"keeper": 1}'):
        (folder / "keeper.json").write_text(text)
        with pytest.raises(ActuatorError, match=str(folder / r"keeper\.json")):
            await actuator.find("r", 0, str(tmp_path / "r"))
        with pytest.raises(ActuatorError):
            await actuator.start(shell(tmp_path, "true"))


async def test_how_long_it_lived_is_told(actuator: LocalActuator, tmp_path: Path) -> None:
    """By the keeper's clock: whoever asks late, or asks a webhook that came later, learns the same."""
    handle = await actuator.start(shell(tmp_path, "sleep 0.3; exit 3"))
    status = await asyncio.wait_for(actuator.wait(handle), 30)
    assert status.seconds is not None
    assert status.seconds >= 0.3
    assert await LocalActuator().status(handle) == status


async def test_a_damaged_exit_file(actuator: LocalActuator, tmp_path: Path) -> None:
    """An exit file that cannot be read means an exit whose code is lost."""
    handle = await actuator.start(shell(tmp_path, "exit 3"))
    await asyncio.wait_for(actuator.wait(handle), 30)
    (tmp_path / "r/attempts/000/exit.json").write_text('{"code": ')
    status = await actuator.status(handle)
    assert (status.phase, status.exit_code, status.reason) == ("exited", None, "")
    assert (await actuator.stop(handle, grace_seconds=30)).confirmed


async def test_a_run_directory_removed_under_it(actuator: LocalActuator, tmp_path: Path) -> None:
    """An attempt whose folder somebody removed can still be stopped by its handle."""
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    await asyncio.to_thread(shutil.rmtree, tmp_path / "r")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert gone.confirmed
    assert not await alive(handle["root"]["pid"])


async def test_a_foreign_handle(actuator: LocalActuator) -> None:
    """A handle of another actuator is refused."""
    with pytest.raises(ActuatorError, match="docker"):
        await actuator.status({"actuator": "docker", "id": "x"})


async def test_a_reused_pid_is_somebody_else(
    actuator: LocalActuator, tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """Where a recorded PID has another start time, the attempt has exited and the stranger is not signalled."""
    handle = await actuator.start(shell(tmp_path, "exit 0"))
    await asyncio.wait_for(actuator.wait(handle), 30)
    assert await is_reaped(handle["keeper"]["pid"])
    found = await look(stranger.pid)
    assert found is not None
    path = tmp_path / "r/attempts/000/keeper.json"
    value = json.loads(path.read_text())
    value["root"] = value["keeper"] = {"pid": stranger.pid, "start": found.id.start - 1}
    path.write_text(json.dumps(value))
    (path.parent / "exit.json").unlink()
    reused = await actuator.find("r", 0, str(tmp_path / "r"))
    assert reused is not None
    status = await actuator.status(reused)
    assert (status.phase, status.exit_code) == ("exited", None)
    gone = await actuator.stop(reused, grace_seconds=30)
    assert (gone.confirmed, gone.killed) == (True, 0)
    assert stranger.poll() is None


async def test_after_a_boot(actuator: LocalActuator, tmp_path: Path) -> None:
    """An attempt of an earlier boot has exited; its PIDs mean other processes now and are not signalled."""
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    earlier = {**handle, "boot": "another boot"}
    assert (await actuator.status(earlier)).phase == "exited"
    gone = await actuator.stop(earlier, grace_seconds=30)
    assert (gone.confirmed, gone.killed) == (True, 0)
    assert (await actuator.status(handle)).phase == "running"


async def test_in_another_pid_namespace(actuator: LocalActuator, tmp_path: Path) -> None:
    """From another container an attempt is seen running and not signalled; once it has ended it is gone."""
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    elsewhere = {**handle, "pid_namespace": 1}
    assert (await actuator.status(elsewhere)).phase == "running"
    gone = await actuator.stop(elsewhere, grace_seconds=30)
    assert not gone.confirmed
    assert "another PID namespace" in gone.reason
    assert await alive(handle["root"]["pid"])
    for one in ("keeper", "root"):
        os.kill(handle[one]["pid"], signal.SIGKILL)
        assert await ends(handle[one]["pid"])
    assert (await actuator.status(elsewhere)).phase == "exited"
    assert (await actuator.stop(elsewhere, grace_seconds=30)).confirmed


async def test_signal_from_outside(actuator: LocalActuator, tmp_path: Path) -> None:
    """Death by a signal that the actuator did not send is told apart from an exit code."""
    handle = await actuator.start(shell(tmp_path, "kill -SEGV $$"))
    status = await asyncio.wait_for(actuator.wait(handle), 30)
    assert (status.exit_code, status.reason) == (139, "signal")


async def test_an_ordered_end_has_no_reason(actuator: LocalActuator, tmp_path: Path) -> None:
    """A death by our own signal is told without a reason, to every later webhook, too."""
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    await actuator.stop(handle, grace_seconds=30)
    status = await LocalActuator(gpu=NoGpu()).status(handle)
    assert (status.exit_code, status.reason) == (143, "")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup (v1 or v2) below this process's own in which 60 MB are too much."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [Path(f"/sys/fs/cgroup/memory{path}") for _, kinds, path in own if "memory" in kinds.split(",")]
    v2 = [Path(f"/sys/fs/cgroup{path}") for _, kinds, path in own if not kinds]
    group = (v1 or v2)[0] / f"fusewire-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if v1 else "memory.max")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not limit.exists():
            pytest.skip("no memory controller for a cgroup below this one")
        limit.write_text("60000000")
        yield group
    finally:
        for _ in range(500):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.01)


HUNGRY = """
import asyncio, sys
from fusewire_webhook.actuators import Launch
from fusewire_webhook.actuators.local import LocalActuator

async def main():
    argv = (sys.executable, "-I", "-S", "-c", "x = bytearray(200_000_000)")
    actuator = LocalActuator()
    handle = await actuator.start(Launch(run="r", attempt=0, argv=argv, environment={}, run_dir=sys.argv[1]))
    await actuator.wait(handle)

with open(sys.argv[2], "w") as file:
    file.write("0")
asyncio.run(main())
"""


async def test_oom_kill(actuator: LocalActuator, tmp_path: Path, small_cgroup: Path) -> None:
    """A trainer that the kernel killed for its memory is told apart from any other SIGKILL."""
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HUNGRY, str(tmp_path / "r"), str(small_cgroup / "cgroup.procs")
    )
    assert await asyncio.wait_for(starter.wait(), 60) == 0
    handle = await actuator.find("r", 0, str(tmp_path / "r"))
    assert handle is not None
    status = await actuator.status(handle)
    assert (status.exit_code, status.reason) == (137, "oom_kill")
    assert await is_reaped(handle["keeper"]["pid"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run directory on a file system of its own, of 64 kB."""
    folder = tmp_path / "r"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk(actuator: LocalActuator, tmp_path: Path, small_disk: Path) -> None:
    """An exit status that cannot be written is told from the kernel's record, and written when there is room."""
    handle = await actuator.start(shell(tmp_path, "until test -e $T/go; do sleep 0.05; done; exit 3"))
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * 100_000)
    (tmp_path / "go").touch()
    status = await asyncio.wait_for(actuator.wait(handle), 30)
    assert (status.phase, status.exit_code) == ("exited", 3)
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code) == (True, 3)
    assert not (small_disk / "attempts/000/exit.json").exists()
    (small_disk / "filler").unlink()
    assert json.loads(await appears(small_disk / "attempts/000/exit.json"))["code"] == 3
    assert await is_reaped(handle["keeper"]["pid"])


@pytest.mark.parametrize(
    ("found", "asked", "reason"),
    [
        (Exit(code=0), False, ""),
        (Exit(code=1), False, ""),
        (Exit(code=255), False, ""),
        (Exit(code=None), False, ""),
        (Exit(code=0, oom_kills=1), False, ""),
        (Exit(code=137, signal=9, oom_kills=1), False, "oom_kill"),
        (Exit(code=1, oom_kills=1), False, "oom_kill"),
        (Exit(code=137, signal=9, oom_kills=1), True, ""),
        (Exit(code=137, signal=9), False, "signal"),
        (Exit(code=137, signal=9), True, ""),
        (Exit(code=143, signal=15), False, "preempted"),
        (Exit(code=143), False, "preempted"),
        (Exit(code=143, signal=15), True, ""),
        (Exit(code=134, signal=6), False, "signal"),
        (Exit(code=137), False, "signal"),
    ],
)
def test_reasons(found: Exit, asked: bool, reason: str) -> None:
    """Code, signal, OOM kills and our own order together name the reason of an exit."""
    assert found.reason(asked=asked) == reason


async def test_what_the_command_gets(actuator: LocalActuator, tmp_path: Path) -> None:
    """The command runs in its own session with default signals, /dev/null as stdin, its variables, its log file."""
    script = """
import os, signal, sys
T = os.environ["T"]
handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)]
print("default" if handlers == [signal.SIG_DFL] * 3 else handlers)
print("leader" if os.getsid(0) == os.getpid() else "follower")
print("stdin", os.readlink("/proc/self/fd/0"))
print("cwd", os.getcwd())
print("to stderr", file=sys.stderr)
"""
    order = replace(python(tmp_path, script), cwd=str(tmp_path), log_path=str(tmp_path / "logs" / "out.txt"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "out.txt").write_text("earlier\n")
    await asyncio.wait_for(actuator.wait(await actuator.start(order)), 30)
    lines = (tmp_path / "logs" / "out.txt").read_text().splitlines()
    assert lines[0] == "earlier"
    assert set(lines[1:]) == {"default", "leader", "stdin /dev/null", f"cwd {tmp_path}", "to stderr"}


async def test_output_goes_beside_the_attempt(actuator: LocalActuator, tmp_path: Path) -> None:
    """Without a log path the output lies in the folder of the attempt."""
    await asyncio.wait_for(actuator.wait(await actuator.start(shell(tmp_path, "echo hello"))), 30)
    assert (tmp_path / "r/attempts/000/output.log").read_text() == "hello\n"


async def test_killing_the_own_process_group(actuator: LocalActuator, tmp_path: Path) -> None:
    """A trainer that kills its whole process group does not take the keeper along: its exit is recorded."""
    handle = await actuator.start(shell(tmp_path, "kill -KILL 0"))
    status = await asyncio.wait_for(actuator.wait(handle), 30)
    assert (status.exit_code, status.reason) == (137, "signal")


async def test_a_keeper_is_small(actuator: LocalActuator, tmp_path: Path) -> None:
    """A keeper holds less than 10 MB of memory of its own."""
    handle = await actuator.start(shell(tmp_path, "exec sleep 600"))
    text = await appears(Path(f"/proc/{handle['keeper']['pid']}/status"))
    own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon"))
    assert own < 10_000
