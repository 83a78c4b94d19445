"""The files of a postmortem, from a journal, a run directory and kept answers of Prometheus."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.transition import fold
from fusewire_webhook.cli import main
from fusewire_webhook.engine.journal import Journal
from fusewire_webhook.postmortem import plots, postmortem_path, postmortem_url
from fusewire_webhook.postmortem.audit import ReplayFindings
from fusewire_webhook.postmortem.build import better, own_ids, read_kept, write_postmortem
from fusewire_webhook.postmortem.folder import LOG_BYTES, LOG_LINES
from fusewire_webhook.postmortem.observed import Observed, Threshold
from fusewire_webhook.postmortem.telling import tell

from .recorded import (
    QUERY,
    RUN,
    S20,
    S30,
    TRIP,
    entries,
    keep,
    locked,
    observed,
    recovered,
    started,
    write_journal,
    write_run,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs folder that holds the recorded incident."""
    write_run(tmp_path / "runs")
    write_journal(tmp_path / "runs", recovered())
    return tmp_path / "runs"


def texts(runs: Path, **more: Any) -> tuple[str, str]:
    """Markdown and HTML of the incident."""
    written = write_postmortem(runs, RUN, clock=lambda: TRIP + 60, **more)
    return written.markdown.read_text(), written.html.read_text()


def section(markdown: str, title: str) -> str:
    """What stands below a heading."""
    return markdown.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_both_files_lie_in_the_run_directory(runs: Path) -> None:
    """Markdown, HTML and plots are where postmortem_path says, and the URL ends alike."""
    keep(runs / RUN, 0, observed())
    write_postmortem(runs, RUN)
    folder = runs / RUN / "postmortems"
    assert {path.name for path in folder.iterdir()} == {f"attempt-000.{x}" for x in ("md", "html", "svg", "json")}
    assert postmortem_path(runs / RUN, 0) == folder / "attempt-000.html"
    assert postmortem_url("http://h:1/", "a b", 0) == "http://h:1/api/runs/a%20b/postmortems/attempt-000.html"


def test_first_paragraphs_answer_what_a_woken_person_asks(runs: Path) -> None:
    """Can it wait, what tripped, what was done, is the GPU free, what it cost, what to do: in this order."""
    keep(runs / RUN, 0, observed())
    story = section(texts(runs)[0], "What happened").strip()
    places = [
        story.index(words)
        for words in (
            f"**It can wait** until morning: fusewire has restarted it by itself, from {S20}.",
            "attempt 0 of cartpole diverged: KLSpike on attempt 0 at step 33",
            f"rolled back to {S20}, 1 newer snapshot was put in quarantine and attempt 1 was started",
            "GPU memory was seen released",
            f"14 steps to be trained again (from 20 ({S20}) to 34), 12 s of training thrown away, "
            "2.0 s of standstill, 0.01 GPU hours",
            "What to do next: nothing tonight. This was divergence 1 of 3",
        )
    ]
    assert places == sorted(places)
    assert places[0] == 0


def test_locked_run_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At lockout the paragraph names the reason; the command below it resets the run, pasted anywhere."""
    runs = tmp_path / "my_runs of 'ada'"
    write_journal(runs, locked())
    text, page = texts(runs)
    story = section(text, "What happened")
    assert "the run was LOCKED (divergence 1 of one incident, of 1 allowed" in story
    assert "nothing of this run is left on the machine" in story
    (line,) = (line for line in text.splitlines() if line.startswith("fusewire reset cartpole "))
    assert escape(line) in page
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(shlex.split(line)[1:]) == 0
    entries = Journal(runs / ".fusewire" / "journal.db", read_only=True).read(RUN)
    assert fold(entry.event for entry in entries).phase == "open"


def test_gpu_that_may_be_held_is_said(tmp_path: Path) -> None:
    """Where the stop is not confirmed nobody is told that the GPU is free."""
    stuck = ev.StopUnconfirmed(at=TRIP + 1, attempt=0, reason="process 4711 is in uninterruptible sleep")
    write_journal(tmp_path, locked(stop=stuck))
    story = section(texts(tmp_path)[0], "What happened")
    assert "could NOT be stopped" in story
    assert "do not start anything on that GPU" in story
    assert "look at the host first" in story


def test_process_that_ended_by_itself_was_not_stopped(tmp_path: Path) -> None:
    """A crash is told as one: nobody stopped the trainer, and no snapshot or row is condemned."""
    gone = ev.ProcessExited(at=TRIP, attempt=0, exit_code=137, reason="oom_kill")
    why = ev.ExitClassified(at=TRIP + 1, attempt=0, failure_class="infrastructure", step=31)
    stop = ev.StopConfirmed(at=TRIP + 0.1, attempt=0, exit_code=137, gpu="none", step=31)
    newest = ev.RolledBack(at=TRIP + 2, target=S30, step=30, attempt=0)
    restart = started(1, at=TRIP + 4, resume_from=S30)
    wait = ev.TimerElapsed(at=TRIP + 3, name="backoff-0")
    write_journal(tmp_path, [*recovered()[:6], gone, stop, why, newest, wait, restart])
    markdown, _ = texts(tmp_path)
    story = section(markdown, "What happened")
    assert "failed (infrastructure): attempt 0 exited with code 137 (oom\\_kill)" in story
    assert "The trainer had ended by itself and attempt 1 was started" in story
    assert "It cost 1 step to be trained again" in story
    assert "No snapshot was put in quarantine" in markdown
    assert "No replay rows are condemned" in markdown


def test_evidence_holds_expression_value_and_threshold(runs: Path) -> None:
    """The alert's PromQL, its value, the plots with the bound, and the signals' figures."""
    keep(runs / RUN, 0, observed())
    markdown, page = texts(runs)
    evidence = section(markdown, "Evidence")
    assert QUERY in evidence
    assert "| 43.57 | attempt=0, run=cartpole |" in evidence
    assert "| approx\\_kl | 0.01 | 0.01 | 43.57 | 43.5 |" in evidence
    assert "](attempt-000.svg)" in evidence
    assert "KLSpike &gt; 3" in page
    assert page.count("<svg") == 1


def test_decisions_lineage_and_quarantine(runs: Path) -> None:
    """The breaker's decisions, both attempts, the promoted snapshot and the one set aside with its reason."""
    markdown, _ = texts(runs)
    assert "learning-rate scale 0.5 |" in section(markdown, "Decisions")
    lineage = section(markdown, "Lineage")
    assert "| 0 (this one) |" in lineage
    assert re.search(rf"\| {S20} \|.* by gate \| rolled back to \|", lineage)
    quarantine = section(markdown, "Quarantine and replay rows")
    assert f"| {S30} | 30 |" in quarantine
    assert "| none | KLSpike on attempt 0 at step 33 |" in quarantine


def test_replay_watermark_and_purge(tmp_path: Path) -> None:
    """Rows after the target's watermark are named, and a purge that failed says so."""
    write_run(tmp_path, watermark=1000)
    events = recovered()
    events[0] = ev.RunDeclared(at=events[0].at, policy=events[0].policy | {"purge": True})  # type: ignore[attr-defined]
    events.insert(9, ev.PurgeFinished(at=TRIP + 1.5, exit_code=7, output="no <b>route</b>"))
    write_journal(tmp_path, events)
    quarantine = section(texts(tmp_path)[0], "Quarantine and replay rows")
    assert f"after watermark 1020 (of {S20})" in quarantine
    assert "| 1030 |" in quarantine
    assert "FAILED (exit code 7)" in quarantine


def test_without_prometheus_the_rest_is_written(runs: Path) -> None:
    """No Prometheus and no kept answers: the postmortem says so and stands on journal and last values."""
    written = write_postmortem(runs, RUN, prometheus_url="http://127.0.0.1:9")
    assert any("cannot be reached" in note for note in written.notes)
    markdown = written.markdown.read_text()
    assert "cannot be reached" in section(markdown, "Evidence")
    assert "| approx\\_kl |   |   |   | 43.5 |   |" in markdown
    assert "| advantage\\_std |   |   |   | nan | 2 |" in markdown
    unknown = section(markdown, "Audit").partition("**unknown** for want of data.")[2]
    assert "Learning-rate schedule: There are no samples of learning\\_rate" in unknown
    assert "Advantage normalisation" not in unknown
    assert not postmortem_path(runs / RUN, 0, "json").exists()


def test_rebuild_without_prometheus_keeps_the_plots(runs: Path) -> None:
    """What Prometheus said at first is used again when it has gone, and is said to be from then."""
    keep(runs / RUN, 0, observed())
    kept = postmortem_path(runs / RUN, 0, "json").read_bytes()
    markdown, page = texts(runs, prometheus_url="http://127.0.0.1:9")
    assert "these are its answers of 2026-11-30 11:41:56 UTC" in markdown
    assert "<svg" in page
    assert postmortem_path(runs / RUN, 0, "json").read_bytes() == kept


def test_partial_answers_do_not_replace_whole_ones(runs: Path) -> None:
    """What was kept gives way to answers that lack nothing, or to any where it lacked something itself."""
    story, whole = tell(RUN, entries(recovered())), observed()
    partial = replace(whole, problem="Prometheus is too slow to be asked for everything")
    keep(runs / RUN, 0, whole)
    assert better(runs / RUN, story, partial)[1] == whole.asked_at
    assert better(runs / RUN, story, replace(whole, problem=""))[1] is None
    keep(runs / RUN, 0, partial)
    assert better(runs / RUN, story, partial)[1] is None


def test_audit_reads_the_kept_data(runs: Path) -> None:
    """The learning rate of both attempts is judged, and its figures stand in the evidence."""
    keep(runs / RUN, 0, observed())
    assert "pass | First 0.001, median 0.001" in section(texts(runs)[0], "Audit")
    assert "Attempt 1: first rate 0.0005" in section(texts(runs)[0], "Audit")


class Replay:
    """A replay buffer that remembers what it was asked."""

    def __init__(self, answer: ReplayFindings | Exception) -> None:
        self.answer, self.asked = answer, ()

    def audit(self, *asked: Any) -> ReplayFindings:
        self.asked = asked  # type: ignore[assignment]
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_replay_buffer_is_asked(runs: Path) -> None:
    """A replay buffer's findings are in the audit; one that fails does not fail the postmortem."""
    good = Replay(ReplayFindings(rows=12, invalid_rewards=2, across_crashes=0))
    assert "suspicious | 12 rows: 2 invalid rewards" in section(texts(runs, replay=good)[0], "Audit")
    assert good.asked == (RUN, 0, None)
    bad = Replay(OSError("connection refused"))
    assert "OSError: connection refused" in section(texts(runs, replay=bad)[0], "Audit")


def test_without_matplotlib_the_text_is_written(runs: Path) -> None:
    """The missing package is named in the file and in the notes."""
    keep(runs / RUN, 0, observed())
    written = write_postmortem(runs, RUN, pictures=False)
    assert "pip install matplotlib" in written.html.read_text()
    assert any("pip install matplotlib" in note for note in written.notes)
    assert "<svg" not in written.html.read_text()
    assert not postmortem_path(runs / RUN, 0, "svg").exists()


def test_log_tail_is_bounded_and_harmless(tmp_path: Path) -> None:
    """Of a long log the last lines are shown; markup and escape sequences in it do nothing."""
    noise = "".join(f"line {n} {'x' * 200}\n" for n in range(5000))
    write_run(tmp_path, log=f"{noise}</pre><script>alert(1)</script>\x1b[31m\n```\nlast\n")
    write_journal(tmp_path, recovered())
    markdown, page = texts(tmp_path)
    tail = section(markdown, "Log tail")
    assert len(tail) < LOG_BYTES + 500
    assert tail.count("\n") < LOG_LINES + 10
    assert "<script" not in page
    assert "\x1b" not in page + markdown
    assert "````text" in tail
    assert "last" in tail


def test_picture_keeps_to_itself(runs: Path) -> None:
    """The inline picture has no identifier twice, and each reference finds its own."""
    keep(runs / RUN, 0, observed())
    _, page = texts(runs)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(names)
    assert own_ids('<a id="x"/><b clip-path="url(#x)"/>', "p") == '<a id="p-x"/><b clip-path="url(#p-x)"/>'


def test_kept_answers_are_the_same_when_read_again(tmp_path: Path) -> None:
    """Traces with NaN and infinities, values and thresholds survive the file; a damaged file is ignored."""
    keep(tmp_path, 0, observed())
    path = postmortem_path(tmp_path, 0, "json")
    again = read_kept(path)
    assert again is not None
    assert json.dumps(again.to_json()) == json.dumps(observed().to_json())
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    for damage in ("", "[]", "{}", '{"format": 99}', json.dumps(observed().to_json() | {"whole": {"a": 1}})):
        path.write_text(damage)
        assert read_kept(path) is None


def test_command_writes_and_names_the_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``fusewire postmortem RUN`` prints both paths; an attempt that has not tripped is bad input."""
    assert main(["postmortem", RUN, "--runs", str(runs)]) == 0
    printed = capsys.readouterr().out.split()
    assert [Path(line).name for line in printed] == ["attempt-000.html", "attempt-000.md"]
    assert main(["postmortem", RUN, "--runs", str(runs), "--attempt", "1"]) == 2
    assert "attempt 1 of cartpole has not tripped; these have: 0" in capsys.readouterr().err
    assert main(["postmortem", "other", "--runs", str(runs)]) == 2


def test_command_says_what_cannot_be_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the folder should be gives one line that names it."""
    (runs / RUN / "postmortems").write_text("")
    assert main(["postmortem", RUN, "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "postmortems" in error


def test_text_alone_imports_no_matplotlib() -> None:
    """Reading the package does not load matplotlib: the webhook stays small."""
    code = (
        "import sys, fusewire_webhook.postmortem.background, fusewire_webhook.postmortem.routes; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_words_in_the_picture_are_words(runs: Path) -> None:
    """An alert name with markup or mathematics in it is text in the picture."""
    name = '</text><script>alert(1)</script> $x^2$ "'
    bound = Threshold(signal="approx_kl", op=">", value=3.0, alert=name)
    picture = plots.draw(replace(observed(), thresholds=(bound,)), 0)
    assert picture is not None
    assert "<script" not in picture
    assert "$x^2$" in picture


def test_picture_of_nothing_is_none() -> None:
    """Without samples there is no picture."""
    assert plots.draw(Observed(), 0) is None
