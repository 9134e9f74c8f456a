"""The figures of the tuner's trials that are printed and tested, and what the tuner's must reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import changing_source
import numpy as np

from nopfsfs.sim.tuning import trials
from nopfsfs.sim.tuning.trials import Figures

FAR = 0.05  # a rival is better by more than this part: the table marks it
_LESS_IS_BETTER = {"seconds to 90 %", "regret", "p99", "under way"}


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a trial at a source; the tuner's median is at least `least` and at most `most`, and at least
    `over_fixed` times that of a fixed 64."""

    title: str
    trial: Callable[[str, str, int], Figures]
    source: str
    figure: str
    least: float = -math.inf
    most: float = math.inf
    over_fixed: float = 0.0

    def holds(self, value: float, fixed: float = 0.0) -> bool:
        """`fixed`: the same figure of a fixed 64, where it is known."""
        over = not self.over_fixed or value >= self.over_fixed * fixed
        return over and self.least <= value <= self.most

    @property
    def is_cost(self) -> bool:
        """True when whoever gets little has little of it, so that only equals can be compared."""
        return self.figure in ("p99", "under way")

    def is_better(self, value: float, other: float) -> bool:
        """True when a rival's `value` is better than `other` by far."""
        if self.figure in _LESS_IS_BETTER:
            return value < other * (1 - FAR) - 0.005
        return value > other * (1 + FAR) + 0.005


ALONE = (
    Column("wide: s to 90 % of best", trials.alone, "wide", "seconds to 90 %", most=5.0),
    Column("wide: regret", trials.alone, "wide", "regret"),
    Column("wide: share", trials.alone, "wide", "share", least=0.92),
    Column("p99", trials.alone, "wide", "p99"),
    Column("under way", trials.alone, "wide", "under way", most=1.3 * trials.SOURCES["wide"].knee()),
    Column("small: share", trials.alone, "small", "share", least=0.92),
    Column("p99", trials.alone, "small", "p99"),
    Column("smooth: share", trials.alone, "smooth", "share", least=0.75),
    Column("p99", trials.alone, "smooth", "p99"),
    Column("wide, a third of the bandwidth for 40 s: regret", changing_source.step, "wide", "regret", most=0.10),
    Column("wide, requests 3 x longer: share later", changing_source.slower, "wide", "share later", least=0.85),
    Column("wide, beside 200 reads of others: share", changing_source.beside, "wide", "share"),
)
COMPANY = tuple(
    Column(f"{source}: {figure}", trials.company, source, figure, **bar)
    for source, share, p99, times in (("wide", 0.90, 4.0, 1.6), ("small", 0.60, 8.0, 6.0), ("smooth", 0.72, 6.0, 0.0))
    for figure, bar in (
        ("jain", {"least": 0.95}), ("share", {"least": share, "over_fixed": times}), ("p99", {"most": p99})
    )
)  # fmt: skip
CLOCKS = tuple(
    Column(f"{source}: {figure}", trials.any_clocks, source, figure, **bar)
    for source in trials.SOURCES
    for figure, bar in (("jain", {}), ("share", {"over_fixed": 1.0}), ("p99", {}))
)  # fmt: skip

Key = tuple[Callable[[str, str, int], Figures], str]


def medians(found: Mapping[Key, Sequence[Figures]], columns: Sequence[Column]) -> list[float]:
    """The median of each column's figure, from the figures of each trial and source."""
    return [
        float(np.median([figures[column.figure] for figures in found[column.trial, column.source]]))
        for column in columns
    ]  # fmt: skip
