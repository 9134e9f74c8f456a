"""The tuner of the limit of requests at shared sources, in virtual time: alone, and with others.

tuner/{wide,small,smooth}/{share_of_best,seconds_to_90,demand_p99} of a lone mount, and fair/{2,8}/{jain,share_of_best}
of mounts that come one after another to the wide source. docs/tuner.md describes the sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench_entry import Entry, median_entry

from nopfsfs.sim.tuning import trials
from nopfsfs.sim.tuning.trials import OURS

SEEDS = range(1, 6)
SOURCES = tuple(trials.SOURCES)
COMPANIES = (2, 8)
_ALONE = {"share_of_best": ("share", ""), "seconds_to_90": ("seconds to 90 %", "s"), "demand_p99": ("p99", "x")}


def alone_entries(source: str) -> Iterator[Entry]:
    """tuner/<source>/{share_of_best,seconds_to_90,demand_p99}; the last over that of an idle source."""
    found = [trials.alone(OURS, source, seed) for seed in SEEDS]
    for name, (figure, unit) in _ALONE.items():
        yield median_entry(f"tuner/{source}/{name}", unit, [figures[figure] for figures in found])


def company_entries(mounts: int) -> Iterator[Entry]:
    """fair/<mounts>/{jain,share_of_best}."""
    found = [trials.company(OURS, "wide", seed, mounts=mounts) for seed in SEEDS]
    for name, figure in (("jain", "jain"), ("share_of_best", "share")):
        yield median_entry(f"fair/{mounts}/{name}", "", [figures[figure] for figures in found])
