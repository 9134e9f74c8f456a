"""Metrics of the requests at the source: the stager counts, the supervisor reads.

Counts and durations lie in sums that have to agree with each other. The stager makes `ENDED_STEP` odd while it changes
them, so that a reader never takes a count without its duration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nopfsfs.protocol.columns import SIZE_CLASSES, Metric

FRACTION = 1 << 16  # of a sum of log2 ns
SIZE_NAMES = ("4K", "16K", "64K", "256K", "1M", "4M", "more")  # of the size classes: bytes of their largest request
READS_MOST = 8  # tries of a reader that meets a change
_ENDED, _ENDED_LOG2, _YOUNG_ENDED, _YOUNG_LOG2, _STEP = (
    int(Metric.ENDED), int(Metric.ENDED_LOG2), int(Metric.YOUNG_ENDED), int(Metric.YOUNG_LOG2), int(Metric.ENDED_STEP),
)  # fmt: skip


def size_class(size: int) -> int:
    """The class of a request of that many bytes."""
    return min(SIZE_CLASSES - 1, ((max(size, 1) - 1 >> 12).bit_length() + 1) // 2)


def begin_counting(metrics: memoryview) -> None:
    """Make the sums readable that a stager left which died while it changed them."""
    metrics[_STEP] += metrics[_STEP] % 2


def count_ended(metrics: memoryview, size: int, took_ns: int, *, young: bool) -> None:
    """Count a request that ended well; `young`: it began since the last mark. The caller is the one writer."""
    at, log2 = size_class(size), int(math.log2(max(took_ns, 1)) * FRACTION)
    metrics[_STEP] += 1
    metrics[_ENDED + at] += 1
    metrics[_ENDED_LOG2 + at] += log2
    if young:
        metrics[_YOUNG_ENDED + at] += 1
        metrics[_YOUNG_LOG2 + at] += log2
    metrics[_STEP] += 1


@dataclass(frozen=True, slots=True)
class EndedSums:
    """Requests that ended well and the sums of log2 of their durations in ns, both by size class; and the same of the
    young ones."""

    ended: tuple[int, ...]
    log2_ns: tuple[float, ...]
    young_ended: tuple[int, ...]
    young_log2_ns: tuple[float, ...]


def read_ended(metrics: memoryview) -> EndedSums | None:
    """The sums of one moment; None where the stager changes them at every look."""
    for _ in range(READS_MOST):
        before = metrics[_STEP]
        sums = metrics[_ENDED:_STEP].tolist()
        if before % 2 == 0 and metrics[_STEP] == before:
            parts = [sums[at : at + SIZE_CLASSES] for at in range(0, len(sums), SIZE_CLASSES)]
            ended, log2, young, young_log2 = parts
            return EndedSums(
                tuple(ended), tuple(one / FRACTION for one in log2), tuple(young),
                tuple(one / FRACTION for one in young_log2),
            )  # fmt: skip
    return None
