"""The local actuator on process trees that do not want to go."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fusewire_webhook.actuators import local
from fusewire_webhook.actuators.attempt_files import KeptAttempt, lock_path, mark_stop
from fusewire_webhook.actuators.local import LocalActuator
from fusewire_webhook.actuators.tree import ProcessId, ProcessTable

from .programs import NoGpu, alive, appears, ends, is_reaped, launch, python, shell


async def pids(*files: Path) -> list[int]:
    return [int(await appears(file)) for file in files]


async def test_grandchildren_go_too(actuator: LocalActuator, tmp_path: Path) -> None:
    """Children, their children and background jobs are gone after a stop."""
    script = """
    (sh -c 'echo $$ >$T/grandchild; sleep 600; :' & echo $! >$T/child; wait) &
    sleep 600 & echo $! >$T/job
    wait
    """
    handle = await actuator.start(shell(tmp_path, script))
    left = await pids(tmp_path / "child", tmp_path / "grandchild", tmp_path / "job")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 143, 0)
    assert [await alive(pid) for pid in left] == [False] * 3


DAEMON = """
import os, sys, time
T = os.environ["T"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(T + "/daemon.new", "w") as f: f.write(str(os.getpid()))
        os.rename(T + "/daemon.new", T + "/daemon")
        time.sleep(600)
    os._exit(0)
os.wait()
"""


async def test_a_daemon_cannot_leave(actuator: LocalActuator, tmp_path: Path) -> None:
    """A double-forked daemon in a session of its own is found and ended."""
    handle = await actuator.start(python(tmp_path, DAEMON + "time.sleep(600)"))
    (daemon,) = await pids(tmp_path / "daemon")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code) == (True, 143)
    assert not await alive(daemon)


async def test_what_a_finished_root_leaves_behind(actuator: LocalActuator, tmp_path: Path) -> None:
    """A root that has ended cleanly is exited, whatever it left; stop ends that and keeps code and reason."""
    handle = await actuator.start(python(tmp_path, DAEMON))
    (daemon,) = await pids(tmp_path / "daemon")
    status = await asyncio.wait_for(actuator.wait(handle), 30)
    assert (status.phase, status.exit_code, status.reason) == ("exited", 0, "")
    assert await alive(daemon)
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code) == (True, 0)
    assert not await alive(daemon)
    assert await actuator.status(handle) == status


async def test_root_first(actuator: LocalActuator, tmp_path: Path) -> None:
    """While the root has its grace, nobody else is signalled; after it, the rest gets SIGTERM before SIGKILL."""
    script = """
    trap 'sleep 0.5; echo root >>$T/order; exit 7' TERM
    sh -c 'trap "echo term >>$T/order; exit" TERM; echo up >$T/up; while :; do sleep 0.05; done' &
    while :; do sleep 0.05; done
    """
    handle = await actuator.start(shell(tmp_path, script))
    await appears(tmp_path / "up")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 7, 0)
    assert (tmp_path / "order").read_text().split() == ["root", "term"]


async def test_a_grandchild_that_ignores_sigterm(tmp_path: Path) -> None:
    """Only what ignores SIGTERM is killed, and counted."""
    actuator = LocalActuator(gpu=NoGpu(), kill_seconds=2.0)
    script = """
    trap 'exit 143' TERM
    sh -c 'trap "" TERM; echo up >$T/up; while read x; do :; done </dev/zero' &
    while :; do sleep 0.05; done
    """
    handle = await actuator.start(shell(tmp_path, script))
    await appears(tmp_path / "up")
    gone = await actuator.stop(handle, grace_seconds=30)
    await actuator.close()
    assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 143, 1)


async def test_a_stop_at_once_waits_for_no_grandchild(tmp_path: Path) -> None:
    """What ignores SIGTERM is killed now, not after the seconds that a tree has to obey."""
    actuator = LocalActuator(gpu=NoGpu(), kill_seconds=3600)
    script = """
    sh -c 'trap "" TERM; echo up >$T/up; while read x; do :; done </dev/zero' &
    trap '' TERM
    while :; do sleep 0.05; done
    """
    handle = await actuator.start(shell(tmp_path, script))
    await appears(tmp_path / "up")
    patient = asyncio.create_task(actuator.stop(handle, grace_seconds=0.1))
    await asyncio.sleep(0.5)
    gone = await asyncio.wait_for(actuator.stop(handle, grace_seconds=3600, at_once=True), 30)
    assert (await asyncio.wait_for(patient, 30)).killed >= 2
    await actuator.close()
    assert (gone.confirmed, gone.exit_code) == (True, 137)


async def test_no_descriptor_is_left_open(actuator: LocalActuator, tmp_path: Path) -> None:
    """Starts, waits and stops, hurried ones too, leave no file descriptor behind."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def once(attempt: int) -> None:
        handle = await actuator.start(shell(tmp_path, "exec sleep 600", attempt=attempt))
        waiting = asyncio.create_task(actuator.wait(handle))
        assert (await actuator.stop(handle, grace_seconds=0.0)).confirmed
        await waiting
        assert await is_reaped(handle["keeper"]["pid"])

    await once(0)
    await asyncio.sleep(0.5)
    before = await asyncio.to_thread(descriptors)
    for attempt in range(1, 6):
        await once(attempt)
    end = time.monotonic() + 30  # the last ones are closed a moment after the answer
    while await asyncio.to_thread(descriptors) > before and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(descriptors) <= before


async def test_a_stopped_process_can_obey(actuator: LocalActuator, tmp_path: Path) -> None:
    """A process under SIGSTOP is continued so that it ends by SIGTERM, not by SIGKILL."""
    script = "trap 'exit 9' TERM; echo $$ >$T/pid; while :; do sleep 0.05; done"
    handle = await actuator.start(shell(tmp_path, script))
    (root,) = await pids(tmp_path / "pid")
    os.kill(root, signal.SIGSTOP)
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 9, 0)


async def test_zombies_hold_nothing_up(actuator: LocalActuator, tmp_path: Path) -> None:
    """Children that the trainer never reaps neither count as running nor delay the stop."""
    script = """
import os, time
children = [os.fork() for _ in range(3)]
if 0 in children: os._exit(0)
with open(os.environ["T"] + "/up", "w") as f: f.write("up")
time.sleep(600)
"""
    handle = await actuator.start(python(tmp_path, script))
    await appears(tmp_path / "up")
    gone = await actuator.stop(handle, grace_seconds=30)
    assert (gone.confirmed, gone.exit_code, gone.killed) == (True, 143, 0)


async def test_orphans_are_reaped(actuator: LocalActuator, tmp_path: Path) -> None:
    """An orphan that ends while the trainer runs does not stay a zombie."""
    handle = await actuator.start(shell(tmp_path, "(sleep 0.2 & echo $! >$T/orphan); sleep 600"))
    (orphan,) = await pids(tmp_path / "orphan")
    assert await ends(orphan)
    assert await is_reaped(orphan)
    assert (await actuator.status(handle)).phase == "running"


async def test_keepers_are_reaped(actuator: LocalActuator, tmp_path: Path) -> None:
    """The keeper of an attempt that is gone does not stay a zombie of the webhook."""
    handle = await actuator.start(shell(tmp_path, "exit 0"))
    await asyncio.wait_for(actuator.wait(handle), 30)
    assert await is_reaped(handle["keeper"]["pid"])


async def test_a_killed_keeper_takes_nobody_along(actuator: LocalActuator, tmp_path: Path) -> None:
    """Without its keeper the trainer runs on, is seen, and is stopped with all its orphans; its code is lost."""
    handle = await actuator.start(python(tmp_path, DAEMON + "time.sleep(600)"))
    (daemon,) = await pids(tmp_path / "daemon")
    os.kill(handle["keeper"]["pid"], signal.SIGKILL)
    assert await ends(handle["keeper"]["pid"])
    assert (await actuator.status(handle)).phase == "running"
    gone = await actuator.stop(handle, grace_seconds=30)
    assert gone.confirmed
    assert gone.exit_code in {None, 143}  # 143 where nobody has reaped the root yet
    assert not await alive(daemon)
    assert not await alive(handle["root"]["pid"])


async def test_an_orphan_of_a_killed_keeper_and_a_dead_root(actuator: LocalActuator, tmp_path: Path) -> None:
    """Even with keeper and root gone, a daemon of the attempt is found by what it inherited."""
    handle = await actuator.start(python(tmp_path, DAEMON + "time.sleep(600)"))
    (daemon,) = await pids(tmp_path / "daemon")
    os.kill(handle["keeper"]["pid"], signal.SIGKILL)
    os.kill(handle["root"]["pid"], signal.SIGKILL)
    assert await ends(handle["root"]["pid"])
    assert (await actuator.status(handle)).phase == "exited"
    assert await alive(daemon)
    gone = await actuator.stop(handle, grace_seconds=30)
    assert gone.confirmed
    assert not await alive(daemon)


WORKERS = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 10**9
    def __getitem__(self, index): return torch.zeros(8)

stopping = False
def stop(*_):
    global stopping
    stopping = True

if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, stop)
    loader = iter(DataLoader(Numbers(), batch_size=4, num_workers=2))
    for n, batch in enumerate(loader):
        if n == 20:
            with open(sys.argv[1] + "/up", "w") as f: f.write("up")
        if stopping:
            time.sleep(0.2)
            for _ in range(5): next(loader)
            break
    del loader
    with open(sys.argv[1] + "/clean", "w") as f: f.write("clean")
    sys.exit(143)
"""


@pytest.mark.timeout(600)
async def test_data_loader_workers(actuator: LocalActuator, tmp_path: Path) -> None:
    """A trainer with data-loader workers that still needs them while it stops ends cleanly, 5 times of 5."""
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    folders = [tmp_path / str(n) for n in range(5)]
    for folder in folders:
        folder.mkdir()

    async def trial(number: int) -> tuple[bool, int | None, int, bool]:
        argv = (sys.executable, str(script), str(folders[number]))
        handle = await actuator.start(launch(tmp_path, *argv, attempt=number))
        await appears(folders[number] / "up", 300)
        gone = await actuator.stop(handle, grace_seconds=60)
        return gone.confirmed, gone.exit_code, gone.killed, (folders[number] / "clean").exists()

    assert [await trial(number) for number in range(5)] == [(True, 143, 0, True)] * 5


@pytest.fixture
def unkillable(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> Path:
    """A /proc in which a process stays in uninterruptible sleep whatever happens to it."""
    proc, process = tmp_path / "proc", f"{stranger.pid}/stat"
    for name in (process, "sys/kernel/random/boot_id", "self/ns/pid"):
        (proc / name).parent.mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_bytes(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    (proc / "self/ns/pid").write_text("")
    text = Path("/proc", process).read_bytes()
    (proc / process).write_bytes(re.sub(rb"\) [A-Z] ", b") D ", text, count=1))
    return proc


async def test_what_cannot_be_killed(tmp_path: Path, unkillable: Path, stranger: subprocess.Popen[bytes]) -> None:
    """A process that outlasts SIGKILL is named in an answer that does not confirm, within the bound."""
    table = ProcessTable(unkillable)
    root = await asyncio.to_thread(table.look, stranger.pid)
    assert root is not None
    handle = KeptAttempt(
        folder=tmp_path,
        keeper=ProcessId(pid=2**22 - 1, start=1),
        root=root.id,
        boot=await asyncio.to_thread(table.boot_id),
        pid_namespace=await asyncio.to_thread(table.pid_namespace),
    ).handle()
    actuator = LocalActuator(gpu=NoGpu(), kill_seconds=0.2, proc=unkillable)
    gone = await asyncio.wait_for(actuator.stop(handle, grace_seconds=0.1), 20)
    assert not gone.confirmed
    assert gone.reason.startswith("1 processes did not end after SIGKILL")
    assert f"PID {stranger.pid} (sleep, state D)" in gone.reason


async def test_a_folder_that_hangs_holds_up_no_stop(
    actuator: LocalActuator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs than threads lie on a file system that hangs: each of them is stopped, and so is any other."""
    back = threading.Event()

    def hanging(folder: Path) -> None:
        if "hanging" in str(folder):
            assert back.wait(60)
        mark_stop(folder)

    monkeypatch.setattr(local, "mark_stop", hanging)
    folders = [tmp_path / f"hanging-{number}" for number in range(40)]
    handles = [await actuator.start(launch(folder, "sleep", "600")) for folder in folders]
    other = await actuator.start(launch(tmp_path / "other", "sleep", "600"))
    stops = [asyncio.create_task(actuator.stop(handle, grace_seconds=30)) for handle in handles]
    await asyncio.sleep(0)
    gone = await asyncio.wait_for(actuator.stop(other, grace_seconds=30), 30)
    assert (gone.confirmed, gone.exit_code) == (True, 143)
    assert all(gone.confirmed for gone in await asyncio.wait_for(asyncio.gather(*stops), 30))
    assert not back.is_set()
    back.set()


async def test_a_stop_that_hangs_is_not_confirmed(tmp_path: Path) -> None:
    """Where nobody can tell whether an attempt lives, the stop ends all the same, and says so."""
    table = ProcessTable()
    handle = KeptAttempt(
        folder=tmp_path,
        keeper=ProcessId(pid=2**22 - 1, start=1),
        root=ProcessId(pid=2**22 - 2, start=1),
        boot=await asyncio.to_thread(table.boot_id),
        pid_namespace=1,
    ).handle()
    lock = lock_path(tmp_path)
    await asyncio.to_thread(os.mkfifo, lock)
    actuator = LocalActuator(gpu=NoGpu(), kill_seconds=0.0, gpu_release_seconds=0.0, stop_margin_seconds=0.2)
    gone = await asyncio.wait_for(actuator.stop(handle, grace_seconds=0.0), 20)
    await actuator.close()
    assert (gone.confirmed, gone.reason) == (False, f"the stop of {tmp_path} did not end within 0.2 s")
    os.close(await asyncio.to_thread(os.open, lock, os.O_WRONLY))  # whoever still waits goes
