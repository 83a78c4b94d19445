"""The notification as a phone shows it, rendered by amtool."""

from __future__ import annotations

import html
import json
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paging import site

Render = Callable[..., str]
PHONE_LINES = 30
"""Lines of 40 characters on the screen of a phone, less the mail program's own."""


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Render a template of ours; labels that all alerts share are common, as Alertmanager has it."""

    def make(
        name: str,
        *alerts: dict[str, str],
        status: str = "firing",
        summary: str = "",
        kind: str = "text",
        over: tuple[dict[str, str], ...] = (),
    ) -> str:
        alerts += over
        common = dict(set(alerts[0].items()).intersection(*(set(alert.items()) for alert in alerts)))
        data: dict[str, Any] = {
            "receiver": "people", "status": status, "groupLabels": {}, "commonLabels": common,
            "commonAnnotations": {}, "externalURL": "http://alertmanager",
            "alerts": [
                {
                    "status": "resolved" if labels in over else status, "labels": labels,
                    "generatorURL": "", "fingerprint": "0",
                    "annotations": {
                        "summary": summary or f"{labels.get('run', '')}: {labels['alertname']} was seen",
                        "runbook_url": f"docs/runbooks/{labels['alertname']}.md",
                    },
                    "startsAt": "2030-01-01T00:00:00Z", "endsAt": "2030-01-01T00:00:00Z",
                }
                for labels in alerts
            ],
        }  # fmt: skip
        (tmp_path / "data.json").write_text(json.dumps(data))
        done = subprocess.run(
            [
                "amtool", "template", "render", f"--template.glob={site.TEMPLATES}/*.tmpl",
                f"--template.text={{{{ template \"fusewire.{name}\" . }}}}", f"--template.type={kind}",
                f"--template.data={tmp_path / 'data.json'}",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return make


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "run": "cartpole", "attempt": "0", **labels}


TRIP = alert("KLSpike", action="trip", severity="critical", **{"class": "divergence"})
STALL = alert("TrainerStalled", action="trip", severity="critical", **{"class": "infrastructure"})
LOCKED = {"alertname": "BreakerLocked", "action": "notify", "severity": "page", "run": "cartpole"}
DOWN = {"alertname": "WebhookDown", "action": "notify", "severity": "page"}
WARNING = alert("ReturnDrawdown", action="notify", severity="warning")


@pytest.mark.parametrize(
    ("alerts", "title"),
    [
        ([TRIP], "[TRIP] cartpole: KLSpike"),
        ([TRIP, TRIP | {"alertname": "NonFiniteValue"}], "[TRIP] cartpole: 2 alerts"),
        ([LOCKED], "[LOCKED] cartpole: BreakerLocked"),
        ([DOWN], "[PAGE] WebhookDown"),
        ([WARNING], "[warning] cartpole: ReturnDrawdown"),
    ],
)
def test_the_title_says_what_and_where(render: Render, alerts: list[dict[str, str]], title: str) -> None:
    """One line: how bad, which run, which alert."""
    assert render("title", *alerts) == title


@pytest.mark.parametrize(
    ("labels", "did", "do"),
    [
        (TRIP, "rolls back to the last stable snapshot", "nothing now"),
        (STALL, "restarts it from the newest good snapshot", "nothing now"),
        (LOCKED, "will not start it again by itself", "fusewire reset cartpole --why"),
        (DOWN, "cannot act", "follow the runbook now"),
        (WARNING, "no run was touched", "when you are at your desk"),
    ],
)
def test_the_text_says_what_was_done_and_what_to_do(
    render: Render, labels: dict[str, str], did: str, do: str
) -> None:
    """What fusewire does about it and what is left for the person, each on a line of its own."""
    lines = render("text", labels).splitlines()
    (done,) = (line for line in lines if line.startswith("fusewire: "))
    (todo,) = (line for line in lines if line.startswith("You: "))
    assert did in done
    assert do in todo


CONSOLE = "http://127.0.0.1:9095"
"""Where the compose stack serves it."""


def test_links(render: Render) -> None:
    """Postmortem, run and runbook are one touch away; the addresses are those of a plain compose start."""
    lines = render("text", TRIP).splitlines()
    assert f"Postmortem: {CONSOLE}/#/postmortem/cartpole/0" in lines
    assert f"Run: {CONSOLE}/#/run/cartpole" in lines
    assert "Runbook: http://127.0.0.1:3000/public/runbooks/KLSpike.md" in lines


@pytest.mark.parametrize(
    ("alerts", "linked"),
    [
        ([LOCKED], f"{CONSOLE}/#/postmortem/cartpole"),
        ([TRIP, TRIP | {"attempt": "1"}], f"{CONSOLE}/#/postmortem/cartpole"),
        ([WARNING], None),
        ([DOWN], None),
    ],
)
def test_a_postmortem_is_linked_where_there_is_one(
    render: Render, alerts: list[dict[str, str]], linked: str | None
) -> None:
    """Without one attempt the newest postmortem is meant; what trips nothing has none."""
    lines = render("text", *alerts).splitlines()
    found = [line for line in lines if line.startswith("Postmortem: ")]
    assert found == ([f"Postmortem: {linked}"] if linked else [])
    assert (f'href="{linked}"' in render("html", *alerts, kind="html")) == bool(linked)


def test_what_is_over_is_not_told_as_firing(render: Render) -> None:
    """Of a group in which one alert is over and another one fires, only the second one is told."""
    over = (WARNING | {"alertname": "ThroughputDrop"},)
    for kind in ("text", "html"):
        shown = render(kind, WARNING, over=over, kind=kind)
        assert "ReturnDrawdown was seen" in shown
        assert "ThroughputDrop" not in shown
    assert render("title", WARNING, over=over) == "[warning] cartpole: ReturnDrawdown"
    many = [WARNING | {"alertname": f"Alert{number}"} for number in range(6)]
    assert "and others: 6 in all" in render("text", *many, over=over)
    assert render("title", *many, over=over) == "[warning] cartpole: 6 alerts"


def test_a_full_address_of_a_runbook_is_kept(render: Render, tmp_path: Path) -> None:
    """An annotation that is an address already is taken as it is."""
    render("text", TRIP)
    data = json.loads((tmp_path / "data.json").read_text())
    data["alerts"][0]["annotations"]["runbook_url"] = "https://wiki/KL"
    (tmp_path / "data.json").write_text(json.dumps(data))
    done = subprocess.run(
        [
            "amtool", "template", "render", f"--template.glob={site.TEMPLATES}/*.tmpl",
            '--template.text={{ template "fusewire.text" . }}', f"--template.data={tmp_path / 'data.json'}",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Runbook: https://wiki/KL" in done.stdout.splitlines()


def test_it_fits_a_phone(render: Render) -> None:
    """Twenty alerts at once with long summaries stay on one screen, and are counted."""
    many = [TRIP | {"alertname": f"Alert{number}"} for number in range(20)]
    text = render("text", *many, summary="cartpole: " + "a long sentence " * 4)
    assert sum(max(1, -(-len(line) // 40)) for line in text.splitlines()) <= PHONE_LINES
    assert "and others: 20 in all" in text


def test_a_resolved_notification_asks_for_nothing(render: Render) -> None:
    """What is over says so and asks for nothing."""
    assert render("title", WARNING, status="resolved") == "[over] cartpole: ReturnDrawdown"
    assert "You: nothing." in render("text", WARNING, status="resolved")


def test_markup_in_a_name_stays_text(render: Render) -> None:
    """A run name with markup in it is escaped in the mail."""
    name = "<img src=x onerror=alert(1)>"
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)

    shown = render("html", TRIP | {"run": name}, kind="html")
    Tags().feed(shown)
    assert "img" not in found
    assert html.escape(name) in shown
    assert found.count("a") == 3
