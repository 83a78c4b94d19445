"""A postmortem tells the whole incident that its trip belongs to, and whether it can wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusewire_webhook.breaker import events as ev
from fusewire_webhook.breaker.events import Event
from fusewire_webhook.postmortem import html, markdown, plots
from fusewire_webhook.postmortem.build import judge, write_postmortem
from fusewire_webhook.postmortem.costs import cost_of
from fusewire_webhook.postmortem.document import Document
from fusewire_webhook.postmortem.folder import look
from fusewire_webhook.postmortem.observed import Observed
from fusewire_webhook.postmortem.report import Facts, report
from fusewire_webhook.postmortem.summary import until_morning
from fusewire_webhook.postmortem.telling import tell

from .recorded import (
    RUN,
    S20,
    S30,
    START,
    TRIP,
    alert,
    entries,
    keep,
    locked,
    observed,
    recovered,
    series,
    started,
    until_trip,
    write_journal,
)

S10 = "step-000000000010-a000"


def night() -> list[Event]:
    """Three divergences in a row, the last one from an older snapshot, at half the rate each; then the lock."""
    first = until_trip()
    first[3:3] = [
        ev.SnapshotSeen(at=START + 14, name=S10, step=10, attempt=0),
        ev.SnapshotPromoted(at=START + 22, name=S10, step=10, attempt=0),
    ]
    return [
        *first,
        ev.StopConfirmed(at=TRIP + 1, attempt=0, gpu="released", step=34),
        ev.RolledBack(at=TRIP + 1.1, target=S20, step=20, attempt=0, quarantined=(S30,)),
        started(1, at=TRIP + 2, resume_from=S20, lr_scale=0.5),
        alert(attempt=1, at=TRIP + 12, step=23),
        ev.StopConfirmed(at=TRIP + 13, attempt=1, gpu="released", step=25),
        ev.RolledBack(at=TRIP + 13.1, target=S10, step=10, attempt=0, quarantined=(S20,)),
        started(2, at=TRIP + 14, resume_from=S10, lr_scale=0.25),
        alert(attempt=2, at=TRIP + 24, step=15),
        ev.StopConfirmed(at=TRIP + 25, attempt=2, gpu="released", step=16),
    ]


def document(events: Sequence[Event], seen: Observed | None = None) -> Document:
    """The postmortem of the last trip, from the journal and these answers of Prometheus."""
    story = tell(RUN, entries(events))
    files = look(Path("/nonexistent"), story.attempt.number, quarantined=(), target=None, origin=None)
    seen = seen or Observed()
    return report(
        Facts(
            story=story,
            files=files,
            observed=seen,
            cost=cost_of(story, gpus=seen.gpus),
            findings=judge(story, files, seen),
            runs_dir=Path("/data/runs"),
            host="gpu-7",
            pictures=False,
        )
    )


def test_a_lock_is_told_with_every_attempt_that_led_to_it() -> None:
    """From the first trip on: the steps of each, what tripped it, where it went back to, scale, time, GPU hours."""
    text = markdown.render(document(night(), replace(Observed(), gpus=2)), plots={})
    assert "3 attempts (0, 1, 2), each tripped by KLSpike, 5 to 34 steps after its start, from 3 different" in text
    assert "at learning-rate scales 1, 0.5, 0.25: a smaller one did not help" in text
    assert f"All in all it cost 24 steps to be trained again (from 10 ({S10}) to 34)" in text
    rows = re.findall(r"^\| (\d) \| (.*?) \|$", text.split("The attempts of this incident")[1], re.MULTILINE)
    assert rows[:3] == [
        ("0", "0 → 34 | 1 | KLSpike | 20 | 40 s, 0.01 GPU hours"),
        ("1", "20 → 25 | 0.5 | KLSpike | 10 | 10 s, 0.01 GPU hours"),
        ("2", "10 → 16 | 0.25 | KLSpike | 10 | 10 s, 0.01 GPU hours"),
    ]


def test_an_incident_costs_what_its_attempts_cost() -> None:
    """Training since the snapshots, standstill between the attempts, and GPU hours of both are sums."""
    cost = cost_of(tell(RUN, entries(night())), gpus=3)
    whole = cost.incident
    assert whole is not None
    assert (whole.steps, cost.steps) == (24, 6)
    assert whole.discarded_seconds == pytest.approx(12 + 10 + 10)
    assert whole.down_seconds == pytest.approx(2 + 2)
    assert whole.gpu_hours == pytest.approx(3 * 36 / 3600)
    assert [one.steps for one in cost.attempts] == [14, 15, 6]


def test_training_before_the_incident_counts_where_it_went_back_past_its_start() -> None:
    """A run that was well until step 20 and stands at step 10 has lost the way between as well."""
    story = tell(RUN, entries(night()))
    later = replace(story, incident=story.incident[1:])  # as if the first attempt had ended well
    whole = cost_of(later).incident
    assert whole is not None
    assert whole.discarded_seconds == pytest.approx(10 + 10 + 14)


def test_a_reset_begins_another_incident() -> None:
    """What a person has looked at is told in its own postmortem: the next lock tells what came since."""
    again = [
        ev.Command(at=TRIP + 60, verb="reset", who="ada", why="lower clip"),
        ev.StopConfirmed(at=TRIP + 61, attempt=2),
        ev.RolledBack(at=TRIP + 62, target=S10, step=10, attempt=0),
        started(3, at=TRIP + 63, resume_from=S10, lr_scale=0.25),
        alert(attempt=3, at=TRIP + 70, step=15),
    ]
    story = tell(RUN, entries([*night(), *again]))
    assert [failure.attempt.number for failure in story.incident] == [3]
    before = tell(RUN, entries([*night(), *again]), 2)
    assert [failure.attempt.number for failure in before.incident] == [0, 1, 2]
    assert isinstance(before.stop, ev.StopConfirmed)
    assert before.stop.seconds == 0.0
    assert before.stop.at == TRIP + 25


def test_an_attempt_that_a_person_ended_says_so() -> None:
    """Not that it is gone, but who rolled it back and why."""
    rollback = ev.Command(at=TRIP + 11, verb="rollback", who="ada", why="no, 20 was fine", snapshot=S20)
    gone = ev.StopConfirmed(at=TRIP + 12, attempt=1)
    story = tell(RUN, entries([*recovered(), rollback, gone]), 0)
    assert story.attempts[1].ended == f"ada: rollback {S20}: no, 20 was fine"


@pytest.mark.parametrize(
    ("events", "verdict", "facts"),
    [
        (
            night(),
            "It can wait",
            ("GPU memory was seen released", f"the snapshot {S10} is kept", "no attention"),
        ),
        (
            locked(stop=ev.StopUnconfirmed(at=TRIP + 1, attempt=0, reason="process 7 hangs")),
            "It cannot wait",
            ("the host needs attention (process 7 hangs)", f"the snapshot {S20} is kept"),
        ),
        (recovered(), "It can wait", ("fusewire has restarted it by itself",)),
        (
            [*until_trip(mode="observe"), ev.WouldHaveActed(at=TRIP + 1, words="would have stopped attempt 0")],
            "It cannot wait",
            ("nothing was stopped",),
        ),
        (until_trip(), "It is not known yet", ("fusewire is still at it",)),
    ],
    ids=["locked", "host", "restarted", "observed", "under way"],
)
def test_whether_it_can_wait_is_one_sentence_of_facts(
    events: list[Event], verdict: str, facts: tuple[str, ...]
) -> None:
    """Yes only where nothing runs and nothing more is lost; the facts that say so stand in the same sentence."""
    story = tell(RUN, entries(events))
    badge, words = until_morning(story, cost_of(story))
    assert badge.text.startswith(verdict)
    assert all(fact in words for fact in facts)
    assert words.count(". ") == 0
    assert words.endswith(".")


def test_a_reset_is_told_with_host_and_start() -> None:
    """Where to paste it, and which snapshot the run then goes on from."""
    text = markdown.render(document(night()), plots={})
    assert f"this resets it, on gpu-7 in any folder; it then goes on from {S10}; --to STEP chooses" in text
    assert f"| {S10} |" in text
    assert re.search(rf"\| {S10} \|.*\| kept: training goes on from it \|", text)


def test_the_runbook_comes_along(tmp_path: Path) -> None:
    """The pack's runbook is a section of the page, and its link leads there; other addresses are what they are."""
    events = locked()
    annotations = {"description": "d", "runbook_url": "docs/runbooks/KLSpike.md"}
    events[6] = alert(annotations=annotations)
    write_journal(tmp_path, events)
    page = write_postmortem(tmp_path, RUN).html.read_text()
    assert '<a href="#runbook-klspike">KLSpike</a>' in page
    section = page.partition('<section id="runbook-klspike">')[2]
    assert section.index("Tonight") < section.index("What it means") < section.index("How to tune it")
    assert "target_kl" in section
    assert "`" not in section


@pytest.mark.parametrize(
    ("address", "linked"),
    [
        ("https://wiki.example/runbooks/KL?x=1#y", True),
        ("docs/runbooks/../../etc/passwd.md", False),
        ("docs/runbooks/NoSuch.md", False),
        ("javascript:alert(1)", False),
        ('https://x/" onclick="alert(1)', False),
        ("https://x/)[y](z", False),
    ],
)
def test_only_a_web_address_is_linked(address: str, linked: bool) -> None:
    """Whatever an alert names as its runbook, it is a plain link to a web page or plain text."""
    events = locked()
    events[6] = alert(annotations={"description": "d", "runbook_url": address})
    shown = document(events)
    page, text = html.render(shown, plots={}), markdown.render(shown, plots={})
    assert ("<a " in page) == linked
    assert (f"(<{address}>)" in text) == linked
    assert 'onclick="' not in page


def test_the_audit_looks_at_a_longer_attempt_where_the_last_was_too_short() -> None:
    """What three samples cannot say, those of an attempt before it may; it is said whose they are."""
    story = tell(RUN, entries(night()))
    files = look(Path("/nonexistent"), 2, quarantined=(), target=None, origin=None)
    short = {"episode_return": series(lambda t: t, end=START + 2)}
    long = {"episode_return": series(lambda t: t), "evaluation_return": series(lambda t: -t)}
    own = {found.item: found for found in judge(story, files, Observed(whole=short))}
    assert own["Reward hacking"].verdict == "unknown"
    seen = Observed(whole=short, longest=0, longest_whole=long)
    found = {found.item: found for found in judge(story, files, seen)}
    assert found["Reward hacking"].verdict == "suspicious"
    assert found["Reward hacking"].evidence.startswith("Seen in attempt 0, this one being short: ")
    assert found["Advantage normalisation"].verdict == "unknown"


def six() -> Observed:
    """Seven attempts, one after the other."""
    traces = {
        number: {
            "approx_kl": series(
                lambda t: 0.01 * (t + 1), start=TRIP - 70 + 10 * number, end=TRIP - 62 + 10 * number
            )
        }
        for number in range(7)
    }
    return replace(observed(), around=traces, incident=traces)


def test_attempts_of_one_plot_are_told_apart() -> None:
    """Each has its name in the picture, and of any six in a row no two share a colour or a pattern of dashes."""
    picture = plots.draw(six(), 6)
    assert picture is not None
    for number in range(7):
        assert f">attempt {number}<" in picture
    styles = re.findall(r'style="fill: none; stroke(?:-dasharray: ([^;]*);[^"]*stroke)?: (#[0-9a-f]{6})', picture)
    lines = {(colour, dashes) for dashes, colour in styles if colour not in ("#e5484d", "#b0b0b0")}
    assert len({colour for colour, _ in lines}) == 6
    assert len({dashes for _, dashes in lines}) == 6


def test_the_incident_has_a_picture_with_every_trip(tmp_path: Path) -> None:
    """All attempts on one axis, each trip marked; a lone trip has none."""
    write_journal(tmp_path, night())
    traces = {
        number: {"approx_kl": series(lambda _: 0.1, start=start), "step": series(lambda t: t, start=start)}
        for number, start in enumerate((START, TRIP + 2, TRIP + 14))
    }
    (tmp_path / RUN).mkdir()
    keep(tmp_path / RUN, 2, replace(observed(), tripped_at=TRIP + 24, incident=traces))
    written = write_postmortem(tmp_path, RUN)
    page = written.html.read_text()
    assert "](attempt-002.incident.svg)" in written.markdown.read_text()
    assert page.count("<svg") == 2
    picture = (written.html.parent / "attempt-002.incident.svg").read_text()
    assert set(re.findall(r'id="trip-(\d)-0"', picture)) == {"0", "1", "2"}
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert plots.draw_incident(observed(), tell(RUN, entries(recovered())).incident) is None


def test_what_was_kept_of_an_incident_is_read_again() -> None:
    """The answers about the other attempts survive the file; a file that was written before has none."""
    seen = replace(six(), longest=3, longest_whole=six().incident[3])
    again = Observed.from_json(seen.to_json())
    assert again.to_json() == seen.to_json()
    older: dict[str, Any] = {
        name: value
        for name, value in seen.to_json().items()
        if name not in ("incident", "longest", "longest_whole")
    }
    assert Observed.from_json(older).incident == {}
