#!/usr/bin/env python3
"""Draw docs/tuner-alone.png and docs/tuner-company.png: limits and throughput over time, in virtual time.

python scripts/tuner_picture.py [DIRECTORY]     a quarter of a minute; needs matplotlib (the extra demo or plot)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nopfsfs.sim.plot import COLOURS
from nopfsfs.sim.tuning import trials
from nopfsfs.sim.tuning.contest import BIN, Contest, ContestResult
from nopfsfs.sim.tuning.shared_source import SourceChange
from nopfsfs.sim.tuning.simulated_mount import MountSpec
from nopfsfs.sim.tuning.trials import OURS, SOURCES

DOCS = Path(__file__).resolve().parent.parent / "docs"
FORMAT: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
WHO = (OURS, "fixed 64", "PRISMA", "AIMD", "gradient2")
SEED, DOTS_PER_INCH = 1, 110
ALONE_SECONDS, COMPANY_SECONDS = 200.0, 150.0
CHANGES = [SourceChange(40.0, bandwidth=1 / 3), SourceChange(80.0), SourceChange(125.0, slower=3.0)]


def contest(who: str, source: str, mounts: int, seconds: float, changes: list[SourceChange]) -> ContestResult:
    made = trials.policies(who, SOURCES[source], SEED, mounts)
    specs = [MountSpec(policy, joins=trials.JOIN_SECONDS * at) for at, policy in enumerate(made)]
    return Contest(SOURCES[source], specs, seconds, changes).run(SEED)


def alone() -> Figure:
    """A lone mount at the wide source, which gives less for a while and becomes slower in the end."""
    figure, (above, below) = _figure(2)
    for number, who in enumerate(WHO):
        result = contest(who, "wide", 1, ALONE_SECONDS, CHANGES)
        style: Any = {"color": COLOURS[number], "label": who, "linewidth": 1.8 if who == OURS else 1.0}
        _draw_limit(above, result, 0, **style)
        rates = np.diff(result.ended.sum(axis=1)) / BIN
        below.plot(np.arange(1, len(rates) - 2) * BIN, np.convolve(rates, np.ones(4) / 4, "valid"), **style)
    _draw_best(below)
    above.set_ylabel("limit")
    below.set_ylabel("requests a second")
    below.set_xlabel("seconds: a third of the bandwidth from 40 to 80, requests 3 times longer from 125 on")
    figure.legend(*below.get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=6)
    return figure


def _draw_best(axes: Axes) -> None:
    """The most that the source can give, by the changes."""
    curve = SOURCES["wide"]
    states = [SourceChange(0.0), *CHANGES]
    bests = [state.changed(curve).best / state.slower for state in states]
    axes.step([*(state.at for state in states), ALONE_SECONDS], [*bests, bests[-1]], "k--", where="post", label="best")


def company() -> Figure:
    """Eight mounts that come to the wide source one each four seconds: ours, and two rivals."""
    figure, rows = _figure(3)
    for axes, who in zip(rows, (OURS, "AIMD", "gradient2"), strict=True):
        result = contest(who, "wide", 8, COMPANY_SECONDS, [])
        for mount in range(8):
            _draw_limit(axes, result, mount, color=COLOURS[mount % len(COLOURS)], linewidth=1.0)
        shares = result.jain(90.0, 150.0), result.share_of_best(90.0, 150.0), result.demand_p99(90.0, 150.0)
        axes.set_title("{}: Jain {:.2f}, {:.2f} of best, p99 of demands {:.1f} x idle".format(who, *shares), fontsize=9)
        axes.set_ylabel("limit of each")
    rows[-1].set_xlabel("seconds")
    return figure


def _draw_limit(axes: Axes, result: ContestResult, mount: int, **style: Any) -> None:
    decisions = result.histories[mount].decisions
    axes.step([at for at, _, _ in decisions], [limit for _, limit, _ in decisions], where="post", **style)


def _figure(rows: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.0, 2.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, 1, sharex=True))


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    with mpl.rc_context(FORMAT):
        for name, draw in (("tuner-alone.png", alone), ("tuner-company.png", company)):
            draw().savefig(directory / name, dpi=DOTS_PER_INCH, metadata={"Software": None})


if __name__ == "__main__":
    main()
