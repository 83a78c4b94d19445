"""What every dashboard has around its panels: variables, annotations, links to the others, time range."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import dashboard

from grafana.panels import BAD, DATASOURCE, GOOD, NEUTRAL, NOTICE, WARNING, link
from grafana.queries import RUN, began, new

TAG = "fusewire"
CONSOLE_LINK = "${console}/#/run/${__data.fields.run}"
RUN_LINK = "/d/fusewire-run?var-run=${__data.fields.run}&${datasource:queryparam}&${__url_time_range}"


@dataclass(frozen=True, kw_only=True)
class Links:
    """Addresses outside Grafana."""

    runbooks: str = "/public/runbooks"
    """Folder of the runbooks, as a browser reaches it from Grafana."""
    console: str = "http://localhost:9095"
    """fusewire's own console."""


# Variables -------------------------------------------------------------------------------------------------------


def run_variable(*, many: bool) -> builders.QueryVariable:
    """``$run``: the runs that the webhook guards."""
    variable = _label("run", "Run", "label_values(fusewire_run_state, run)")
    return _all(variable) if many else variable


def attempt_variable() -> builders.QueryVariable:
    """``$attempt``: the attempts of the run, the newest first."""
    variable = _label("attempt", "Attempt", f"label_values(rl_updates_total{{{RUN}}}, attempt)")
    return _all(variable.sort(dashboard.VariableSort.NUMERICAL_DESC))


def _all(variable: builders.QueryVariable) -> builders.QueryVariable:
    """Several may be chosen; all are at first."""
    everything = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(".+").current(everything)


def _label(name: str, label: str, asked: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(asked)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )


def text_variable(name: str, label: str, value: str, *, hidden: bool = False) -> builders.TextBoxVariable:
    """A variable that people type; a hidden one is set by the address (``?var-name=``)."""
    return (
        builders.TextBoxVariable(name)
        .label(label)
        .default_value(value)
        .current(dashboard.VariableOption(selected=True, text=value, value=value))
        .hide(dashboard.VariableHide.HIDE_VARIABLE if hidden else dashboard.VariableHide.DONT_HIDE)
    )


# Annotations -----------------------------------------------------------------------------------------------------


def annotation(
    name: str, expr: str, title: str, color: str, *, tags: str = "", at_value: bool = False, enabled: bool = True
) -> builders.AnnotationQuery:
    """Marks on every graph: a region for as long as the expression has a value.

    Args:
        at_value: the value is the time of the mark, in Unix milliseconds.
    """
    built = (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(enabled)
        .icon_color(color)
        .target(prometheus.Dataquery().expr(expr).ref_id("Anno").range().datasource(DATASOURCE))
        .expr(expr)
        .title_format(title)
        .tag_keys(tags)
    )
    return built.use_value_for_time(True) if at_value else built


def run_annotations(labels: str = RUN) -> list[builders.AnnotationQuery]:
    """Attempts, snapshots and trip alerts of a run."""
    return [
        annotation(
            "Trip alert firing",
            began(f'ALERTS{{{labels},action="trip",alertstate="firing"}}'),
            "{{alertname}} fires",
            BAD,
            tags="run,attempt,class",
        ),
        annotation(
            "Trip alert pending",
            f'last_over_time(ALERTS{{{labels},action="trip",alertstate="pending"}}[$__interval])',
            "{{alertname}} is pending",
            WARNING,
            tags="run,attempt,class",
        ),
        annotation(
            "Attempt",
            f'group by (run, attempt) (up{{job="fusewire",{labels}}} == 1)',
            "attempt {{attempt}}",
            NEUTRAL,
            tags="run",
        ),
        annotation(
            "Declared phase", f"rl_phase{{{labels}}} == 1", "{{phase}}", NOTICE, tags="run,attempt", enabled=False
        ),
        annotation(
            "Snapshot promoted",
            f"fusewire_snapshot_promoted_timestamp_seconds{{{labels}}} * 1000",
            "snapshot promoted",
            GOOD,
            tags="run",
            at_value=True,
        ),
        annotation(
            "Snapshot written",
            f"{new('rl_snapshots_total', labels, by='run, attempt')} > 0",
            "snapshot written",
            "purple",
            tags="run,attempt",
            enabled=False,
        ),
    ]


def frame(uid: str, title: str, description: str, links: Links, *, since: str = "now-6h") -> builders.Dashboard:
    """A dashboard without panels: datasource, links to the others, refresh, time range."""
    built = (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .editable()
        .refresh("10s")
        .time(since, "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            builders.DashboardLink("fusewire")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .link(link("Console", "${console}").target_blank(True))
        .link(link("Runbooks", "${runbooks}/README.md").target_blank(True))
    )
    return built.with_variable(text_variable("console", "Console", links.console, hidden=True)).with_variable(
        text_variable("runbooks", "Runbooks", links.runbooks, hidden=True)
    )
