"""The lanes of loads: each load is on a lane (`policy/choice.py`), which notes when the load begins and ends.

The caller holds its own lock. A load costs some look-ups and additions here; a file that is staged already, none.
"""

from __future__ import annotations

from collections.abc import Callable

from nopfsfs.performance.defaults import DEFAULTS
from nopfsfs.policy.choice import ExpectedLanes, FetchChoice, Rerouted
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.stager.load import Load

_REROUTED = {
    Rerouted.SLOW: Metric.REROUTED_SLOW, Rerouted.DOWN: Metric.REROUTED_DOWN, Rerouted.HEDGED: Metric.FETCHES_HEDGED,
}  # fmt: skip


class LoadLanes:
    """The lanes of all loads. `clock`: seconds; `lead()`: seconds until the reader is at the files that are fetched
    now, as far as known. `expected`: of lanes that were not seen yet."""

    def __init__(
        self, metrics: memoryview, clock: Callable[[], float], *, lead: Callable[[], float] = lambda: 0.0,
        expected: ExpectedLanes | None = None,
    ) -> None:  # fmt: skip
        self._metrics, self._clock, self._lead = metrics, clock, lead
        self._choice = FetchChoice(expected or ExpectedLanes.of(DEFAULTS), clock, self._count)

    def _count(self, why: Rerouted) -> None:
        self._metrics[_REROUTED[why]] += 1

    # ---- the choice ---------------------------------------------------------------------------------------

    def reads_copy(self, size: int, disk: int, *, prefetch: bool) -> bool:
        """True when the copy on a disk tier is to be read, and not the source; `prefetch`: no reader waits."""
        lane = self._choice.disk(disk)
        return self._choice.choose((lane,), size, self._lead() if prefetch else None) is lane

    def asks(self, size: int, node: int, *, prefetch: bool) -> bool:
        """True when the node where a file lives is to be asked for it, and the source is not to be read."""
        lane = self._choice.peer(node)
        return self._choice.choose((lane,), size, self._lead() if prefetch else None, foreign=True) is lane

    def is_down(self, node: int) -> bool:
        """True while a node does not answer."""
        return self._choice.peer(node).down

    # ---- loads --------------------------------------------------------------------------------------------

    def begin(self, load: Load) -> None:
        """Note that a load begins, or goes on from another place."""
        self.end(load)
        if load.from_peer is not None:
            load.lane = self._choice.peer(load.from_peer)
        else:
            load.lane = self._choice.disk(load.from_disk) if load.from_disk else self._choice.source
        self._choice.begin(load.lane, load.length)

    def end(self, load: Load, took: float | None = None) -> None:
        """Note that a load has ended, or that its place is not what it waits for. `took`: the seconds in which it was
        read at once. A copy on disk that was of no use says nothing of the disk."""
        lane, load.lane = load.lane, None
        if lane is not None:
            useless = load.origin() == Origin.SOURCE and lane is not self._choice.source
            self._choice.end(lane, load.length, None if useless else took, demand=not load.prefetch)

    def block_read(self, size: int, took: float) -> None:
        """Take in a block that was read from the source, one of several of its file."""
        self._choice.source.see(size, took, self._clock())

    def source_failed(self) -> None:
        """Note that a read of the source has failed."""
        self._choice.source_failed()

    def source_hangs(self, by: int) -> None:
        """Note that one more read of the source hangs, or (-1) that one of these has ended."""
        self._choice.source_hangs(by)

    # ---- nodes --------------------------------------------------------------------------------------------

    def answered(self, node: int) -> None:
        """Note that a node has answered, whatever it said."""
        self._choice.peer(node).answered()

    def answered_late(self, load: Load, node: int, took: float) -> None:
        """Note that a node has brought a file for which its reader did not wait any more, after so many seconds."""
        lane = self._choice.peer(node)
        lane.answered()
        lane.see(load.length, took, self._clock(), demand=not load.prefetch)

    def late(self, node: int, began: float) -> None:
        """Note that a node did not answer within the limit of a request that began then."""
        self._choice.peer(node).unanswered(self._clock(), since=began)

    def hedge_after(self, load: Load, node: int, *, coming: bool, sending: bool) -> float:
        """Seconds after which the answer of a node is late for a reader; `coming`: the node reads the file; `sending`:
        it sends it."""
        return self._choice.hedge_after(self._choice.peer(node), load.length, coming=coming, sending=sending)

    def hedges(self, node: int, *, again: bool, coming: bool) -> bool:
        """Note that the answer of a node is late for a reader; True when the source is to be read. `again`: it was late
        before; `coming`: the node reads the file."""
        return self._choice.hedges(self._choice.peer(node), again=again, coming=coming)
