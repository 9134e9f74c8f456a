"""The copies of files that servers and kernel find in the columns: in the arena, on disk, registered with the kernel.

Owns the columns `tier`, `disk` and `backing` with their events, once `WholeLoads` has published a staged copy.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from nopfsfs.protocol.columns import Columns, Metric, Tier
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.passthrough_copies import PassthroughCopies
from nopfsfs.tiers.source import Source


class PinnedCopy(NamedTuple):
    """The staged bytes of a row, and their extent, which is not used again before it is unpinned."""

    slot: int
    data: memoryview


class PublishedCopies:
    """Publishes and withdraws copies. `registered`: those on disk that the kernel reads itself. The caller
    holds its own lock."""

    def __init__(
        self, pool: ExtentPool, registered: PassthroughCopies | None, *, columns: Columns, ring: Ring, source: Source,
        metrics: memoryview,
    ) -> None:  # fmt: skip
        self._pool, self._registered = pool, registered
        self._columns, self._ring, self._source, self._metrics = columns, ring, source, metrics
        if registered is not None:
            for action in registered.take_over():
                pool.grace.after(action)

    def pin(self, row: int) -> PinnedCopy | None:
        """Pin the staged copy of a row; None when the row is not staged."""
        if int(self._columns.tier[row]) != Tier.RAM:
            return None
        slot = int(self._columns.slot[row])
        self._pool.pin(slot)
        return PinnedCopy(slot, self._pool.view(slot, self._source.size(row)))

    def evict(self, row: int) -> bool:
        """Withdraw the staged copy of a row, pinned or not; False when there was none."""
        if int(self._columns.tier[row]) != Tier.RAM:
            return False
        self._columns.tier[row] = Tier.NONE
        self._pool.retire(int(self._columns.slot[row]))
        self._metrics[Metric.EVICTIONS] += 1
        self._ring.put(Event.EVICTED, row, self._source.size(row))
        return True

    def publish_disk(self, row: int, tier: int, version: int) -> bool:
        """Publish a copy on disk tier `tier`; False when the row has changed since it was written."""
        if self._columns.version[row] != version or self._columns.stale[row]:
            return False
        self._columns.disk[row] = tier
        self._ring.put(Event.ON_DISK, row, tier)
        return True

    def adopt_disk(self, row: int, tier: int, check: int) -> bool:
        """Publish a copy that another mount has left on disk tier `tier`, but put no event. False where it is not used:
        there is one, the row is being forgotten, or other bytes were staged of it."""
        columns = self._columns
        if columns.disk[row] or columns.stale[row] or columns.check[row] not in (0, check):
            return False
        columns.check[row] = check
        columns.disk[row] = tier
        return True

    def report_on_disk(self, rows: list[int], tier: int) -> None:
        """Put the events of copies that were adopted, and are still there."""
        for row in rows:
            if self._columns.disk[row] == tier:
                self._ring.put(Event.ON_DISK, row, tier)

    def publish_backing(self, row: int, tier: int, number: int) -> bool:
        """Publish that the copy on disk tier `tier` is registered as `number`; False when there is no such copy any
        more."""
        if self._columns.disk[row] != tier or self._columns.version[row] or self._columns.stale[row]:
            return False
        self._columns.backing[row] = number
        self._ring.put(Event.BACKED, row, 1)
        return True

    def withdraw_disk(self, row: int, tier: int | None = None) -> int:
        """Withdraw the copy on disk, on any tier or only on `tier`; the tier that holds it, 0 for none."""
        number = int(self._columns.disk[row])
        if tier is not None and number != tier:
            return 0
        self._columns.disk[row] = 0
        if self._registered is not None and self._registered.withdraw(row):
            self._pool.grace.after(partial(self._registered.grace_passed, row))
        return number


class AdoptedCopies:
    """Publishes copies that another mount has left, in any thread. `lock`: under which `copies` are used."""

    def __init__(self, lock: AbstractContextManager[object], copies: PublishedCopies) -> None:
        self._lock, self._copies = lock, copies

    def adopt(self, rows: list[int], tier: int, checks: list[int]) -> list[int]:
        """Publish copies that another mount has left on disk tier `tier`; return the rows of which none is used."""
        with self._lock:
            found = zip(rows, checks, strict=True)
            return [row for row, check in found if not self._copies.adopt_disk(row, tier, check)]

    def report(self, rows: list[int], tier: int) -> None:
        """Put the events of copies that were adopted."""
        with self._lock:
            self._copies.report_on_disk(rows, tier)
