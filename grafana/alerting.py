"""Alerting health: is the watch itself alive? Watchdog, scrapes, rule evaluations, deliveries."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from grafana.frame import (
    Links,
    frame,
    run_variable,
)
from grafana.panels import (
    BAD,
    GOOD,
    WARNING,
    AnyPanel,
    Column,
    bars,
    graph,
    link,
    looks,
    number,
    query,
    rows,
    steps,
    total,
    unlabelled,
)
from grafana.queries import RUNS, new

PARTS = ("prometheus", "alertmanager", "rules", "discovery", "watchdog")
SPAN = "1m"
"""For rates of the servers' own metrics: they are scraped less often than the runs."""
OURS = 'rule_group=~".*;fusewire-.*"'


def dashboard(links: Links) -> Dashboard:
    """Build it."""
    built = frame(
        "fusewire-alerting",
        "fusewire / Alerting health",
        "Whether an alert that should fire would fire, and would reach the webhook.",
        links,
        since="now-1h",
    )
    built.with_variable(run_variable(many=True))
    for panel in (*_figures(), *_alerts(), *_scrapes()):
        built.with_panel(panel)
    built.with_row(Row("Prometheus and Alertmanager themselves (where they are scraped)"))
    for panel in _servers():
        built.with_panel(panel)
    return built


def _figures() -> list[AnyPanel]:
    size = (3, 3)
    names = {0: ("fine", GOOD), 1: ("degraded", BAD)}
    parts = [
        number(f"Watch: {part}", "As the webhook sees it. While a part is degraded no snapshot is promoted and no "
               "run is touched.", "none", query(f'max(fusewire_monitoring_degraded{{part="{part}"}})', part),
               size=size, names=names)
        for part in PARTS
    ]  # fmt: skip
    return [
        *parts,
        number("Last heartbeat", "Age of the watchdog alert's last beat, through Prometheus and Alertmanager.", "s",
               query("max(fusewire_watchdog_age_seconds)", "age"), size=(5, 3)),
        number("Webhook", "Whether Prometheus reaches the webhook.", "none",
               query('max(up{job="fusewire-webhook"})', "webhook"), size=(4, 3),
               names={0: ("down", BAD), 1: ("up", GOOD)}),
    ]  # fmt: skip


def _alerts() -> list[AnyPanel]:
    runbook = link("Runbook", "${runbooks}/${__data.fields.alertname}.md").target_blank(True)
    return [
        rows(
            "Alerts now",
            "Every alert that is pending or firing; click its name for the runbook.",
            Column(
                title="Since",
                expr="time() - max by (alertname, run, attempt) (ALERTS_FOR_STATE) * on (alertname, run, attempt) "
                "group_right () group by (alertname, alertstate, severity, action, run, attempt) "
                '(ALERTS{action!="watchdog"})',
                unit="s",
            ),
            by="alertname",
            links={"alertname": [runbook]},
            size=(16, 8),
        ).no_value("no alert"),
        bars(
            "Alerts received by the webhook",
            "By what became of them. A beat of the watchdog every 10 s is normal; unknown or not stored is not.",
            "none",
            query(new("fusewire_alerts_received_total", by="outcome"), "{{outcome}}"),
            size=(8, 8),
        ),
    ]


def _scrapes() -> list[AnyPanel]:
    return [
        graph(
            "Scrapes answered",
            "Share of the scrapes of each attempt that succeeded. The gate promotes nothing on too few of them.",
            "percentunit",
            query(f'avg by (run, attempt) (avg_over_time(up{{job="fusewire",{RUNS}}}[$__rate_interval]))',
                  "{{run}}, attempt {{attempt}}"),
        ).min(0).max(1),
        graph(
            "Time that a scrape takes",
            "Of each attempt; a busy Python process lets the scrape wait for its interpreter lock.",
            "s",
            query(f'max by (run, attempt) (scrape_duration_seconds{{job="fusewire",{RUNS}}})',
                  "{{run}}, attempt {{attempt}}"),
            query('max(scrape_duration_seconds{job="fusewire-webhook"})', "webhook"),
        ).min(0),
        graph(
            "Heartbeat",
            "Age of the watchdog's last beat: a saw-tooth. The webhook calls the watch degraded when it grows.",
            "s",
            query("max(fusewire_watchdog_age_seconds)", "age"),
        ).min(0),
        unlabelled(bars(
            "Requests that the webhook refused",
            "Garbage, wrong tokens, and alerts that could not be stored (Alertmanager sends those again).",
            "none",
            query(new("fusewire_intake_errors_total", by="reason"), "{{reason}}"),
        )),
        unlabelled(bars(
            "Errors of the exporters",
            "Kept away from the training loop, by the place where they happened.",
            "none",
            query(new("fusewire_exporter_errors_total", RUNS, by="run, where"),
                  "{{run}}: {{where}}"),
        )),
        unlabelled(bars(
            "Snapshots not written, or late",
            "By reason.",
            "none",
            query(new("rl_snapshot_failures_total", RUNS, by="run, reason"),
                  "{{run}}: {{reason}}"),
        )),
    ]  # fmt: skip


def _servers() -> list[AnyPanel]:
    size = (6, 3)
    used = "and on (integration) sum by (integration) (alertmanager_notifications_total) > 0"
    bad = steps((None, GOOD), (1, WARNING))
    return [
        number("Rule evaluations", "Of the groups of fusewire, per second.", "ops",
               query(f"sum(rate(prometheus_rule_evaluations_total{{{OURS}}}[{SPAN}]))", "evaluations"),
               size=size),
        number("Failed evaluations", "In the time shown: a rule that fails cannot fire.", "none",
               total(f"sum(increase(prometheus_rule_evaluation_failures_total{{{OURS}}}[$__range]))", "failures"),
               size=size, thresholds=bad),
        number("Missed evaluations", "In the time shown: Prometheus was too slow for the interval.", "none",
               total(f"sum(increase(prometheus_rule_group_iterations_missed_total{{{OURS}}}[$__range]))", "missed"),
               size=size, thresholds=bad),
        number("Notifications lost", "In the time shown, between Prometheus and Alertmanager.", "none",
               total("sum(increase(prometheus_notifications_dropped_total[$__range])) "
                     "+ sum(increase(prometheus_notifications_errors_total[$__range]))", "lost"),
               size=size, thresholds=bad),
        graph(
            "Time of a rule group, as a share of its interval",
            "Evaluations are missed at the limit.",
            "percentunit",
            query(f"max by (rule_group) (prometheus_rule_group_last_duration_seconds{{{OURS}}} "
                  f"/ prometheus_rule_group_interval_seconds{{{OURS}}})", "{{rule_group}}"),
            query("vector(1)", "limit"),
        ).min(0).override_by_regexp("/;/", looks(displayName="${__field.labels.rule_group}")),
        bars(
            "Notifications of Alertmanager",
            "Sent and failed within a minute, by kind of receiver, of those in use.",
            "none",
            query(f"sum by (integration) (increase(alertmanager_notifications_total[{SPAN}])) {used}",
                  "{{integration}} sent"),
            query(f"sum by (integration) (increase(alertmanager_notifications_failed_total[{SPAN}])) {used}",
                  "{{integration}} failed"),
        ),
        graph(
            "Silences and alerts in Alertmanager",
            "A silence on a trip alert pauses its run: see who made it in Alertmanager or in the journal.",
            "none",
            query('sum(alertmanager_silences{state="active"})', "active silences"),
            query("sum by (state) (alertmanager_alerts)", "alerts, {{state}}"),
        ).min(0),
    ]  # fmt: skip
