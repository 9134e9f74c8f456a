"""A picture of what the demo measured: seconds of each epoch on the source, through the mount, on a local copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from demo_result import EPOCHS, LOCAL, MOUNT, SOURCE, Job
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Colours of Okabe and Ito, for any kind of colour vision, and grey.
BARS = {SOURCE: ("directly from the slow source", "#D55E00"), MOUNT: ("through nopfsfs", "#0072B2"),
        LOCAL: ("from a local copy in memory", "#A9A9A9")}  # fmt: skip
TITLES = {"bytes": "Reading {} files", "sums": "Reading {} files", "decode": "Reading and decoding {} JPEG files"}
BAR_WIDTH, GAP = 0.27, 0.02  # of the distance between two epochs
SIZE, DOTS_PER_INCH = (10.0, 4.4), 150  # inches
INK = "#333333"
FORMAT: Any = {  # matplotlib has a type of its own for the keys
    "font.size": 10.5, "text.color": INK, "xtick.color": INK, "axes.edgecolor": "#999999",
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
}  # fmt: skip


def save(path: Path, jobs: Sequence[Job]) -> None:
    """Write the picture as PNG, a panel for each job. The same figures give the same file."""
    with mpl.rc_context(FORMAT):
        figure = Figure(figsize=SIZE, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12))
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(jobs), squeeze=False)[0]
        for axes, job in zip(panels, jobs, strict=True):
            draw(axes, job)
        figure.suptitle("Seconds per epoch of one PyTorch training job: less is better", weight="bold", size=13)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def draw(axes: Axes, job: Job) -> None:
    """Draw a group of bars for each epoch, the seconds above each bar."""
    seconds = job.seconds()
    for place, (row, (label, colour)) in enumerate(BARS.items()):
        at = [epoch + (place - 1) * BAR_WIDTH for epoch in range(EPOCHS)]
        bars = axes.bar(at, seconds[row], BAR_WIDTH - GAP, label=label, color=colour)
        axes.bar_label(bars, [f"{value:.1f}" if value >= 10 else f"{value:.2f}" for value in seconds[row]], padding=2)
    later = sum(seconds[SOURCE][1:]) / sum(seconds[MOUNT][1:])
    title = TITLES[job.mode].format(f"{job.files:,}")
    times = f"{later:.0f}" if later >= 10 else f"{later:.1f}"
    axes.set_title(f"{title}\nlater epochs: {times} times as fast as the source", size=11)
    axes.set_xticks(range(EPOCHS), [f"epoch {number + 1}" for number in range(EPOCHS)])
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.margins(y=0.08)
