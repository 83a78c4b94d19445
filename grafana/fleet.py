"""Fleet: every run at a glance, what it cost and what was saved."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from grafana import queries
from grafana.frame import (
    CONSOLE_LINK,
    RUN_LINK,
    Links,
    annotation,
    frame,
    run_variable,
    text_variable,
)
from grafana.panels import (
    BAD,
    GOOD,
    STATE_MAP,
    STATES_NOTE,
    WARNING,
    WIDTH,
    AnyPanel,
    Column,
    bars,
    graph,
    link,
    number,
    query,
    rows,
    steps,
    timeline,
    total,
)
from grafana.queries import RUNS, began, grown, new


def dashboard(links: Links) -> Dashboard:
    """Build it."""
    built = frame(
        "fusewire-fleet",
        "fusewire / Fleet",
        "All guarded runs: state of the breaker, GPU hours used, lost and saved.",
        links,
    )
    built.with_variable(run_variable(many=True))
    built.with_variable(text_variable("hours", "Hours until a person would have stopped it", "8"))
    built.annotation(
        annotation(
            "Trip", began(f'ALERTS{{{RUNS},action="trip",alertstate="firing"}}'), "{{run}}: {{alertname}}", BAD
        )
    )
    for panel in (*_figures(), _table(), _states(), *_history()):
        built.with_panel(panel)
    return built


def _figures() -> list[AnyPanel]:
    return [
        number(
            "Runs guarded",
            "Runs that the webhook knows.",
            "none",
            query(f"count(fusewire_attempt{{{RUNS}}})", "runs"),
        ),
        number(
            "Recovering",
            "Runs that were tripped and have not proved themselves yet (OPEN or HALF-OPEN).",
            "none",
            query(f'sum(fusewire_run_state{{{RUNS},state=~"open|half_open"}})', "runs"),
            thresholds=steps((None, GOOD), (1, WARNING)),
        ),
        number(
            "Locked",
            "Runs that need a person: `fusewire reset` after reading the postmortem.",
            "none",
            query(f'sum(fusewire_run_state{{{RUNS},state="locked"}})', "runs"),
            thresholds=steps((None, GOOD), (1, BAD)),
        ),
        number(
            "GPU hours used",
            "Time in which an attempt answered its scrapes, times its GPUs. A run without a GPU counts as one.",
            "h",
            total(f"sum({queries.gpu_hours_used()})", "used"),
        ),
        number(
            "GPU hours lost",
            "At each trip the updates since the promoted snapshot, at the usual pace; and the time in OPEN.",
            "h",
            total(f"sum({queries.gpu_hours_lost()})", "lost"),
        ),
        number(
            "GPU hours saved (estimate)",
            "Each divergence would have kept its GPUs busy until a person looked. After how many hours that would "
            "have been is for you to say: the field above.",
            "h",
            total(f"sum({queries.gpu_hours_saved()})", "saved"),
        ),
    ]


def _table() -> AnyPanel:
    return rows(
        "Runs",
        "One line for each run; click its name for the run's dashboard.",
        Column(title="State", expr=queries.state_number(RUNS), mappings=STATE_MAP),
        Column(title="Attempt", expr=f"max by (run) (fusewire_attempt{{{RUNS}}})"),
        Column(title="Update", expr=f"max by (run) (rl_step{{{RUNS}}})", unit="locale"),
        Column(
            title="Return", expr=f"max by (run) (rl_episode_return_smoothed{{{RUNS}}})", unit="short", decimals=1
        ),
        Column(title="LR scale", expr=f"max by (run) (fusewire_lr_scale_asked{{{RUNS}}})", decimals=3),
        Column(title="Trips", expr=f"sum by (run) (fusewire_trips_total{{{RUNS}}})"),
        Column(title="Divergences", expr=f"max by (run) (fusewire_divergences_in_incident{{{RUNS}}})"),
        Column(
            title="Stable snapshot",
            expr=f"time() - max by (run) (fusewire_snapshot_promoted_timestamp_seconds{{{RUNS}}})",
            unit="s",
        ),
        Column(title="Paused", expr=f"max by (run) (fusewire_run_paused{{{RUNS}}})", unit="bool_yes_no"),
        by="run",
        links={"run": [link("Run", RUN_LINK), link("Console", CONSOLE_LINK)]},
        size=(WIDTH, 8),
    )


def _states() -> AnyPanel:
    return timeline(
        "State of the breakers",
        STATES_NOTE,
        query(queries.worst_state(RUNS), "{{run}}"),
        names=STATE_MAP,
        size=(WIDTH, 7),
    )


def _history() -> list[AnyPanel]:
    return [
        bars(
            "Trips",
            "Times that a breaker opened, by class of failure.",
            "none",
            query(new("fusewire_trips_total", RUNS, by="run, failure_class"),
                  "{{run}}: {{failure_class}}"),
            size=(8, 7),
        ),
        graph(
            "Throughput",
            "Policy updates per second of each run.",
            "suffix: updates/s",
            query(f"max by (run) (rate(rl_updates_total{{{RUNS}}}[$__rate_interval]))", "{{run}}"),
            size=(8, 7),
        ),
        rows(
            "GPU hours by run",
            "In the time shown; what was saved is the estimate above.",
            Column(title="Trips", expr=f"sum by (run) {grown('fusewire_trips_total', RUNS)}", decimals=0),
            Column(title="Used", expr=queries.gpu_hours_used(), decimals=2),
            Column(title="Lost", expr=queries.gpu_hours_lost(), decimals=2),
            Column(title="Saved", expr=queries.gpu_hours_saved(), decimals=1),
            by="run",
            links={"run": [link("Run", RUN_LINK)]},
            size=(8, 7),
        ),
    ]  # fmt: skip
