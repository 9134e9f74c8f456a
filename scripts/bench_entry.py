"""One line of the benchmarks' table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A named result: the median of its runs."""

    name: str
    value: float
    unit: str
    runs: Sequence[float]


def median_entry(name: str, unit: str, runs: Sequence[float]) -> Entry:
    return Entry(name, statistics.median(runs), unit, list(runs))
