"""Real processes: they are stopped, they crash, they fork, they are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import pytest

import fusewire
from fusewire.lingering import Scrapes

from .conftest import Trainer, eventually, fetch, samples

Train = Callable[..., Trainer]

LOOP = """
    import math, os, signal, sys, time
    import fusewire
    {before}
    run = fusewire.attach()
    print(run.port, flush=True)
    step = 0
    while not run.should_stop:
        step += 1
        run.step(step, approx_kl=0.5, value_loss=1.0)
        {body}
        time.sleep(0.01)
    {after}
    sys.exit(run.exit_code)
"""


def loop(*, before: str = "", body: str = "", after: str = "") -> str:
    return LOOP.format(before=before, body=body, after=after)


def test_sigterm(train: Train) -> None:
    """SIGTERM ends the loop at its next boundary, with exit code 143."""
    trainer = train(loop(after="print('stopped at', step, flush=True)"))
    trainer.line()
    trainer.process.send_signal(signal.SIGTERM)
    assert trainer.line().startswith("stopped at")
    assert trainer.wait()[0] == 143


def test_a_handler_that_was_there_before(train: Train) -> None:
    """The trainer's own SIGTERM handler is called too."""
    before = "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'mine\\n'))"
    trainer = train(loop(before=before))
    trainer.line()
    trainer.process.send_signal(signal.SIGTERM)
    assert trainer.line() == "mine"
    assert trainer.wait()[0] == 143


def test_completed_after_a_stop(train: Train) -> None:
    """A stop from within is no SIGTERM: exit code 0."""
    trainer = train(loop(body="run.request_stop()"))
    assert trainer.wait()[0] == 0


def test_attached_in_a_thread(train: Train) -> None:
    """Away from the main thread there is no signal handler, and everything else works."""
    trainer = train("""
        import threading, fusewire
        def work():
            run = fusewire.attach()
            run.step(1, approx_kl=0.5)
            print(run.port, flush=True)
            run.request_stop()
            print(run.should_stop, sum(run.errors.counts.values()), flush=True)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    assert trainer.line().isdigit()
    assert trainer.line() == "True 0"
    assert trainer.wait()[0] == 0


CRASH = 'run.step(step + 1, value_loss=math.nan); raise FloatingPointError("loss is NaN")'


def test_a_crash_is_scraped_once_more(train: Train) -> None:
    """A trainer that dies of its NaN stays until it has been scraped; then it goes at once, with its traceback."""
    trainer = train(loop(body=CRASH), supervised=True, FUSEWIRE_LINGER_SECONDS="600")
    port = int(trainer.line())
    errors = trainer.lingers()
    time.sleep(0.3)
    assert trainer.process.poll() is None
    seen = samples(fetch(port)[1])
    assert seen['rl_nonfinite_total{signal="value_loss"}'] == 1
    assert trainer.wait()[0] == 1
    assert "FloatingPointError: loss is NaN" in errors


def test_a_crash_that_nobody_scrapes(train: Train) -> None:
    """It lingers no longer than it was told to."""
    trainer = train(loop(body=CRASH), supervised=True, FUSEWIRE_LINGER_SECONDS="0.5")
    trainer.lingers()
    assert trainer.wait(10)[0] == 1


def test_lingers_two_intervals(train: Train) -> None:
    """The linger after a crash is bounded by two observed scrape intervals."""
    body = "signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(RuntimeError('told to crash')))"
    trainer = train(loop(before=body), FUSEWIRE_LINGER_SECONDS="600")
    port = int(trainer.line())
    for _ in range(3):
        fetch(port)
        time.sleep(0.2)
    trainer.process.send_signal(signal.SIGUSR1)
    assert trainer.wait()[0] == 1


STOP_ON_SIGNAL = "signal.signal(signal.SIGUSR1, lambda *_: run.request_stop())"
SAY_WAITING = """
    from fusewire.lingering import Scrapes
    plain = Scrapes.wait_since
    Scrapes.wait_since = lambda *args: (print("waiting", flush=True), plain(*args))[1]
"""


def test_complete_waits_to_be_scraped(train: Train) -> None:
    """What is scraped is seen to its last step before complete() says that it is finished; then it goes at once."""
    before = STOP_ON_SIGNAL + SAY_WAITING
    trainer = train(loop(before=before, after="run.complete()"), FUSEWIRE_LINGER_SECONDS="600")
    port = int(trainer.line())
    fetch(port)
    trainer.process.send_signal(signal.SIGUSR1)
    assert trainer.line() == "waiting"
    time.sleep(0.5)
    assert trainer.process.poll() is None
    assert not (trainer.attempt_dir / "completed.json").exists()
    seen = samples(fetch(port)[1])
    assert seen['rl_phase{phase="complete"}'] == 1
    assert trainer.wait()[0] == 0
    assert json.loads((trainer.attempt_dir / "completed.json").read_text())["step"] == seen["rl_step"]


@pytest.mark.parametrize("scrapes", [0, 3])
def test_complete_where_nobody_scrapes_any_more(train: Train, scrapes: int) -> None:
    """Never scraped, or not for longer than two intervals: complete() waits for nobody."""
    trainer = train(loop(before=STOP_ON_SIGNAL, after="run.complete()"), FUSEWIRE_LINGER_SECONDS="600")
    port = int(trainer.line())
    for _ in range(scrapes):
        fetch(port)
        time.sleep(0.2)
    time.sleep(0.8)
    trainer.process.send_signal(signal.SIGUSR1)
    assert trainer.wait()[0] == 0
    assert (trainer.attempt_dir / "completed.json").exists()


def test_complete_before_the_first_scrape(train: Train) -> None:
    """A supervised trainer that has finished before it was ever scraped waits for the first one."""
    script = loop(before=SAY_WAITING, body="break", after="run.complete()")
    trainer = train(script, supervised=True, FUSEWIRE_LINGER_SECONDS="600")
    port = int(trainer.line())
    assert trainer.line() == "waiting"
    time.sleep(0.5)
    assert trainer.process.poll() is None
    fetch(port)
    assert trainer.wait()[0] == 0


def test_sigterm_ends_the_wait_of_complete(train: Train) -> None:
    """A supervisor that stops a trainer which waits to be scraped does not have to wait."""
    before = STOP_ON_SIGNAL + SAY_WAITING
    trainer = train(loop(before=before, after="run.complete()"), FUSEWIRE_LINGER_SECONDS="600")
    fetch(int(trainer.line()))
    trainer.process.send_signal(signal.SIGUSR1)
    assert trainer.line() == "waiting"
    trainer.process.send_signal(signal.SIGTERM)
    assert trainer.wait()[0] == 0


@pytest.mark.parametrize(
    ("gaps", "silent", "seconds"),
    [
        ([], 0.0, 9.0),
        ([0.0], 5.0, 7.0),
        ([0.0, 1.0], 0.5, 2.0),
        ([0.0, 1.0, 1.4, 2.0], 0.5, 2.0),
        ([0.0, 60.0, 61.0, 62.0, 63.0], 0.5, 2.0),
        ([0.0, 1.0], 2.1, 0.0),
    ],
    ids=["never", "once", "twice", "a stranger between", "an outage long ago", "no more"],
)
def test_for_how_long_a_scrape_is_expected(gaps: list[float], silent: float, seconds: float) -> None:
    """Two intervals, whoever else looks in between; nothing where nobody scrapes."""
    scrapes = Scrapes()
    for begun in gaps:
        scrapes.finished(begun)
    assert scrapes.expected((gaps or [0.0])[-1] + silent, first=9.0, second=7.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("body", "after", "code"),
    [
        ("break", "run.complete(); raise RuntimeError", 1),
        ("run.request_stop()", "raise RuntimeError", 1),
        ("raise KeyboardInterrupt", "", -signal.SIGINT),
        ("sys.exit(3)", "", 3),
        (CRASH, "", 1),
    ],
    ids=["completed", "stop requested", "Ctrl-C", "sys.exit", "standalone, never scraped"],
)
def test_no_lingering(train: Train, body: str, after: str, code: int) -> None:
    """After complete(), a requested stop, Ctrl-C, a chosen exit or a crash that nobody watches there is no wait."""
    trainer = train(loop(body=body, after=after), FUSEWIRE_LINGER_SECONDS="600")
    assert trainer.wait()[0] == code


def test_sigterm_ends_the_lingering(train: Train) -> None:
    """A supervisor that stops a lingering trainer does not have to wait."""
    trainer = train(loop(body=CRASH), supervised=True, FUSEWIRE_LINGER_SECONDS="600")
    trainer.lingers()
    trainer.process.send_signal(signal.SIGTERM)
    assert trainer.wait()[0] == 1


def test_killed_right_after_a_nan(train: Train) -> None:
    """The first non-finite value is on disk before step() returns, so even SIGKILL leaves it."""
    trainer = train(loop(body="if step == 5: run.step(6, value_loss=-math.inf); os.kill(os.getpid(), 9)"))
    assert trainer.wait()[0] == -9
    values = json.loads((trainer.attempt_dir / "last-values.json").read_text())
    assert values["step"] == 6
    assert values["values"] == {"approx_kl": 0.5, "value_loss": "-Inf"}
    assert values["nonfinite"] == {"value_loss": 1}


def test_last_values_of_a_healthy_run(train: Train) -> None:
    """They are written about once a second, and once more at the end."""
    trainer = train(loop(after="run.step(777, approx_kl=0.25)"))
    trainer.line()
    path = trainer.attempt_dir / "last-values.json"
    eventually(path.exists)
    trainer.process.send_signal(signal.SIGTERM)
    trainer.wait()
    assert json.loads(path.read_text())["step"] == 777


FORK = """
    import os, signal, sys, time
    import fusewire
    run = fusewire.attach()
    run.step(1, approx_kl=0.5)
    print(run.port, flush=True)
    child = os.fork()
    if child == 0:
        run.step(2, approx_kl=0.5)
        with run.phase("evaluate"):
            pass
        {child}
    print(child, flush=True)
    {parent}
"""


def test_a_forked_child_can_be_ended(train: Train) -> None:
    """A forked worker does not inherit the trainer's SIGTERM handler: it dies of it."""
    trainer = train(
        FORK.format(
            child="open(os.environ['FUSEWIRE_RUN_DIR'] + '/child', 'w').close(); time.sleep(600)",
            parent="print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        )
    )
    trainer.line()
    child = int(trainer.line())
    eventually((trainer.run_dir / "child").exists)
    os.kill(child, signal.SIGTERM)
    assert trainer.line() == str(-signal.SIGTERM)


def test_a_forked_child_that_crashes(train: Train) -> None:
    """It neither lingers nor writes files in the trainer's name."""
    trainer = train(
        FORK.format(
            child="raise RuntimeError('in the child')",
            parent="print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        ),
        FUSEWIRE_LINGER_SECONDS="600",
    )
    trainer.line()
    trainer.line()
    assert trainer.line() == "1"
    trainer.wait()
    assert json.loads((trainer.attempt_dir / "last-values.json").read_text())["step"] == 1


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def test_a_forked_child_frees_the_port(train: Train) -> None:
    """When the trainer is gone its port is free, though a forked worker lives on."""
    trainer = train(FORK.format(child="time.sleep(600)", parent="os._exit(0)"))
    port = int(trainer.line())
    child = int(trainer.line())
    trainer.process.wait(60)
    try:
        eventually(lambda: _is_free(port))  # the worker lets go of it as its first act, once it has a core
    finally:
        os.kill(child, signal.SIGKILL)


def test_import_is_light() -> None:
    """`import fusewire` loads neither torch nor what only an attached process needs."""
    heavy = ["torch", "numpy", "pynvml", "safetensors", "blake3"]
    code = f"import sys, fusewire; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_is_never_imported(train: Train) -> None:
    """A whole run without torch stays without it."""
    trainer = train(loop(body="run.request_stop()", after="run.complete(); print('torch' in sys.modules)"))
    trainer.line()
    assert trainer.line() == "False"


def test_version() -> None:
    """The version that is exported is the distribution's."""
    assert fusewire.__version__ == version("fusewire")
