"""The plots of a postmortem: one SVG with a small plot for each signal, around the trip.

matplotlib (the extra ``report``) is imported when something is drawn, and takes some 60 MB then: draw in a process
that ends.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire_webhook.postmortem.observed import Observed, Threshold, Traces
from fusewire_webhook.postmortem.story import Failure
from fusewire_webhook.postmortem.thresholds import signals as signals_of
from fusewire_webhook.postmortem.traces import Trace

MOST_PLOTS = 9
PREFERRED = (
    "episode_return",
    "approx_kl",
    "policy_entropy",
    "value_loss",
    "grad_norm",
    "learning_rate",
    "evaluation_return",
    "explained_variance",
    "clip_fraction",
    "policy_loss",
    "advantage_std",
    "reference_kl",
    "q_value_max",
    "temperature",
    "reward_std",
    "response_length",
    "rollout_train_logprob_gap",
    "step",
)
"""Signals in the order in which they get a plot, after those that tripped."""

MISSING = "There are no plots: matplotlib is not installed here (pip install matplotlib)."

_INK = "#010203"
"""Stands for the colour of the text around the picture."""
_STYLES: tuple[tuple[str, Any], ...] = (
    ("#3b82f6", "solid"),
    ("#d9730d", (0, (6, 2))),
    ("#0d9488", (0, (2, 1.5))),
    ("#a371f7", (0, (7, 2, 1.5, 2))),
    ("#8c959f", (0, (10, 3))),
    ("#d6409f", (0, (4, 1.5, 1, 1.5, 1, 1.5))),
)
"""Colour and dashes by attempt: neighbours differ in both, for those too who see few colours."""
_BAD = "#e5484d"
_LOG_RANGE = 1e3
_MINUTES = 900.0
_LABEL_SHARE = 0.13
"""Of the picture's width: what an attempt's name takes."""
_MOST_NAMES = 8
_INCIDENT = ("step", "learning_rate", "episode_return")
"""Signals that are shown over a whole incident, below the one that tripped last."""


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def chosen(observed: Observed) -> list[str]:
    """The signals that get a plot, the tripping ones first."""
    present = {name for traces in observed.around.values() for name, trace in traces.items() if len(trace)}
    tripping = [name for rule in observed.rules for name in signals_of(rule.query)]
    if any("episode_return" in rule.query for rule in observed.rules):
        tripping.append("episode_return")
    return [name for name in dict.fromkeys([*tripping, *PREFERRED]) if name in present][:MOST_PLOTS]


def over_incident(observed: Observed, incident: Sequence[Failure]) -> list[str]:
    """The signals that are shown over the whole incident; empty: it had one attempt, or nothing is known of it."""
    if len(incident) < 2:
        return []
    present = {name for traces in observed.incident.values() for name, trace in traces.items() if len(trace)}
    return [name for name in dict.fromkeys([*chosen(observed)[:1], *_INCIDENT]) if name in present]


def draw(observed: Observed, attempt: int) -> str | None:
    """The picture as SVG; None: Prometheus has nothing to draw.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return _picture(observed, observed.around, chosen(observed), {attempt: observed.tripped_at})


def draw_incident(observed: Observed, incident: Sequence[Failure]) -> str | None:
    """All attempts of an incident on one axis of time, each trip marked; None: there is nothing to draw.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if not incident:
        return None
    skew = observed.tripped_at - incident[-1].ended_at
    trips = {one.attempt.number: one.ended_at + skew for one in incident if one.alert}
    return _picture(observed, observed.incident, over_incident(observed, incident), trips)


def _picture(
    observed: Observed, drawn: Mapping[int, Traces], names: Sequence[str], trips: Mapping[int, float]
) -> str | None:
    if not names:
        return None
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fusewire",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(5.4, 1.3 * len(names) + 0.9), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        rows = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        edges = [time - observed.tripped_at for time in _times(drawn)]
        unit = (60.0, "minutes") if max(map(abs, edges)) > _MINUTES else (1.0, "seconds")
        offsets = {number: (time - observed.tripped_at) / unit[0] for number, time in trips.items()}
        for place, (axes, name) in enumerate(zip(rows, names, strict=True)):
            _plot(axes, name, observed, drawn, unit[0])
            for number, at in offsets.items():
                axes.axvline(at, color=_BAD, linewidth=1, linestyle="--", zorder=1, gid=f"trip-{number}-{place}")
        rows[-1].set_xlabel(f"{unit[1]} from the trip")
        _names(rows[0], drawn, observed.tripped_at, unit[0])
        _legend(figure, drawn)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue().replace(_INK, "currentColor")


def _plot(axes: Any, name: str, observed: Observed, drawn: Mapping[int, Traces], unit: float) -> None:
    axes.patch.set_alpha(0)
    axes.set_title(name, loc="left", fontsize=9, pad=3)
    axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    values: list[np.ndarray[Any, Any]] = []
    for number, traces in sorted(drawn.items()):
        trace = traces.get(name)
        if trace is not None and len(trace):
            values.append(trace.finite)
            _line(axes, trace, observed.tripped_at, unit, number)
    bounds = [threshold for threshold in observed.thresholds if threshold.signal == name]
    finite = np.concatenate([*values, np.array([bound.value for bound in bounds])]) if values else np.array([])
    if len(finite) and finite.min() > 0 and finite.max() > _LOG_RANGE * finite.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda _value, _: "")
    for bound in bounds:
        _bound(axes, bound)


def _line(axes: Any, trace: Trace, trip: float, unit: float, attempt: int) -> None:
    finite = np.isfinite(trace.values)
    times = (trace.times - trip) / unit
    colour, dashes = _STYLES[attempt % len(_STYLES)]
    axes.plot(
        times, np.where(finite, trace.values, np.nan), color=colour, linestyle=dashes, linewidth=1.4, zorder=3,
        marker="o" if finite.sum() < 2 else "", markersize=2.5,
    )  # fmt: skip
    if not finite.all():
        bottom = np.zeros(int((~finite).sum()))
        axes.plot(
            times[~finite], bottom, "x", color=_BAD, markersize=4, transform=axes.get_xaxis_transform(), zorder=4,
            clip_on=False,
        )  # fmt: skip


def _names(axes: Any, drawn: Mapping[int, Traces], trip: float, unit: float) -> None:
    """Each attempt's name where it begins; one that would hide another stands a line higher."""
    low, high = axes.get_xlim()
    taken: list[float] = []
    for number in sorted(drawn):
        begins = (min(_times({number: drawn[number]}), default=trip) - trip) / unit
        share = min(max((begins - low) / (high - low), 0.0), 1 - _LABEL_SHARE)
        level = next((row for row, end in enumerate(taken) if share >= end), len(taken))
        taken[level : level + 1] = [share + _LABEL_SHARE]
        axes.annotate(
            f"attempt {number}", xy=(share, 1), xycoords="axes fraction", xytext=(0, 3 + 10 * level),
            textcoords="offset points", fontsize=8, color=_STYLES[number % len(_STYLES)][0], annotation_clip=False,
        )  # fmt: skip
    axes.set_title(axes.get_title(loc="left"), loc="left", fontsize=9, pad=4 + 10 * len(taken))


def _bound(axes: Any, bound: Threshold) -> None:
    axes.axhline(bound.value, color=_INK, linewidth=1, linestyle=":", zorder=2)
    axes.annotate(
        f"{bound.alert} {bound.op} {bound.value:g}", xy=(1, bound.value), xycoords=("axes fraction", "data"),
        ha="right", va="bottom", fontsize=7.5, color=_INK,
    )  # fmt: skip


def _legend(figure: Any, drawn: Mapping[int, Traces]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    lines = []
    for number in sorted(drawn):
        colour, dashes = _STYLES[number % len(_STYLES)]
        lines.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.4, label=str(number)))
    lines = lines[-_MOST_NAMES:]
    lines.append(Line2D([], [], color=_BAD, linestyle="--", linewidth=1, label="trip"))
    if any(trace.bad for traces in drawn.values() for trace in traces.values()):
        lines.append(Line2D([], [], color=_BAD, marker="x", linestyle="", label="not finite"))
    figure.legend(
        handles=lines, loc="outside upper right", ncols=len(lines), frameon=False, fontsize=8, handlelength=2.6,
        columnspacing=1.2, title="attempts", title_fontsize=8,
    )  # fmt: skip


def _times(around: Mapping[int, Traces]) -> list[float]:
    edges = [0.0]
    for traces in around.values():
        for trace in traces.values():
            if len(trace):
                edges += [float(trace.times[0]), float(trace.times[-1])]
    return edges[1:]
