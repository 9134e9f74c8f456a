"""Requests under way at the source, and reads of copies on disk: how many there are, and how many there may be.

A demand needs no slot. A prefetch of the source needs one: there are as many as the limit leaves beside the demands
under way, and at least one. A prefetch of a copy on disk needs one of another kind, so that neither the source nor a
disk waits for the other. The caller holds its own lock. Integrals and counts are metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.source_metrics import begin_counting, count_ended
from nopfsfs.tiers.source_bandwidth import SourceBandwidth

DISK_SLOTS = 16  # prefetches of copies on disk at once
_UNDER_WAY, _DEMANDS, _UNDER_WAY_NS, _WAITED_NS = (
    int(Metric.UNDER_WAY), int(Metric.DEMANDS_UNDER_WAY), int(Metric.UNDER_WAY_NS), int(Metric.SLOTS_WAITED_NS),
)  # fmt: skip


class ReadLane(IntEnum):
    """The kind of a read: what it reads, and whether anybody waits for it."""

    PREFETCH = 0  # of the source
    DEMAND = 1  # of the source
    DISK_PREFETCH = 2
    DISK_DEMAND = 3


# Bound once: each request begins and ends, and looking a member of an enumeration up costs as much as counting it.
PREFETCH, DEMAND, DISK_PREFETCH, DISK_DEMAND = ReadLane


class SourceSlots:
    """Counts reads that begin and end. `limit`: requests under way at the source. `clock`: seconds.

    `free`: slots for prefetches of the source that are free; none, or fewer, after the limit has fallen.
    `free_of_disk`: those for prefetches of copies on disk.
    """

    def __init__(self, limit: int, metrics: memoryview, clock: Callable[[], float]) -> None:
        self.limit, self._metrics, self._clock = limit, metrics, clock
        self._bandwidth = SourceBandwidth(clock)
        self._under_way = [0] * len(ReadLane)
        self._waits = False  # a prefetch of the source waits for a slot
        self._counted = self._marked = clock()
        self.free, self.free_of_disk = max(1, limit), DISK_SLOTS
        begin_counting(metrics)
        metrics[_UNDER_WAY] = metrics[_DEMANDS] = 0
        metrics[Metric.SOURCE_LIMIT], metrics[Metric.SOURCE_BANDWIDTH] = limit, 0

    def set_limit(self, limit: int) -> None:
        """Change the limit. What is under way ends by itself."""
        self.limit = self._metrics[Metric.SOURCE_LIMIT] = limit
        self.free = max(1, limit - self._under_way[DEMAND]) - self._under_way[PREFETCH]

    @property
    def bandwidth(self) -> int:
        """Bytes a second that are read from the source at most; 0: as many as there are."""
        return self._bandwidth.rate

    @bandwidth.setter
    def bandwidth(self, rate: int) -> None:
        self._bandwidth.rate = self._metrics[Metric.SOURCE_BANDWIDTH] = rate

    @property
    def rest_s(self) -> float:
        """Seconds until the bandwidth lets a prefetch of the source begin; 0: now."""
        return self._bandwidth.rest_s

    @property
    def ready(self) -> int:
        """Prefetches of the source that may begin now."""
        return 0 if self._bandwidth.rest_s else self.free

    def begin(self, lane: ReadLane, size: int = 0) -> None:
        """Note that a read of `size` bytes begins."""
        self._change(lane, 1)
        if lane is PREFETCH or lane is DEMAND:
            self._bandwidth.take(size)

    def end(self, lane: ReadLane) -> None:
        """Note that a read has ended, or counts no more."""
        self._change(lane, -1)

    def wait(self, does: bool) -> None:
        """Note whether any prefetch of the source waits to begin."""
        waits = does and self.free <= 0
        if waits is not self._waits:
            self.count()
            self._waits = waits

    def count(self) -> None:
        """Bring the integrals up to date."""
        now = self._clock()
        passed = int(1e9 * (now - self._counted))
        self._counted = now
        metrics = self._metrics
        metrics[_UNDER_WAY_NS] += passed * metrics[_UNDER_WAY]
        if self._waits:
            metrics[_WAITED_NS] += passed

    def mark(self) -> None:
        """Count only requests as young that begin from now on."""
        self._marked = self._clock()

    def ended_well(self, size: int, took_ns: int, began: float) -> None:
        """Count a request of `size` bytes at the source; `began`: by the clock."""
        count_ended(self._metrics, size, took_ns, young=began >= self._marked)

    def _change(self, lane: ReadLane, by: int) -> None:
        under_way = self._under_way
        under_way[lane] += by
        if lane >= DISK_PREFETCH:
            self.free_of_disk = DISK_SLOTS - under_way[DISK_PREFETCH]
            return
        self.count()
        self._metrics[_UNDER_WAY] += by
        self._metrics[_DEMANDS] = under_way[DEMAND]
        self.free = max(1, self.limit - under_way[DEMAND]) - under_way[PREFETCH]
