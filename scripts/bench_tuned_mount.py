"""The tuner of a real mount, over the best of fixed limits in the same run: a mount of the slow source, with each of
three throughput curves.

    make bench BENCH='tuner/mount/*'

The mount goes on while limits change, and the source does the same in each measurement. An earlier mount has seen what
the idle source is. The tuner's turn comes between two drains: those cost 1 to 2 %, which is not in the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import tuned_mounts
from bench_entry import Entry, median_entry
from lab import Progress
from tuned_mounts import CURVES

from nopfsfs.sim.tuning.rivals import FixedLimit

FIXED = (4, 8, 16, 32, 64, 128)
ROUNDS = 2
SETTLE_S, OWN_SETTLE_S, MEASURE_S = 2.0, 8.0, 6.0


def entries(curve: str) -> Iterator[Entry]:
    """tuner/mount/<curve>/share_of_best, and what it is made of: shares of the most that the source can give, and the
    reads under way."""
    fixed: dict[int, list[float]] = {limit: [] for limit in FIXED}
    own, under_way = [], []
    with tuned_mounts.laboratory(CURVES[curve], 1) as room, Progress(ROUNDS * (len(FIXED) + 1)) as progress:
        for _ in range(ROUNDS):
            for limit in FIXED:
                progress.doing(f"{curve}: {limit}")
                fixed[limit].append(room.measure(1, partial(FixedLimit, limit), SETTLE_S, MEASURE_S).share)
                progress.step()
            progress.doing(f"{curve}: the tuner")
            found = room.measure(1, None, OWN_SETTLE_S, MEASURE_S)
            own.append(found.share)
            under_way.append(found.under_way)
            progress.step()
    best = max(statistics.median(shares) for shares in fixed.values())
    prefix = f"tuner/mount/{curve}"
    yield median_entry(f"{prefix}/share_of_best", "", [share / best for share in own])
    yield median_entry(f"{prefix}/share", "", own)
    yield median_entry(f"{prefix}/under_way", "", under_way)
    for limit, shares in fixed.items():
        yield median_entry(f"{prefix}/fixed_{limit}/share", "", shares)
