"""Breaker: what it decided, how often, and how long stopping and restarting took."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from grafana.frame import (
    CONSOLE_LINK,
    RUN_LINK,
    Links,
    frame,
    run_annotations,
    run_variable,
)
from grafana.panels import (
    BAD,
    GOOD,
    STATE_MAP,
    STATES_NOTE,
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
from grafana.queries import RUNS, STATES, grown, label, new, quantile, worst_state


def dashboard(links: Links) -> Dashboard:
    """Build it."""
    built = frame(
        "fusewire-breaker",
        "fusewire / Breaker",
        "States, transitions, retries, and the latencies of stopping and restarting.",
        links,
    )
    built.with_variable(run_variable(many=True))
    for mark in run_annotations(RUNS)[:2]:
        built.annotation(mark)
    states = timeline(
        "State of the breaker",
        STATES_NOTE,
        query(worst_state(RUNS), "{{run}}"),
        names=STATE_MAP,
        size=(WIDTH, 5),
    )
    for panel in (*_figures(), states, *_retries(), *_latencies(), *_decisions()):
        built.with_panel(panel)
    return built


def _figures() -> list[AnyPanel]:
    size = (4, 3)
    in_time = "In the time shown."
    return [
        number("Trips: divergence", in_time, "none",
               total(_trips("divergence"), "trips"),
               size=size),
        number("Trips: infrastructure", f"{in_time} A crash, a preemption, an OOM kill or a hang.", "none",
               total(_trips("infrastructure"), "trips"),
               size=size),
        number("Restarts", f"{in_time} Attempts started after a failure.", "none",
               total(f"sum{grown('fusewire_restarts_total', RUNS)}", "restarts"), size=size),
        number("Lockouts", f"{in_time} Each one needed a person.", "none",
               total(f"sum{grown('fusewire_lockouts_total', RUNS)}", "lockouts"), size=size,
               thresholds=steps((None, GOOD), (1, BAD))),
        number("Paused now", "Runs whose automatic actions a person holds.", "none",
               query(f"sum(fusewire_run_paused{{{RUNS}}})", "paused"), size=size),
        number("Journal", "Events stored durably per second, of all runs.", "ops",
               query("sum(rate(fusewire_journal_events_total[$__rate_interval]))", "events"), size=size),
    ]  # fmt: skip


def _trips(failure_class: str) -> str:
    return f"sum{grown('fusewire_trips_total', RUNS, label('failure_class', failure_class))}"


def _retries() -> list[AnyPanel]:
    transitions = [
        Column(
            title=f"to {state.replace('_', '-').upper()}",
            # A state goes from 0 to 1 and back: two changes a visit, one for a visit that lasts.
            expr=f'sum by (run) (ceil(changes(fusewire_run_state{{{RUNS},state="{state}"}}[$__range]) / 2))',
        )
        for state in STATES
    ]
    return [
        rows("Transitions", "How often each run entered each state in the time shown.", *transitions, by="run",
             links={"run": [link("Run", RUN_LINK), link("Console", CONSOLE_LINK)]}, size=(12, 7)),
        graph(
            "Divergences in the incident",
            "Trips by divergence since the incident began; the run locks when its budget is used. 0 outside one.",
            "none",
            query(f"max by (run) (fusewire_divergences_in_incident{{{RUNS}}})", "{{run}}"),
            size=(6, 7),
        ).min(0),
        graph(
            "Learning-rate scale",
            "What the webhook asked for, and what the trainer reports to have got.",
            "none",
            query(f"max by (run) (fusewire_lr_scale_asked{{{RUNS}}})", "{{run}} asked"),
            query(f"max by (run) (rl_lr_scale{{{RUNS}}})", "{{run}} applied"),
            size=(6, 7),
        ).min(0),
    ]  # fmt: skip


def _latencies() -> list[AnyPanel]:
    return [
        number(
            "Stop, in the time shown",
            "From the request to stop to the confirmed end: median and 95th percentile of all runs.",
            "s",
            total(quantile(0.5, "fusewire_stop_seconds"), "median"),
            total(quantile(0.95, "fusewire_stop_seconds"), "95 %"),
            size=(6, 5),
        ),
        number(
            "Restart, in the time shown",
            "From the end of normal running to the start of the next attempt: median and 95th percentile.",
            "s",
            total(quantile(0.5, "fusewire_restart_seconds"), "median"),
            total(quantile(0.95, "fusewire_restart_seconds"), "95 %"),
            size=(6, 5),
        ),
        bars(
            "Stops and restarts",
            "Stops confirmed and attempts started again, per interval.",
            "none",
            query(new("fusewire_stop_seconds_count", by=""), "stops"),
            query(new("fusewire_restart_seconds_count", by=""), "restarts"),
            size=(12, 5),
        ),
    ]


def _decisions() -> list[AnyPanel]:
    return [
        bars(
            "Verdicts on snapshots",
            "What the promotion gate said of snapshots: pass, fail, inconclusive, error.",
            "none",
            query(new("fusewire_snapshot_verdicts_total", RUNS, by="answer"),
                  "{{answer}}"),
        ),
        graph(
            "Age of the stable snapshot",
            "Time since the newest promotion of each run: what a trip would cost.",
            "s",
            query(f"time() - max by (run) (fusewire_snapshot_promoted_timestamp_seconds{{{RUNS}}})", "{{run}}"),
        ).min(0),
        bars(
            "Alerts received",
            "By what became of them; heartbeats of the watchdog are left out.",
            "none",
            query(new("fusewire_alerts_received_total", 'outcome!="watchdog"', by="outcome"),
                  "{{outcome}}"),
        ),
    ]  # fmt: skip
