"""Pictures of a simulation's results. Only commands that draw a picture import this module: it needs matplotlib, the
extra `plot`. Nothing is drawn on a screen, and the same figures give the same file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from nopfsfs.sim.run import Outcome
from nopfsfs.sim.sweep import Point
from nopfsfs.text.units import format_size

# Colours of Okabe and Ito, for any kind of colour vision. Their yellow is left out, because it is too light for lines;
# more lines than colours differ in their dashes and markers.
LABELS_MOST = 12  # on the axis of nodes
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS, DASHES = "osD^vPX", ("-", "--", ":")
COMPUTE, STALL = COLOURS[0], COLOURS[4]
_FORMAT: Any = {  # matplotlib has a type of its own for the keys
    "svg.hashsalt": "nopfsfs", "text.parse_math": False, "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_WIDE = 10.0  # times longer than the shortest: then the axis is logarithmic


def bars(outcomes: Sequence[Outcome], title: str, kind: str) -> bytes:
    """Draw the time of each policy, split into computing and waiting, and the bound; `kind`: png or svg."""
    with mpl.rc_context(_FORMAT):
        figure, axes = _figure(8.0, 1.8 + 0.42 * len(outcomes))
        shown = [one.seconds for one in outcomes if one.seconds is not None]
        bound = max((one.bound_seconds for one in outcomes), default=0.0)
        unit, seconds = _unit(max([bound, *shown], default=0.0))
        where = range(len(outcomes))
        stall = [max(0.0, one.stall_seconds or 0.0) / seconds for one in outcomes]
        total = [(one.seconds or 0.0) / seconds for one in outcomes]
        compute = [max(0.0, all_of - waiting) for all_of, waiting in zip(total, stall, strict=True)]
        axes.barh(where, compute, color=COMPUTE, label="compute")
        axes.barh(where, stall, left=compute, color=STALL, label="stall")
        axes.axvline(bound / seconds, color="black", linestyle="--", linewidth=1.2, label="bound")
        axes.set_xlim(0, max([bound / seconds, *total]) * 1.02 or 1.0)
        for at, one in enumerate(outcomes):  # in a column of its own, where no bar or line is
            text = "not possible" if one.seconds is None else f"{total[at]:.4g}"
            axes.text(1.01, at, text, va="center", transform=axes.get_yaxis_transform())
        axes.set_yticks(where, [one.policy for one in outcomes])
        axes.invert_yaxis()
        axes.set_xlabel(f"time ({unit})")
        _finish(figure, axes, title, loc="outside lower center", ncols=3)
        return _saved(figure, kind)


def by_nodes(outcomes: Sequence[Outcome], title: str, kind: str) -> bytes:
    """Draw time against nodes, a line for each policy, and the bound."""
    with mpl.rc_context(_FORMAT):
        figure, axes = _figure(8.0, 4.8)
        worked = [one for one in outcomes if one.seconds is not None]
        unit, seconds = _unit(max((one.seconds or 0.0 for one in worked), default=0.0))
        for number, name in enumerate(dict.fromkeys(one.policy for one in worked)):
            points = sorted((one.nodes, (one.seconds or 0.0) / seconds) for one in worked if one.policy == name)
            axes.plot(*zip(*points, strict=True), label=name, **_style(number))
        bound = sorted({one.nodes: one.bound_seconds / seconds for one in worked}.items())
        if bound:
            axes.plot(*zip(*bound, strict=True), label="bound", color="black", linestyle="--", linewidth=1.2)
        nodes = sorted({one.nodes for one in outcomes})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(_thinned(nodes)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.set_xlabel("nodes")
        _times(axes, [*((one.seconds or 0.0) / seconds for one in worked), *(y for _, y in bound)], unit)
        _finish(figure, axes, title, loc="outside right upper")
        return _saved(figure, kind)


def swept(points: Sequence[Point], best: Point | None, classes: Sequence[str], title: str, kind: str) -> bytes:
    """Draw time against the capacity of the first class, a line for each of the last; or against that of the last."""
    across = all(point.ram is None for point in points)
    with mpl.rc_context(_FORMAT):
        figure, axes = _figure(8.0, 4.8)
        worked = [point for point in points if point.outcome.seconds is not None]
        unit, seconds = _unit(max((point.outcome.seconds or 0.0 for point in worked), default=0.0))
        largest = max(((point.disk if across else point.ram) or 0 for point in points), default=0)
        step, size_unit = (2**40, "TiB") if largest >= 10 * 2**40 else (2**30, "GiB")
        step, size_unit = (2**20, "MiB") if largest < 2**30 else (step, size_unit)

        def place(point: Point) -> tuple[float, float]:
            return ((point.disk if across else point.ram) or 0) / step, (point.outcome.seconds or 0.0) / seconds

        for number, size in enumerate(dict.fromkeys(None if across else point.disk for point in worked)):
            line = sorted(place(point) for point in worked if across or point.disk == size)
            # the name last: matplotlib hides labels that begin with _
            label = "time" if size is None else f"{format_size(size)} {classes[-1]}"
            axes.plot(*zip(*line, strict=True), label=label, **_style(number))
        if best is not None:
            x, y = place(best)
            axes.plot([x], [y], "o", markersize=14, markerfacecolor="none", markeredgecolor="black", label="cheapest")
        axes.set_xlabel(f"{classes[-1] if across else classes[0]} on each node ({size_unit})")
        _times(axes, [place(point)[1] for point in worked], unit)
        _finish(figure, axes, title, loc="outside right upper")
        return _saved(figure, kind)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 5,
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)], "linewidth": 1.6,
    }  # fmt: skip


def _unit(most: float) -> tuple[str, float]:
    """The unit in which times up to `most` seconds are readable, and its seconds."""
    return ("hours", 3600.0) if most >= 7200 else ("minutes", 60.0) if most >= 120 else ("seconds", 1.0)


def _times(axes: Axes, times: Sequence[float], unit: str) -> None:
    """Set up the vertical axis: from zero, or logarithmic where the longest time would hide the others."""
    if times and min(times) > 0 and max(times) / min(times) > _WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    else:
        axes.set_ylim(0, max(times, default=1.0) * 1.08)
    axes.set_ylabel(f"time ({unit})")
    axes.grid(alpha=0.3)


def _thinned(nodes: Sequence[int]) -> list[int]:
    """The numbers of ascending `nodes` that get a label: none close to the one before, nor more than fit."""
    kept: list[int] = []
    for number in nodes:
        if not kept or number >= kept[-1] * (nodes[-1] / nodes[0]) ** (1 / LABELS_MOST):
            kept.append(number)
    return kept


def _finish(figure: Figure, axes: Axes, title: str, **legend: Any) -> None:
    axes.set_title(title, fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, frameon=False, **legend)


def _saved(figure: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()
