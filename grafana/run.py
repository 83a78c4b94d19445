"""Run: the signals of one run with their thresholds, its attempts, snapshots and trip alerts."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, QueryVariable, Row
from grafana_foundation_sdk.models.dashboard import VariableHide, VariableOption, VariableRefresh

from grafana.frame import (
    Links,
    attempt_variable,
    frame,
    run_annotations,
    run_variable,
)
from grafana.panels import (
    BAD,
    DATASOURCE,
    GOOD,
    NEUTRAL,
    NOTICE,
    STATE_MAP,
    WARNING,
    WIDTH,
    AnyPanel,
    graph,
    logarithmic,
    looks,
    number,
    query,
    steps,
    timeline,
    unlabelled,
    value_map,
)
from grafana.queries import ATTEMPTS, RUN, limit, notice, per_attempt, state_number

DRAWN = (
    "approx_kl", "policy_entropy", "value_loss", "episode_return", "grad_norm", "learning_rate", "clip_fraction",
    "explained_variance",
)  # fmt: skip
"""Signals with a panel of their own; every other one that the run reports gets one by repetition."""

LIMIT_NOTE = " The dashed line is where the loaded rules trip; it is absent where they do not record it."


def dashboard(links: Links) -> Dashboard:
    """Build it."""
    built = frame(
        "fusewire-run",
        "fusewire / Run",
        "One run: signals with the thresholds of the rules, attempts, snapshots, trip alerts.",
        links,
        since="now-1h",
    )
    built.with_variable(run_variable(many=False)).with_variable(attempt_variable()).with_variable(_others())
    for mark in run_annotations():
        built.annotation(mark)
    for panel in (*_figures(), *_policy(), *_critic(), *_pace(), _alerts()):
        built.with_panel(panel)
    built.with_row(Row("Other signals of this run"))
    built.with_panel(_any_signal())
    return built


def _others() -> QueryVariable:
    drawn = "|".join(f'{name}"' for name in DRAWN)
    return (
        QueryVariable("signal")
        .label("Other signals")
        .datasource(DATASOURCE)
        .query(f"query_result(group by (signal) (rl_reports_total{{{RUN}}} > 0))")
        .regex(f'/signal="(?!{drawn})([^"]+)"/')
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .hide(VariableHide.HIDE_VARIABLE)
    )


def _figures() -> list[AnyPanel]:
    size = (3, 3)
    return [
        number("State", "Of the breaker.", "none", query(state_number(RUN), "state"), size=size, names=STATE_MAP),
        number("Attempt", "Starts of the process so far, from 0.", "none",
               query(f"max(fusewire_attempt{{{RUN}}})", "attempt"), size=size),
        number("Update", "Number of the last policy update.", "locale",
               query(f"max(rl_step{{{RUN}}})", "update"), size=size),
        number("Return now", "Mean of the last 10 reports.", "short",
               query(f"max(rl_episode_return_smoothed{{{RUN}}})", "return"), size=size),
        number("Learning-rate scale", "Factor that the running attempt was asked for.", "none",
               query(f"max(fusewire_lr_scale_asked{{{RUN}}})", "scale"), size=size),
        number("Last update", "Time since; declared phases do not count.", "s",
               query(f"min(rl_seconds_since_step{{{RUN}}})", "since"), size=size),
        number("Snapshot age", "Of the newest stable one: what a trip now would cost.", "s",
               query(f"time() - max(fusewire_snapshot_promoted_timestamp_seconds{{{RUN}}})", "since"), size=size),
        number("Trip alerts", "Firing or pending now, in the running attempt.", "none",
               query(f'count(ALERTS{{{RUN},action="trip"}} and on (attempt) '
                     f'(max by (attempt) (up{{job="fusewire",{RUN}}}) == 1)) or vector(0)', "alerts"),
               size=size, thresholds=steps((None, GOOD), (1, BAD))),
    ]  # fmt: skip


def _policy() -> list[AnyPanel]:
    returns = graph(
        "Return",
        "Mean of the last 10 reports, and the highest such mean of the lineage. ReturnCollapse trips when it stays "
        "under the limit, ReturnDrawdown tells people at the notice." + LIMIT_NOTE,
        "short",
        query(per_attempt("rl_episode_return_smoothed"), "attempt {{attempt}}"),
        query(per_attempt("rl_episode_return_peak"), "peak, attempt {{attempt}}"),
        query(limit("episode_return"), "limit, attempt {{attempt}}"),
        query(notice("episode_return"), "notice, attempt {{attempt}}"),
    )
    divergence = graph(
        "KL divergence of an update, in nats",
        "Last update, and the highest value that ten in a row all reached: the default KLSpike looks at that."
        + LIMIT_NOTE,
        "short",
        query(per_attempt("rl_approx_kl"), "attempt {{attempt}}"),
        query(per_attempt("rl_approx_kl_run_min", 'steps="10"'), "ten in a row, attempt {{attempt}}"),
        query(limit("approx_kl"), "limit, attempt {{attempt}}"),
    )
    entropy = graph(
        "Policy entropy, in nats",
        "Last update, and the lowest value that ten in a row all stayed under. The default EntropyCollapse trips "
        "below the limit if the return has suffered as well." + LIMIT_NOTE,
        "short",
        query(per_attempt("rl_policy_entropy"), "attempt {{attempt}}"),
        query(per_attempt("rl_policy_entropy_run_max", 'steps="10"'), "ten in a row, attempt {{attempt}}"),
        query(limit("policy_entropy"), "limit, attempt {{attempt}}"),
    )
    return [returns, logarithmic(divergence, 1e-4), entropy]


def _critic() -> list[AnyPanel]:
    loss = graph(
        "Critic loss",
        "In squared units of the return. The default ValueLossExplosion compares ten in a row with what ten had "
        "held before." + LIMIT_NOTE,
        "short",
        query(per_attempt("rl_value_loss"), "attempt {{attempt}}"),
        query(limit("value_loss"), "limit, attempt {{attempt}}"),
    )
    norm = graph(
        "Gradient norm before clipping",
        "The default GradNormExplosion compares ten in a row with what ten had held before." + LIMIT_NOTE,
        "short",
        query(per_attempt("rl_grad_norm"), "attempt {{attempt}}"),
        query(limit("grad_norm"), "limit, attempt {{attempt}}"),
    )
    nonfinite = graph(
        "Non-finite reports in a row",
        "Longest run of NaN or infinite reports in the window, by signal. One gradient norm is routine under fp16 "
        "loss scaling; a loss, an entropy or a KL trips NonFiniteValue at once." + LIMIT_NOTE,
        "none",
        query(f"max by (signal, attempt) (rl_nonfinite_streak{{{ATTEMPTS}}})", "{{signal}}, attempt {{attempt}}"),
        query(limit("nonfinite_streak"), "limit of grad_norm, attempt {{attempt}}"),
    )
    return [logarithmic(loss, 1e-6), logarithmic(norm, 1e-6), unlabelled(nonfinite)]


def _pace() -> list[AnyPanel]:
    rate = graph(
        "Learning rate",
        "Of the optimizer's first group, as the trainer reports it.",
        "sci",
        query(per_attempt("rl_learning_rate"), "attempt {{attempt}}"),
    )
    shares = graph(
        "Clip fraction and explained variance",
        "Share of samples whose ratio was clipped; explained variance of the value function (1: perfect, 0 or "
        "less: it knows nothing; cut off at -1).",
        "percentunit",
        query(per_attempt("rl_clip_fraction"), "clipped, attempt {{attempt}}"),
        query(per_attempt("rl_explained_variance"), "explained, attempt {{attempt}}"),
    )
    silence = graph(
        "Time without an update",
        "Since the last update, and the usual time between two. TrainerStalled restarts at the limit." + LIMIT_NOTE,
        "s",
        query(f"min by (run, attempt) (rl_seconds_since_step{{{ATTEMPTS}}})", "attempt {{attempt}}"),
        query(per_attempt("rl_step_duration_usual_seconds"), "usual, attempt {{attempt}}"),
        query(limit("seconds_since_step"), "limit, attempt {{attempt}}"),
    )
    progress = graph(
        "Progress",
        "Last update, last snapshot on disk and last promoted snapshot: the gap is what a trip would cost.",
        "locale",
        query(per_attempt("rl_step"), "update, attempt {{attempt}}"),
        query(per_attempt("rl_snapshot_last_step"), "snapshot, attempt {{attempt}}"),
        query(f"max by (run) (fusewire_snapshot_promoted_step{{{RUN}}})", "promoted"),
    ).override_by_regexp("/^promoted/", looks(color={"mode": "fixed", "fixedColor": "text"}, lineWidth=2))
    throughput = graph(
        "Environment steps and updates per second",
        "Throughput of each attempt.",
        "short",
        query(
            f"max by (attempt) (rate(rl_env_steps_total{{{ATTEMPTS}}}[$__rate_interval]))",
            "environment steps, attempt {{attempt}}",
        ),
        query(
            f"max by (attempt) (rate(rl_updates_total{{{ATTEMPTS}}}[$__rate_interval]))",
            "updates, attempt {{attempt}}",
        ),
    )
    stalls = graph(
        "Time that a snapshot holds up the loop",
        "Mean of the attempt's snapshots so far.",
        "s",
        query(
            f"max by (attempt) (rl_snapshot_stall_seconds_sum{{{ATTEMPTS}}} "
            f"/ (rl_snapshot_stall_seconds_count{{{ATTEMPTS}}} > 0))",
            "attempt {{attempt}}",
        ),
    )
    return [
        logarithmic(rate, 1e-9),
        shares.min(-1).max(1),
        logarithmic(silence, 0.1).min(0),
        progress,
        logarithmic(throughput, 0.01).min(0),
        stalls.min(0),
    ]


def _alerts() -> AnyPanel:
    states = value_map(
        {1: ("pending", NOTICE), 2: ("holds promotion", WARNING), 3: ("trips", BAD), 0: ("notice", NEUTRAL)}
    )
    return timeline(
        "Alerts of the chosen attempts",
        "Pending, firing as a notice, holding promotions back, or tripping.",
        query(
            f'max by (alertname, attempt) (3 * ALERTS{{{ATTEMPTS},action="trip",alertstate="firing"}} '
            f'or 2 * ALERTS{{{ATTEMPTS},action="hold",alertstate="firing"}} '
            f'or 1 * ALERTS{{{ATTEMPTS},alertstate="pending"}} '
            f'or 0 * ALERTS{{{ATTEMPTS},action="notify",alertstate="firing"}})',
            "{{alertname}}, attempt {{attempt}}",
        ),
        names=states,
        size=(WIDTH, 6),
    )


def _any_signal() -> AnyPanel:
    return (
        graph(
            "$signal",
            "Last update of a signal that has no panel of its own.",
            "short",
            query(f'max by (run, attempt) ({{__name__="rl_${{signal}}",{ATTEMPTS}}})', "attempt {{attempt}}"),
        )
        .repeat("signal")
        .repeat_direction("h")
        .max_per_row(3)
    )
