"""What all dashboards share in looks: panels, queries, links.

Colours are names of the theme's palette and stand for a meaning (good, warning, bad) only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import prometheus as prometheus_models

from grafana.queries import STATES

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of Grafana's grid."""
NARROWEST = 70
"""Pixels of a table's column; Grafana's own 150 lets ten columns run off a laptop's screen."""
GOOD, NOTICE, WARNING, BAD, NEUTRAL = "green", "yellow", "orange", "red", "blue"
STATE_COLORS = (GOOD, NOTICE, WARNING, BAD, NEUTRAL)

AnyPanel = Builder[dashboard.Panel]
"""A panel of any kind."""


def query(expr: str, legend: str = "__auto", *, instant: bool = False) -> prometheus.Dataquery:
    """A range query; ``instant``: the last value only, as a table takes it."""
    built = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(DATASOURCE)
    if instant:
        return built.instant().format(prometheus_models.PromQueryFormat.TABLE)
    return built.range()


def total(expr: str, legend: str) -> prometheus.Dataquery:
    """A figure over the whole time shown (``$__range``): asked once, not for every point of a graph."""
    return prometheus.Dataquery().expr(expr).legend_format(legend).datasource(DATASOURCE).instant()


def steps(*colors: tuple[float | None, str]) -> builders.ThresholdsConfig:
    """Absolute thresholds: (from this value on, this colour); the first has no value."""
    return (
        builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in colors])
    )


def value_map(texts: Mapping[int, tuple[str, str]]) -> dashboard.ValueMap:
    """Numbers shown as words: number → (text, colour)."""
    return dashboard.ValueMap(
        options={
            str(number): dashboard.ValueMappingResult(text=text, color=color, index=index)
            for index, (number, (text, color)) in enumerate(texts.items())
        }
    )


STATES_NOTE = (
    "CLOSED: trains and is watched. OPEN: stopped, being rolled back. HALF-OPEN: restarted, on probation. "
    "LOCKED: needs a person. COMPLETED: finished on purpose."
)
STATE_MAP = value_map(
    {
        number: (state.replace("_", "-").upper(), color)
        for number, (state, color) in enumerate(zip(STATES, STATE_COLORS, strict=True))
    }
)


def _dress(
    panel: Any, title: str, description: str, *, unit: str, size: tuple[int, int], queries: Sequence[Any]
) -> None:
    panel.title(title).description(description).unit(unit).datasource(DATASOURCE)
    panel.span(size[0]).height(size[1])
    for number, one in enumerate(queries):
        panel.with_target(one.ref_id(chr(ord("A") + number)))


def graph(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, size: tuple[int, int] = (8, 7)
) -> timeseries.Panel:
    """Lines over time. A series whose name starts with ``limit`` (``notice``) is a dashed red (orange) line."""
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .show_points(common.VisibilityMode.AUTO)
        .span_nulls(False)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .override_by_regexp("/^limit/", _dashed(BAD))
        .override_by_regexp("/^notice/", _dashed(WARNING))
    )
    _dress(panel, title, description, unit=unit, size=size, queries=queries)
    return panel


def bars(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, size: tuple[int, int] = (8, 7)
) -> timeseries.Panel:
    """Counts per interval, stacked."""
    return (
        graph(title, description, unit, *queries, size=size)
        .draw_style(common.GraphDrawStyle.BARS)
        .fill_opacity(70)
        .line_width(0)
        .decimals(0)
        .stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
        .min(0)
    )


def logarithmic(panel: timeseries.Panel, smallest: float) -> timeseries.Panel:
    """Powers of ten; linear below ``smallest``, so that zero and negative values are drawn as well."""
    scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.SYMLOG).log(10)
    return panel.scale_distribution(scale.linear_threshold(smallest))


def unlabelled(panel: timeseries.Panel) -> timeseries.Panel:
    """Without a legend: of many series that are all zero on a good day. The tooltip names them."""
    hidden = common_builders.VizLegendOptions().show_legend(False).display_mode(common.LegendDisplayMode.HIDDEN)
    return panel.legend(hidden)


def _dashed(color: str) -> list[dashboard.DynamicConfigValue]:
    return looks(
        color={"mode": "fixed", "fixedColor": color},
        lineStyle={"fill": "dash", "dash": [8, 6]},
        showPoints="never",
    )


def number(
    title: str,
    description: str,
    unit: str,
    *queries: prometheus.Dataquery,
    size: tuple[int, int] = (4, 4),
    thresholds: builders.ThresholdsConfig | None = None,
    names: Mapping[int, tuple[str, str]] | dashboard.ValueMap | None = None,
) -> stat.Panel:
    """One figure, or one for each series; coloured only where a threshold gives the colour a meaning."""
    panel = (
        stat.Panel()
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .color_mode(common.BigValueColorMode.VALUE if thresholds or names else common.BigValueColorMode.NONE)
        .thresholds(thresholds or steps((None, "text")))
    )
    if names is not None:
        panel.mappings([names if isinstance(names, dashboard.ValueMap) else value_map(names)])
    _dress(panel, title, description, unit=unit, size=size, queries=queries)
    return panel


def timeline(
    title: str,
    description: str,
    *queries: prometheus.Dataquery,
    names: dashboard.ValueMap,
    size: tuple[int, int] = (WIDTH, 7),
) -> statetimeline.Panel:
    """States over time as coloured bands."""
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(80)
        .mappings([names])
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(steps((None, "text")))
        .legend(common_builders.VizLegendOptions().show_legend(False).display_mode(common.LegendDisplayMode.HIDDEN))
    )
    _dress(panel, title, description, unit="none", size=size, queries=queries)
    return panel


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: an instant query whose value it shows, per ``by`` label of the table."""

    title: str
    expr: str
    unit: str = "none"
    mappings: dashboard.ValueMap | None = None
    decimals: int | None = None


def rows(
    title: str,
    description: str,
    *columns: Column,
    by: str,
    hidden: Sequence[str] = (),
    links: Mapping[str, Sequence[builders.DashboardLink]] | None = None,
    size: tuple[int, int] = (WIDTH, 8),
) -> table.Panel:
    """A table with a row for each value of the label ``by``; the columns are joined on it.

    Args:
        hidden: labels that come along and are not shown.
        links: data links of a column, by its title (or by a label's name).
    """
    panel = table.Panel().cell_height(common.TableCellHeight.SM).filterable(True).min_width(NARROWEST)
    asked = [query(column.expr, instant=True) for column in columns]
    _dress(panel, title, description, unit="none", size=size, queries=asked)
    letters = [chr(ord("A") + place) for place in range(len(columns))]
    values = ["Value"] if len(columns) == 1 else [f"Value #{letter}" for letter in letters]
    times = ["Time"] if len(columns) == 1 else [f"Time {place + 1}" for place in range(len(columns))]
    if len(columns) > 1:
        panel.with_transformation(
            dashboard.DataTransformerConfig(id_val="joinByField", options={"byField": by, "mode": "outer"})
        )
    panel.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(("Time", *times, *hidden), True),
                "renameByName": dict(zip(values, (column.title for column in columns), strict=True)),
            },
        )
    )
    for column in columns:
        looks: list[tuple[str, Any]] = [("unit", column.unit)]
        if column.decimals is not None:
            looks.append(("decimals", column.decimals))
        if column.mappings is not None:
            looks += [("mappings", [column.mappings]), ("custom.cellOptions", {"type": "color-background"})]
        panel.override_by_name(column.title, [dashboard.DynamicConfigValue(key, value) for key, value in looks])
    for name, targets in (links or {}).items():
        built = [link.build().to_json() for link in targets]
        shown = [{"title": link["title"], "url": link["url"]} for link in built]
        panel.override_by_name(name, [dashboard.DynamicConfigValue("links", shown)])
    return panel


def link(title: str, url: str) -> builders.DashboardLink:
    """A link to an address; variables of Grafana may stand in it."""
    return builders.DashboardLink(title).url(url).type(dashboard.DashboardLinkType.LINK)


def looks(**values: object) -> list[dashboard.DynamicConfigValue]:
    """Properties for an override; ``axisPlacement`` and the like belong to the graph (``custom.``)."""
    own = {"color", "displayName", "unit", "links"}
    return [
        dashboard.DynamicConfigValue(key if key in own else f"custom.{key}", value) for key, value in values.items()
    ]
