"""The curves of a run, drawn by matplotlib (the extra `plot`) as SVG that stands inside a page.

All colours are CSS variables of the page, which has a light and a dark set of them; texts are texts, in the page's
font. Only `nopfs report` imports this module.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from nopfsfs.monitor.mount_view import EpochRecord
from nopfsfs.monitor.run_record import RunRecord
from nopfsfs.text.units import format_duration

POINTS_MOST = 480  # of a curve: more than a page has room for
LABELS_MOST = 14  # of epochs: of more, some get none
TIERS = ("page_cache", "ram", "disk", "peer", "source")
TIER_NAMES = ("page cache", "memory", "local disk", "other nodes", "source")
# Stand-ins for the page's colours, which matplotlib could not parse: any distinct ones.
_INK, _SOFT, _BAND, _GRID = "#010101", "#020202", "#030303", "#040404"
_HUES = tuple(f"#0501{number:02x}" for number in range(6))  # the tiers in their order, and a sixth
_VARIABLES = {
    _INK: "--ink", _SOFT: "--soft", _BAND: "--band", _GRID: "--grid",
    **{hue: f"--hue{number}" for number, hue in enumerate(_HUES)},
}  # fmt: skip
_FORMAT: Any = {  # matplotlib has a type of its own for the keys
    "svg.hashsalt": "nopfsfs", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _SOFT, "axes.labelcolor": _INK,
    "text.color": _INK, "xtick.color": _SOFT, "ytick.color": _SOFT, "xtick.labelcolor": _INK, "ytick.labelcolor": _INK,
    "grid.color": _GRID, "grid.linewidth": 0.6, "axes.linewidth": 0.6, "lines.linewidth": 1.4,
    "legend.frameon": False, "legend.fontsize": 8.5, "hatch.linewidth": 0.5,
}  # fmt: skip
# Inches; the same for all pictures, so that they align.
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 8.6, 0.76, 0.10, 0.20, 0.26
_GAP, _LEGEND = 0.15, 0.20  # between two panels; room for a legend
_LEAST_S = 1e-4  # of a wait in a picture
ABOVE = 3  # times what was read, to which a picture shows what could have been


@dataclass(frozen=True, slots=True)
class Curves:
    """Columns over time. `time` f8[k]: seconds since `begin`, the middle of each row; `column`: by name f8[k], NaN
    where it is not known."""

    begin: float
    time: NDArray[np.float64]
    columns: dict[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.columns[name]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last second."""
        return (0.0, float(max(self.time[-1], 1.0))) if len(self.time) else (0.0, 1.0)


def curves(run: RunRecord) -> Curves | None:
    """The finest history that has the whole run, from its first open to its last, in at most POINTS_MOST means. None:
    there are too few rows to draw."""
    if not run.histories:
        return None
    begin = run.epochs[0].begin if run.epochs else float(run.histories[0].time[0])
    history = next((one for one in run.histories if one.time[0] <= begin + one.step), run.histories[-1])
    end = max((one.begin + one.seconds for one in run.epochs), default=float(history.time[-1])) + 2 * history.step
    within = (history.time >= begin - history.step) & (history.time <= end)
    if within.sum() < 3:
        return None
    apart = -(-int(within.sum()) // POINTS_MOST)
    first = float(history.time[within][0])
    time = _means(history.time[within] + history.step / 2, apart) - first
    columns = {
        name: (_most if name == "wait_p99" else _means)(values[within].astype(np.float64), apart)
        for name, values in history.columns.items()
    }
    return Curves(first, time, columns)


def _grouped(values: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    """The values in rows of `apart`, the last filled up with NaN."""
    filled = np.full(-(-len(values) // apart) * apart, np.nan)
    filled[: len(values)] = values
    return filled.reshape(-1, apart)


def _means(values: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    groups = _grouped(values, apart)
    known = ~np.isnan(groups)
    number = known.sum(axis=1)
    return np.where(number > 0, np.where(known, groups, 0).sum(axis=1) / np.maximum(number, 1), np.nan)


def _most(values: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.fmax.reduce(_grouped(values, apart), axis=1)
    return found


# ---- pictures ------------------------------------------------------------------------------------------------

Draw = Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a picture. `tall`: inches; `keyed`: it has a legend, above it."""

    tall: float
    draw: Draw
    keyed: bool = False


def pictures(run: RunRecord, found: Curves) -> list[tuple[str, str, str]]:
    """(title, one sentence, SVG) of each picture over time."""
    parts: list[tuple[str, str, list[Panel]]] = [
        ("Files a second, by what served them", "As readers had them: the less from the source, the better.",
         [Panel(1.7, lambda axes: _files(axes, found), keyed=True)]),
        ("Waiting", "How long READs that waited took, and how many readers waited at a time.",
         [Panel(1.15, lambda axes: _waits(axes, found), keyed=True), Panel(0.75, lambda axes: _waiting(axes, found))]),
        ("The tuner", "Requests that may be under way at the source; how much longer they take than when it is idle.",
         [Panel(1.15, lambda axes: _limit(axes, run, found), keyed=True),
          Panel(0.75, lambda axes: _slowdown(axes, found))]),
        ("Read from the source", "What the mount read for all its readers. The source gives what is expected, with as "
         "many requests under way as the limit allows: where less was read, the job or the bound on bytes was the "
         "limit.",
         [Panel(1.2, lambda axes: _source(axes, found), keyed=True)]),
        ("Ahead of the reader", "Seconds of reading that are fetched ahead, and what the tiers hold.",
         [Panel(0.8, lambda axes: _lead(axes, found)), Panel(1.1, lambda axes: _fill(axes, run, found), keyed=True)]),
    ]  # fmt: skip
    return [
        (title, text, _drawn(f"p{number}", title, run.epochs, found, panels))
        for number, (title, text, panels) in enumerate(parts)
    ]


def _drawn(key: str, title: str, epochs: Sequence[EpochRecord], found: Curves, panels: Sequence[Panel]) -> str:
    """Draw panels, one above the other, over one axis of time."""
    above = [_LEGEND * one.keyed + (_GAP if number else _TOP) for number, one in enumerate(panels)]
    height = sum(one.tall for one in panels) + sum(above) + _BOTTOM
    with mpl.rc_context(_FORMAT):
        figure = _figure(height)
        top = height
        for number, (one, room) in enumerate(zip(panels, above, strict=True)):
            top -= room + one.tall
            axes = _placed(figure, top / height, one.tall / height)
            _bands(axes, epochs, found, named=number == 0)
            one.draw(axes)
            if one.keyed:
                _legend(axes, 0.0 if number else _TOP / one.tall)
            _time(axes, found.span, labelled=number == len(panels) - 1)
        return _inline(figure, key, title)


def _figure(height: float) -> Figure:
    figure = Figure(figsize=(_WIDTH, height))
    FigureCanvasSVG(figure)
    return figure


def _placed(figure: Figure, bottom: float, tall: float) -> Axes:
    """Axes as wide as all; `bottom`, `tall`: parts of the figure's height."""
    return figure.add_axes((_LEFT / _WIDTH, bottom, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, tall))


def _bands(axes: Axes, epochs: Sequence[EpochRecord], found: Curves, *, named: bool) -> None:
    """Shade every other epoch, and name the epochs above the panel."""
    begin, end = found.span
    apart = -(-len(epochs) // LABELS_MOST)
    first = np.clip([one.begin - found.begin for one in epochs], begin, end)
    last = np.clip(first + [one.seconds for one in epochs], begin, end)
    shaded = list(zip(first[::2].tolist(), (last - first)[::2].tolist(), strict=True))
    axes.broken_barh(shaded, (0, 1), transform=axes.get_xaxis_transform(), color=_BAND, linewidth=0, zorder=0)
    for number in range(0, len(epochs) if named else 0, apart or 1):
        name = _epoch(epochs[number])
        axes.annotate(
            f"epoch {name}" if number == 0 or len(epochs) <= 6 else name, (first[number], 1), (2, 3),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8, color=_SOFT,
            annotation_clip=False,
        )  # fmt: skip


def _epoch(one: EpochRecord) -> str:
    return "?" if one.epoch is None else f"{one.epoch:g}"


def _time(axes: Axes, span: tuple[float, float], *, labelled: bool) -> None:
    axes.set_xlim(*span)
    seconds, unit = next(
        (one for one in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")) if span[1] >= 3 * one[0]), (1.0, "s")
    )
    places = MaxNLocator(9, steps=[1, 2, 3, 5, 6, 10]).tick_values(0, span[1] / seconds)
    axes.set_xticks([at * seconds for at in places if at * seconds <= span[1]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / seconds:g} {unit}"))
    axes.tick_params(axis="both", length=3, width=0.6)
    if not labelled:
        axes.xaxis.set_major_formatter(NullFormatter())
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _upward(axes: Axes, label: str, most: float, least: float = 1.0) -> None:
    """An axis from zero, with room for a legend above the curves."""
    axes.set_ylim(0, max(most * 1.12, least))
    axes.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.4g}"))
    _named(axes, label)


def _greatest(*values: NDArray[np.float64]) -> float:
    known = np.concatenate([one[~np.isnan(one)] for one in values])
    return float(known.max()) if len(known) else 0.0


def _legend(axes: Axes, above: float) -> None:
    """A legend over the panel, `above` its top by a part of its height."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 0.99 + above), ncols=6, borderaxespad=0.1, handlelength=1.2,
            columnspacing=1.2, handletextpad=0.5,
        )  # fmt: skip


def _seconds(axes: Axes, least: float, most: float) -> None:
    """A logarithmic axis of durations."""
    axes.set_yscale("log")
    axes.set_ylim(least, most)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda at, _: format_duration(at) if at >= 1e-3 else f"{at * 1e3:g} ms")
    )
    axes.yaxis.set_minor_locator(NullLocator())


def _named(axes: Axes, label: str) -> None:
    """The name of a vertical axis, in line with those of other pictures."""
    axes.set_ylabel(label, fontsize=8.5)
    axes.yaxis.set_label_coords(-0.60 / (_WIDTH - _LEFT - _RIGHT), 0.5)


def _stacked(axes: Axes, found: Curves, names: Sequence[str], parts: Sequence[tuple[str, str, str]]) -> float:
    """Stack the columns that are not 0 throughout; returns the most of their sum. `parts`: (column, label, colour)."""
    base = np.zeros(len(found.time))
    for name, label, colour in parts:
        values = np.nan_to_num(found[name])
        if name in names and values.max(initial=0.0) > 0:
            axes.fill_between(found.time, base, base + values, color=colour, linewidth=0, label=label)
            base = base + values
    return float(base.max(initial=0.0))


def _files(axes: Axes, found: Curves) -> None:
    parts = list(zip(TIERS, TIER_NAMES, _HUES, strict=False))
    _upward(axes, "files/s", _stacked(axes, found, TIERS, parts))

def _waits(axes: Axes, found: Curves) -> None:
    for name, label, colour in (("wait_p50", "median", _HUES[1]), ("wait_p99", "99 %", _HUES[4])):
        values = np.clip(found[name], _LEAST_S, None)
        axes.plot(found.time, values, color=colour, label=label, marker=".", markersize=2.5, linewidth=1.1)
    most = _greatest(found["wait_p99"], np.array([_LEAST_S * 10]))
    _seconds(axes, 3e-4, max(most * 2, 1e-2))
    _named(axes, "a wait")


def _waiting(axes: Axes, found: Curves) -> None:
    values = np.nan_to_num(found["wait_share"])
    axes.fill_between(found.time, values, color=_HUES[4], alpha=0.75, linewidth=0)
    _upward(axes, "waiting", float(values.max(initial=0.0)))


def _limit(axes: Axes, run: RunRecord, found: Curves) -> None:
    commanded = np.clip(np.nan_to_num(found["fetches_in_flight"]), 1, None)
    axes.fill_between(found.time, commanded, 1, color=_HUES[1], alpha=0.35, linewidth=0, label="fetches commanded")
    axes.step(found.time, np.clip(found["limit"], 1, None), where="mid", color=_HUES[0], label="limit")
    within = [at - found.begin for at in run.drains if 0 <= at - found.begin <= found.span[1]]
    if within:
        axes.vlines(
            within, 0, 0.1, transform=axes.get_xaxis_transform(), color=_HUES[3], linewidth=1.2, label="drain",
        )  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.set_ylim(1, max(8.0, 1.5 * _greatest(commanded, found["limit"])))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.0f}"))
    _named(axes, "requests")


def _slowdown(axes: Axes, found: Curves) -> None:
    axes.plot(found.time, found["slowdown"], color=_HUES[2])
    axes.axhline(1.0, color=_SOFT, linewidth=0.7, linestyle="--")
    _upward(axes, "slowdown", _greatest(found["slowdown"]), 1.5)


def _source(axes: Axes, found: Curves) -> None:
    values = np.nan_to_num(found["source_bytes"]) / 1e6
    axes.fill_between(found.time, values, color=_HUES[4], alpha=0.3, linewidth=0)
    axes.plot(found.time, values, color=_HUES[4], linewidth=1.1, label="read")
    most = top = float(values.max(initial=0.0))
    for name, label, colour, dashes in (
        ("source_expected", "expected of the source", _SOFT, "--"), ("source_cap", "bound on bytes", _HUES[3], "-"),
    ):  # fmt: skip
        line = found[name] / 1e6
        if not np.isnan(line).all():
            axes.plot(found.time, line, color=colour, linewidth=1.0, linestyle=dashes, label=label)
            top = max(top, min(_greatest(line), ABOVE * most))
    _upward(axes, "MB/s", top, 0.1)


def _lead(axes: Axes, found: Curves) -> None:
    axes.plot(found.time, found["lead"], color=_HUES[2])
    _upward(axes, "lead (s)", _greatest(found["lead"]))


def _fill(axes: Axes, run: RunRecord, found: Curves) -> None:
    columns = [f"{name}_bytes" for name in TIERS[:3]]
    most = max(_greatest(sum((np.nan_to_num(found[name]) for name in columns), np.zeros(len(found.time)))), 1.0)
    unit, size = next((one for one in (("TB", 1e12), ("GB", 1e9)) if most >= one[1]), ("MB", 1e6))
    scaled = Curves(found.begin, found.time, {name: found[name] / size for name in columns})
    parts = list(zip(columns, TIER_NAMES, _HUES, strict=False))
    top = _stacked(axes, scaled, columns, parts)
    budget = (run.budget.get("total", 0.0) + run.budget.get("disk", 0.0)) / size
    if 0 < budget <= 3 * max(top, 1e-9):
        axes.axhline(budget, color=_SOFT, linewidth=0.8, linestyle="--", label="budget")
    _upward(axes, unit, max(top, budget if budget <= 3 * top else 0.0), 0.1)


def epoch_waits(epochs: Sequence[EpochRecord]) -> str | None:
    """Draw for each epoch how long its READs waited: the median, 99 %, and the longest. None: none waited."""
    waited = [(number, one) for number, one in enumerate(epochs) if one.wait_p50_seconds is not None]
    if not waited:
        return None
    height = 1.5 + _LEGEND + 0.05 + _BOTTOM + 0.15
    with mpl.rc_context(_FORMAT):
        figure = _figure(height)
        axes = _placed(figure, (_BOTTOM + 0.15) / height, 1.5 / height)
        at = [number for number, _ in waited]
        median, p99, most = (
            np.array([max(getattr(one, f"wait_{name}_seconds") or _LEAST_S, _LEAST_S) for _, one in waited])
            for name in ("p50", "p99", "most")
        )
        wide = 7.0 if len(epochs) <= 24 else 3.0
        axes.vlines(at, median, p99, color=_HUES[4], linewidth=wide, alpha=0.45, label="median to 99 %")
        axes.plot(at, median, "o", color=_HUES[1], markersize=min(5, wide), label="median")
        axes.plot(at, most, "_", color=_HUES[3], markersize=wide + 3, markeredgewidth=1.4, label="at most")
        _seconds(axes, float(median.min()) / 2, float(most.max()) * 2)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlim(-0.6, len(epochs) - 0.4)
        apart = -(-len(epochs) // (2 * LABELS_MOST))
        named = range(0, len(epochs), apart)
        axes.set_xticks(list(named), [_epoch(epochs[at]) for at in named])
        axes.set_xlabel("epoch", fontsize=8.5)
        axes.tick_params(axis="both", length=3, width=0.6)
        _legend(axes, 0.0)
        return _inline(figure, "pw", "Waits by epoch")


def _inline(figure: Figure, key: str, title: str) -> str:
    """The figure as an SVG element: sizes left to the page, colours to its variables, names of its own."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", rf'<svg viewBox="\1" role="img" aria-label="{title}">', text)
    text = re.sub(r' id="([^"]*)"', rf' id="{key}-\1"', text)
    text = text.replace("url(#", f"url(#{key}-").replace('xlink:href="#', f'href="#{key}-')
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, f"var({variable})")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    return text.strip()
