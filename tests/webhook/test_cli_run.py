"""``fusewire run`` as a process of its own, with real trainers: how it ends, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .process_site import LEAVES, STAYS, Site, site
from .site import ALERT_TOKEN, COMMAND_TOKEN, until

__all__ = ["site"]


async def test_a_command_that_ends_well(site: Site) -> None:
    """A command that never attached and exits with 0 is completed, and nobody believes that it was guarded."""
    site.configure(["true"])
    code, out, _ = await site.call("run")
    assert code == 0
    assert "toy: COMPLETED" in out
    last_words = next(line for line in out.splitlines() if line.startswith("toy: COMPLETED"))
    assert last_words.endswith("but nothing ever judged it: the trainer never called fusewire.attach()")
    _, out, _ = await site.call("status", "toy")
    assert "nothing ever judged it" in out
    assert site.left() == []


async def test_a_command_that_exits_at_once(site: Site) -> None:
    """It is LOCKED without another attempt: exit code 3; its last line and what to do next are said."""
    site.configure(
        ["sh", "-c", "echo starting; echo 'train.py: no such dataset' >&2; exit 1"],
        retry="{infrastructure_failures: 5}",
    )
    code, out, _ = await site.call("run")
    assert code == 3
    assert "toy: LOCKED: the command fails at its start: attempt 0 exited with code 1" in out
    assert [path.name for path in (site.runs / "toy" / "attempts").iterdir()] == ["000"]
    assert "it printed last: train.py: no such dataset" in out
    assert "fusewire log toy" in out
    assert "fusewire reset toy" in out


async def test_a_command_that_does_not_exist(site: Site) -> None:
    """It is bad input, told with the remedy before anything is declared: the corrected command simply starts."""
    site.configure(["no-such-trainer"])
    code, _, error = await site.call("run")
    assert code == 2
    assert "runs.toy.command: there is no program no-such-trainer on PATH; correct the command" in error
    assert not (site.runs / "toy").exists()
    site.configure(["true"])
    assert (await site.call("run"))[0] == 0


async def test_a_command_that_cannot_be_executed(site: Site) -> None:
    """A start that fails is told with the command's name and ends LOCKED; the remedy names a corrected command."""
    (site.folder / "trainer").write_bytes(b"\x7fELF")
    (site.folder / "trainer").chmod(0o755)
    site.configure(["./trainer"])
    code, out, _ = await site.call("run")
    assert code == 3
    assert "./trainer: Exec format error" in out
    assert "then the command again, corrected" in out


async def test_a_completed_run_is_told_at_once_and_nothing_starts(site: Site) -> None:
    """When it was, how to look at it and how to go on: the commands work as printed; after a reopen it starts."""
    site.configure(["true"])
    await site.call("run")
    code, out, error = await site.call("run")
    assert (code, error) == (0, "")
    assert out.startswith("toy: COMPLETED before, on 20")
    assert "console" not in out
    for hint in ("what happened: ", "to train it further: "):
        (line,) = (line for line in out.splitlines() if hint in line)
        program, *arguments = shlex.split(line.partition(hint)[2].partition(", then")[0])
        assert program == "fusewire"
        assert (await site.call(*arguments))[0] == 0
    code, out, _ = await site.call("run")
    assert code == 0
    assert "toy: attempt 1 runs" in out
    assert "OPEN" not in out


@pytest.mark.parametrize(
    ("number", "code", "by"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "a closed terminal")],
)
async def test_an_interrupt_stops_everything_and_can_be_continued(
    site: Site, number: signal.Signals, code: int, by: str
) -> None:
    """The trainer gets its SIGTERM, nothing is left running, and the same command starts the next attempt."""
    site.configure(site.trainer(LEAVES))
    first = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    first.send_signal(number)
    assert (await site.end(first))[0] == code
    assert site.left() == []
    assert "start it again with the same `fusewire run …`" in (await site.call("pause", "toy", "--why", "x"))[2]
    second = await site.start("run")
    await until(lambda: len(site.pids()) == 2)
    second.send_signal(number)
    ended, shown, _ = await site.end(second)
    assert ended == code
    assert f"toy → CLOSED: stopped by {by}; resuming from its newest snapshot" in shown
    assert "OPEN" not in shown
    assert sorted(path.name for path in (site.runs / "toy" / "attempts").iterdir()) == ["000", "001"]


async def test_a_second_interrupt_hurries(site: Site) -> None:
    """A trainer that ignores SIGTERM has its grace; who presses twice does not wait for it, and goes on later."""
    site.configure(site.trainer(STAYS), stop="{grace_seconds: 600, kill_seconds: 1, gpu_release_seconds: 1}")
    process = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    await process.stdout.readuntil(b"(again: kill them at once)")
    process.send_signal(signal.SIGINT)
    assert (await site.end(process))[0] == 130
    assert site.left() == []
    site.configure(site.trainer("import sys; sys.exit(0)"))
    code, shown, _ = await site.call("run")
    assert (code, "toy: COMPLETED, attempt 1" in shown) == (0, True), shown


async def test_a_reader_of_the_output_that_goes_away_leaves_no_trainer_unguarded(site: Site) -> None:
    """Ctrl-C ends ``tee`` in ``fusewire run | tee`` first: the trainer is stopped all the same."""
    site.configure(site.trainer(LEAVES))
    read, write = os.pipe()
    process = await site.start("run", stdout=write)
    os.close(write)
    await until(lambda: len(site.pids()) == 1)
    os.close(read)
    process.send_signal(signal.SIGINT)
    code, _, err = await site.end(process)
    assert code == 130
    assert "BrokenPipe" not in err
    assert site.left() == []


async def test_an_interrupt_while_it_starts(site: Site) -> None:
    """A signal that comes before anything runs ends it at once."""
    site.configure(site.trainer(STAYS))
    process = await site.start("run")
    await until((site.runs / ".fusewire" / "lock").exists)
    process.send_signal(signal.SIGTERM)
    assert (await site.end(process))[0] == 143
    assert site.left() == []


async def test_a_second_run_on_the_same_folder_is_refused(site: Site) -> None:
    """One line names the folder and the PID of who guards it; the first one goes on."""
    site.configure(site.trainer(LEAVES))
    first = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    code, _, error = await site.call("run")
    assert code == 2
    assert error.count("\n") == 1
    assert f"PID {first.pid} " in error
    first.send_signal(signal.SIGINT)
    assert (await site.end(first))[0] == 130


async def test_a_second_run_on_the_same_run_directory_is_refused(site: Site) -> None:
    """Also where a link leads to it from another runs folder: the first one's trainer is left alone."""
    (site.folder / "big").mkdir()
    for runs in ("runs", "others"):
        (site.folder / runs).mkdir()
        (site.folder / runs / "toy").symlink_to("../big")
    site.configure(site.trainer(LEAVES))
    first = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    code, _, error = await site.call("run", "--runs", "others")
    assert (code, error.count("\n")) == (2, 1)
    assert f"others/toy: is guarded already, under another path or name of {site.folder}/big" in error
    assert len(site.pids()) == 1
    first.send_signal(signal.SIGINT)
    assert (await site.end(first))[0] == 130


async def test_a_killed_webhook_finds_its_trainer_again(site: Site) -> None:
    """After SIGKILL the trainer lives on; the next ``run`` adopts it and does not start a second one."""
    site.configure(site.trainer(LEAVES))
    first = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    address = site.runs / ".fusewire" / "webhook.json"
    await until(address.exists)
    first.kill()
    await first.communicate()
    _, shown, _ = await site.call("status")
    assert "toy: attempt 0 still runs, and nothing guards it: start the same `fusewire run …`" in shown
    second = await site.start("run")
    await until(lambda: f'"pid": {second.pid},' in address.read_text())
    await asyncio.sleep(0.5)
    assert len(site.pids()) == 1
    assert await site.state() == "closed"
    second.send_signal(signal.SIGINT)
    assert (await site.end(second))[0] == 130
    await until(lambda: not site.left())
    assert "nothing guards it" not in (await site.call("status"))[1]


async def test_a_trainer_whose_run_got_another_name_is_told(site: Site) -> None:
    """It outlived its webhook, and the next one guards another name: `run` and `status` say what runs unguarded."""
    site.configure(site.trainer(LEAVES))
    first = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    first.kill()
    await first.communicate()
    told = f"run toy: attempt 000 still runs (PID {site.pids()[0]}), and nothing guards it"
    second = await site.start("run", "--name", "other", "--", *site.trainer(LEAVES))
    await until(lambda: len(site.pids()) == 2)
    assert told in (await site.call("status"))[1]
    second.send_signal(signal.SIGINT)
    assert told in (await site.end(second))[2]


async def test_a_locked_run_goes_on_after_a_reset(site: Site) -> None:
    """LOCKED stays LOCKED until a person resets it; then the same command starts it again."""
    site.configure(site.trainer("import os, sys; sys.exit(0 if os.path.exists('fixed') else 1)"))
    assert (await site.call("run"))[0] == 3
    assert (await site.call("run"))[0] == 3
    (site.folder / "fixed").touch()
    code, out, error = await site.call("reset", "toy", "--why", "fixed the path")
    assert (code, error) == (0, "")
    code, out, _ = await site.call("run")
    assert code == 0
    assert "toy: COMPLETED" in out


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("alert.token", "command.token"):
            yield str(path), path.read_bytes()


@pytest.mark.stack
async def test_secrets_are_nowhere(site: Site) -> None:
    """Neither token is in any file, output, process list or environment, while everything works with them."""
    for name, token in (("alert", ALERT_TOKEN), ("command", COMMAND_TOKEN)):
        file = site.folder / f"{name}.token"
        file.write_text(token + "\n")
        file.chmod(0o600)
    site.configure(
        site.trainer(LEAVES),
        prometheus="{scrape_interval_seconds: 250ms, rule_files: ['preset:demo']}",
        alertmanager="{}",
        auth="{alert_token_file: alert.token, command_token_file: command.token}",
    )
    process = await site.start("run", "--verbose")
    await until(lambda: len(site.pids()) == 1)
    seen: list[tuple[str, bytes]] = []

    async def beating() -> bool:
        """A watchdog alert has come through Prometheus and Alertmanager: their token was taken."""
        _, out, _ = await site.call("status", "--json")
        monitoring = json.loads(out)["monitoring"]
        return monitoring is not None and monitoring["watchdog_age_seconds"] is not None

    for _ in range(40):
        if await beating():
            break
        await asyncio.sleep(0.5)
    else:
        pytest.fail("no watchdog came through")
    code, out, error = await site.call("pause", "toy", "--why", "looking")
    assert (code, error) == (0, "")
    seen += _process_list([*site.left(), process.pid, *_children(process.pid)])
    process.send_signal(signal.SIGINT)
    code, out, error = await site.end(process)
    assert code == 130
    seen += [("stdout", out.encode()), ("stderr", error.encode()), *_texts(site.folder)]
    assert len(seen) > 10
    for token in (ALERT_TOKEN, COMMAND_TOKEN):
        assert [where for where, data in seen if token.encode() in data] == []


def _process_list(pids: list[int]) -> list[tuple[str, bytes]]:
    paths = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
    return [(str(path), path.read_bytes()) for path in paths]


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_children(int(child))]
    return found


@pytest.mark.stack
async def test_ctrl_c_in_a_terminal_reaches_the_servers_through_fusewire_only(site: Site) -> None:
    """The signal goes to the whole process group; no server "ended unexpectedly", and all are gone afterwards."""
    site.configure(
        site.trainer(LEAVES),
        prometheus="{scrape_interval_seconds: 250ms, rule_files: ['preset:demo']}",
        alertmanager="{}",
    )
    process = await site.start("run", start_new_session=True)
    await until(lambda: len(site.pids()) == 1)
    servers = _children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code, out, error = await site.end(process)
    assert code == 130
    assert "unexpectedly" not in out + error
    assert "goes on from its newest verified snapshot" in out
    assert site.left() == []
    assert len(servers) >= 2
    assert [pid for pid in servers if _lives(pid)] == []


async def test_the_address_of_the_console_is_shown(site: Site) -> None:
    """``run`` prints it, and ``status`` while it serves."""
    site.configure(site.trainer(LEAVES))
    process = await site.start("run")
    await until(lambda: len(site.pids()) == 1)
    _, status, _ = await site.call("status")
    process.send_signal(signal.SIGINT)
    _, out, _ = await site.end(process)
    (line,) = (line for line in out.splitlines() if "console http://127.0.0.1:" in line)
    assert line.split("  ", 1)[1] in status.splitlines()
    assert "console" not in (await site.call("status"))[1]


async def test_the_hints_of_a_locked_run_are_commands_that_work(site: Site) -> None:
    """Also where the runs lie in a folder that the command line named."""
    site.configure(["false"])
    code, out, _ = await site.call("run", "--runs", "my runs")
    assert code == 3
    (report,) = (line for line in out.splitlines() if "can it wait" in line)
    assert "It can wait" in (site.folder / report.partition(": ")[2]).read_text()
    for verb, hint in (("log", "what happened: "), ("reset", "to start it again: ")):
        (line,) = (line for line in out.splitlines() if hint in line)
        program, *arguments = shlex.split(
            line.partition(hint)[2].removesuffix(", then the command again, corrected")
        )
        assert (program, arguments[0]) == ("fusewire", verb)
        assert (await site.call(*arguments))[0] == 0


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
