"""The keeper: a small process, one per attempt, that starts the trainer and outlives the webhook.

Run as a script with ``python -I -S``, so it imports a few modules of the standard library and nothing else. It is
in a session of its own and adopts every orphan among the trainer's descendants (Linux: child subreaper), so that no
descendant can leave its sight. It writes two files into the folder of the attempt: ``keeper.json`` (who runs,
written before the command starts, by a hard link that only one keeper can make) and ``exit.json`` (how it ended).
It cannot be asked to go: it ends when no descendant is left.

Between starter and keeper: the order to start comes as one JSON object on stdin, the answer goes as one JSON object
to stdout (``{"state": "started" | "exists" | "failed" | "deserted", "error": …}``).
"""

# pathlib and contextlib would cost start-up time and memory.
# ruff: noqa: PTH104, PTH108, PTH116, PTH123, SIM105

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
KEEPER_FILE = "keeper.json"
EXIT_FILE = "exit.json"
LOCK_FILE = "keeper.lock"
"""Locked while the keeper or the trainer lives: this is seen from other PID namespaces too."""
ENVIRONMENT_MARK = "FUSEWIRE_ATTEMPT_DIR"
"""Every descendant inherits this variable: it finds them even after the keeper was killed."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main() -> None:
    """Start the ordered command once, keep it, and end after its last descendant."""
    order = json.load(sys.stdin.buffer)
    folder = order["folder"]
    # 1. orphans become children of this process; signals to it are no order to end
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_NAME, b"fusewire-keeper")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _ignore)  # a handler, not SIG_IGN: that would pass to the trainer
    oom_kills = _oom_kills()
    # 2. a child that waits at a gate: if this process dies now, the gate breaks and the command never starts
    lock = os.open(f"{folder}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT, 0o644)
    os.set_inheritable(lock, True)
    gate_read, gate_write = os.pipe()
    errors_read, errors_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(gate_write)
        _become(order, gate_read, errors_write)
    os.close(gate_read)
    os.close(errors_write)
    # 3. a starter that died meanwhile has told nobody of this attempt
    if _deserted(sys.stdout.fileno()):
        _leave("deserted")
    # 4. the claim: whoever makes this name has the attempt
    try:
        _claim(folder, child)
    except FileExistsError:
        _leave("exists")
    except OSError as error:
        _leave("failed", f"{folder}/{KEEPER_FILE}: cannot be written ({error.strerror})")
    fcntl.flock(lock, fcntl.LOCK_EX)
    # 5. open the gate; the pipe of errors ends without a word when the command runs
    os.write(gate_write, b"1")
    os.close(gate_write)
    failure = _read_all(errors_read).decode(errors="replace")
    if failure:
        _reap(folder, child, failure, oom_kills)
        _leave("failed", failure)
    _answer("started")
    _detach()
    _reap(folder, child, "", oom_kills)


def _become(order: dict[str, Any], gate: int, errors: int) -> None:
    """In the child: wait for the gate, then become the command. Does not return."""
    if os.read(gate, 1) != b"1":
        os._exit(NOT_EXECUTABLE)
    code = NOT_EXECUTABLE
    what = order["argv"][0]
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if order["cwd"]:
            what = order["cwd"]
            os.chdir(order["cwd"])
            what = order["argv"][0]
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except FileNotFoundError:
        code = NOT_FOUND
        os.write(errors, f"{what}: not found".encode())
    except OSError as error:
        os.write(errors, f"{error.filename or what}: {error.strerror}".encode())
    finally:
        os._exit(code)


def _claim(folder: str, child: int) -> None:
    value = {
        "keeper": {"pid": os.getpid(), "start": start_time(os.getpid())},
        "root": {"pid": child, "start": start_time(child)},
        "boot": boot_id(),
        "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
    }
    _write(folder, KEEPER_FILE, value, exclusive=True)


def _reap(folder: str, root: int, failure: str, oom_kills: int | None) -> None:
    started = time.monotonic()
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            continue
        if found.si_pid == root:
            killed = found.si_code != os.CLD_EXITED
            now = _oom_kills()
            value = {
                "code": 128 + found.si_status if killed else found.si_status,
                "signal": found.si_status if killed else None,
                "oom_kills": now - oom_kills if now is not None and oom_kills is not None else None,
                "error": failure,
                "at": time.time(),
                "seconds": time.monotonic() - started,
            }
            # The exit status stays readable in the zombie until it is on the disk.
            _insist_on_exit_file(folder, value)
        os.waitpid(found.si_pid, 0)


def _insist_on_exit_file(folder: str, value: dict[str, Any]) -> None:
    while True:
        try:
            return _write(folder, EXIT_FILE, value, exclusive=False)
        except FileNotFoundError:  # somebody removed the folder: nobody will ask
            return None
        except OSError:
            time.sleep(1.0)


def _write(folder: str, name: str, value: dict[str, Any], *, exclusive: bool) -> None:
    temporary = f"{folder}/.{name}.{os.getpid()}"
    try:
        with open(temporary, "w") as file:
            json.dump(value, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            os.link(temporary, f"{folder}/{name}")
        else:
            os.rename(temporary, f"{folder}/{name}")
    finally:
        if exclusive:
            os.unlink(temporary)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot (field 22 of ``/proc/PID/stat``, see proc(5))."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    """Differs after each boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _oom_kills() -> int | None:
    """OOM kills that the kernel has counted in this cgroup (v2, else v1); None where it does not tell."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers == "":
            candidates = [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            candidates = [
                f"/sys/fs/cgroup/memory{path}/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control",
            ]
        else:
            continue
        for candidate in candidates:
            try:
                with open(candidate) as file:
                    counts = dict(line.split() for line in file)
                return int(counts["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def _deserted(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _answer(state: str, error: str = "") -> None:
    try:
        os.write(1, json.dumps({"state": state, "error": error}).encode())
    except BrokenPipeError:
        pass


def _leave(state: str, error: str = "") -> None:
    """Answer and end; the child at the gate sees it break."""
    _answer(state, error)
    os._exit(0)


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")


def _read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 4096):
        data += chunk
    os.close(fd)
    return data


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _ignore(*_: object) -> None:
    pass


if __name__ == "__main__":
    main()
