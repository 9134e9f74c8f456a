"""Opens that show while OPEN is refused: as LOOKUPs of tripwires, or as LOOKUPs and GETATTRs of all files.

The supervisor says in `Metric.SHOWN` which opens are to show (`protocol/tripwires.py`). Each open that shows goes into
the ring: as one that is answered, or as one of a tripwire while these alone show.
"""

from __future__ import annotations

import stat

from nopfsfs.protocol.columns import Metric, MetricBlock
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.vfs.tree import Attributes

Timeout = tuple[int, int]  # seconds, nanoseconds
FOREVER_S = 1_000_000_000  # timeouts of names and attributes: the tree does not change while mounted
FOREVER: Timeout = (FOREVER_S, 0)
# Attributes, where the kernel is to ask for them at each open: it asks at each read, too. A thread that opens the file
# again within that time is not seen.
_FOR_A_MOMENT: Timeout = (0, 20_000_000)
_NOT_AT_ALL: Timeout = (0, 0)
_THREADS_MOST = 4096  # whose last open is kept
# Bound once: looking a member of an enumeration up costs as much as counting.
_ALL, _OF_TRIPWIRES = int(Shown.ALL), int(Shown.TRIPWIRES)
_SHOWN, _TRIPWIRES_APART, _PUSHER_THREAD = (
    int(Metric.SHOWN), int(Metric.TRIPWIRES_APART), int(Metric.PUSHER_THREAD),
)  # fmt: skip
_AS_OPEN = int(Metric.OPENS), int(Metric.OPENED_BYTES), int(Event.OPEN)
_AS_TRIPWIRE = int(Metric.TRIPWIRES), int(Metric.TRIPWIRE_BYTES), int(Event.TRIPWIRE)


class ShownOpens:
    """Counts the opens that show, and says how long the kernel may know a name or attributes."""

    def __init__(
        self, metrics: MetricBlock, stager_metrics: MetricBlock, supervisor_metrics: MetricBlock, ring: Ring,
        tripwires: Tripwires | None,
    ) -> None:  # fmt: skip
        """`tripwires`: the files whose names the kernel is not to know, until the supervisor says how many are."""
        self._metrics, self._stager_metrics = metrics.block, stager_metrics.block
        self._supervisor_metrics = supervisor_metrics.block
        self._ring = ring
        self._tripwires = tripwires
        self._last: dict[int, int] = {}  # by thread: the row of its open that was shown last

    @property
    def refusing(self) -> bool:
        """True while OPEN is refused, so that the kernel opens files by itself."""
        return self._supervisor_metrics[_SHOWN] != 0

    def looked_up(self, row: int, attributes: Attributes, pid: int) -> tuple[Timeout, Timeout]:
        """Show a LOOKUP that may be an open. Return how long the kernel may know the name, and the attributes."""
        known_for = FOREVER
        shown = self._supervisor_metrics[_SHOWN]  # first: the supervisor says before it how many are tripwires
        tripwire = self._is_tripwire(row)
        if shown and stat.S_ISREG(attributes.mode):
            known_for = self._show(row, attributes.size, pid, shown, tripwire=tripwire)
        return _NOT_AT_ALL if tripwire else FOREVER, known_for

    def looked_at(self, row: int, attributes: Attributes, pid: int, *, is_open: bool) -> Timeout:
        """Show a GETATTR that may be an open. Return how long the kernel may know the attributes. `is_open`: the
        GETATTR is about a descriptor."""
        shown = self._supervisor_metrics[_SHOWN]
        if shown <= _OF_TRIPWIRES or not stat.S_ISREG(attributes.mode):
            return FOREVER
        # An fstat does not say that the file is open: a late one looks like an open.
        if is_open or self._last.get(pid) == row:
            return _FOR_A_MOMENT
        return self._show(row, attributes.size, pid, shown, tripwire=False)

    def refused(self, row: int, size: int, pid: int) -> None:
        """Show the first OPEN that is refused; after it the kernel sends none. A LOOKUP while OPEN was still answered
        did not show it; one that this server answered after that did."""
        if self._is_tripwire(row) and self._last.get(pid) != row:
            self._show(row, size, pid, self._supervisor_metrics[_SHOWN], tripwire=True)

    def known_for_s(self, row: int, *, is_file: bool) -> tuple[int, int]:
        """The seconds for which the kernel may know the name, and the attributes, of an entry of a listing."""
        attributes_vary = is_file and self._supervisor_metrics[_SHOWN] > _OF_TRIPWIRES
        return 0 if self._is_tripwire(row) else FOREVER_S, 0 if attributes_vary else FOREVER_S

    def _show(self, row: int, size: int, pid: int, shown: int, *, tripwire: bool) -> Timeout:
        """Count what may be an open, if it is to show. Return how long the kernel may know the attributes."""
        if pid == self._stager_metrics[_PUSHER_THREAD] != 0:
            return _NOT_AT_ALL if shown > _OF_TRIPWIRES else FOREVER  # or a reader right after it would not show
        if shown == _ALL or tripwire:
            files, size_of, kind = _AS_OPEN if shown == _ALL else _AS_TRIPWIRE
            self._metrics[files] += 1
            self._metrics[size_of] += size
            self._ring.put(kind, row, pid)
            if len(self._last) >= _THREADS_MOST:
                self._last.clear()
            self._last[pid] = row
        return _FOR_A_MOMENT if shown > _OF_TRIPWIRES else FOREVER

    def _is_tripwire(self, row: int) -> bool:
        tripwires = self._tripwires
        if tripwires is None:
            return False
        apart = self._supervisor_metrics[_TRIPWIRES_APART]
        if apart and apart != tripwires.apart:
            self._tripwires = tripwires = Tripwires(tripwires.first, tripwires.n, apart=apart)
        return row in tripwires
