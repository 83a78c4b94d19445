"""The plots of a postmortem: one SVG with a small plot for each signal, around the trip.

matplotlib (the extra ``report``) is imported when something is drawn, and takes some 60 MB then: draw in a process
that ends.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire_webhook.postmortem.observed import Observed, Threshold, Traces
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
_BEFORE, _TRIPPED, _AFTER = "#8c959f", "#3b82f6", "#2da44e"
_BAD, _BOUND = "#e5484d", "#d9730d"
_LOG_RANGE = 1e3
_MINUTES = 900.0


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


def draw(observed: Observed, attempt: int) -> str | None:
    """The picture as SVG; None: Prometheus has nothing to draw.

    Raises:
        ImportError: matplotlib is not installed.
    """
    names = chosen(observed)
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
        figure = Figure(figsize=(8.6, 1.45 * len(names) + 0.7), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        rows = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        longest = max(abs(time - observed.tripped_at) for time in _times(observed.around))
        unit = (60.0, "minutes") if longest > _MINUTES else (1.0, "seconds")
        for axes, name in zip(rows, names, strict=True):
            _plot(axes, name, observed, attempt, unit[0])
        rows[-1].set_xlabel(f"{unit[1]} from the trip")
        _legend(rows[0], observed, attempt)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue().replace(_INK, "currentColor")


def _plot(axes: Any, name: str, observed: Observed, attempt: int, unit: float) -> None:
    axes.patch.set_alpha(0)
    axes.set_title(name, loc="left", fontsize=9, pad=3)
    axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    values: list[np.ndarray[Any, Any]] = []
    for number, traces in sorted(observed.around.items()):
        trace = traces.get(name)
        if trace is not None and len(trace):
            values.append(trace.finite)
            _line(axes, trace, observed.tripped_at, unit, _colour(number, attempt))
    bounds = [threshold for threshold in observed.thresholds if threshold.signal == name]
    finite = np.concatenate([*values, np.array([bound.value for bound in bounds])]) if values else np.array([])
    if len(finite) and finite.min() > 0 and finite.max() > _LOG_RANGE * finite.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda _value, _: "")
    for bound in bounds:
        _bound(axes, bound)
    axes.axvline(0, color=_BAD, linewidth=1, linestyle="--", zorder=1)


def _line(axes: Any, trace: Trace, trip: float, unit: float, colour: str) -> None:
    finite = np.isfinite(trace.values)
    times = (trace.times - trip) / unit
    axes.plot(times, np.where(finite, trace.values, np.nan), color=colour, linewidth=1.2, zorder=3)
    if not finite.all():
        bottom = np.zeros(int((~finite).sum()))
        axes.plot(
            times[~finite], bottom, "x", color=_BAD, markersize=4, transform=axes.get_xaxis_transform(), zorder=4,
            clip_on=False,
        )  # fmt: skip


def _bound(axes: Any, bound: Threshold) -> None:
    axes.axhline(bound.value, color=_BOUND, linewidth=1, linestyle=":", zorder=2)
    axes.annotate(
        f"{bound.alert} {bound.op} {bound.value:g}", xy=(1, bound.value), xycoords=("axes fraction", "data"),
        ha="right", va="bottom", fontsize=7.5, color=_BOUND,
    )  # fmt: skip


def _legend(axes: Any, observed: Observed, attempt: int) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    shown = sorted(observed.around)
    lines = [Line2D([], [], color=_colour(number, attempt), label=f"attempt {number}") for number in shown[:6]]
    lines.append(Line2D([], [], color=_BAD, linestyle="--", label="trip"))
    if any(trace.bad for traces in observed.around.values() for trace in traces.values()):
        lines.append(Line2D([], [], color=_BAD, marker="x", linestyle="", label="not finite"))
    axes.legend(
        handles=lines, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(lines), frameon=False, fontsize=8
    )


def _colour(number: int, attempt: int) -> str:
    return _TRIPPED if number == attempt else _BEFORE if number < attempt else _AFTER


def _times(around: Mapping[int, Traces]) -> list[float]:
    edges = [0.0]
    for traces in around.values():
        for trace in traces.values():
            if len(trace):
                edges += [float(trace.times[0]), float(trace.times[-1])]
    return edges[1:]
