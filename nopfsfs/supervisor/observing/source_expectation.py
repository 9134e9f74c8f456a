"""Rate that the source is expected to give, by what its requests have brought so far: for the history of a mount.

A request brings so many bytes in each second in which it is under way. With as many requests as the limit allows, the
source brings that many times as much (Little's law). Less is read where the mount asks for less, or a cap holds it
back. So the figure says whether the source was the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.protocol.columns import Metric

KEPT = 0.8  # of what was counted before, for each further row: some five seconds count

MetricValues = NDArray[np.int64] | Sequence[int] | memoryview  # by Metric


class SourceExpectation:
    """Sees the metrics of the stager once for each row. `metrics` is read only."""

    def __init__(self, metrics: MetricValues) -> None:
        self._metrics = metrics
        self._bytes = self._request_ns = 0.0  # of the last seconds in which the source was read
        self._before = self._counted()

    def _counted(self) -> tuple[int, int, int]:
        """Bytes that were read, the integral of the requests under way, and the time in which a slot was waited for."""
        metrics = self._metrics
        names = (Metric.SOURCE_READ_BYTES, Metric.UNDER_WAY_NS, Metric.SLOTS_WAITED_NS)
        return tuple(int(metrics[name]) for name in names)  # type: ignore[return-value]

    def observe(self, seconds: float) -> float:
        """Take in what was counted since the last call, `seconds` ago. Return the share of that time, 0 to 1, in which
        a slot was waited for."""
        now = self._counted()
        size, request_ns, waited_ns = (max(0, new - old) for new, old in zip(now, self._before, strict=True))
        self._before = now
        if request_ns:
            self._bytes = KEPT * self._bytes + size
            self._request_ns = KEPT * self._request_ns + request_ns
        return min(1.0, waited_ns / 1e9 / max(seconds, 1e-3))

    def at(self, limit: float | None) -> float:
        """Bytes a second with `limit` requests under way; NaN where nothing was read yet, or there is no limit."""
        return limit * 1e9 * self._bytes / self._request_ns if limit and self._request_ns else math.nan
