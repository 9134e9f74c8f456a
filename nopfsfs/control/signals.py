"""How the reader is followed: by its opens, or, once the kernel opens files by itself, by tripwires.

To refuse OPEN cannot be taken back, and every open is seen before. So `auto` does so only when all that is read follows
plans that have held for a while, and nothing that stays in memory would have to be replaced; `tripwire` does from the
first.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from nopfsfs.plan.follow import Follower
from nopfsfs.plan.showing import Showing
from nopfsfs.policy.conductor import Conductor
from nopfsfs.tiers.columns import Gauge
from nopfsfs.tiers.tripwires import Tripwires

log = logging.getLogger(__name__)


class Signal:
    """`how`: open, tripwire, auto. `sizes` i64[n]: of the files. `gauge`: the supervisor's block, in which the servers
    are told."""

    def __init__(self, how: str, tripwires: Tripwires, sizes: npt.NDArray[np.int64], gauge: memoryview) -> None:
        self._gauge = gauge
        self._auto = how == "auto"
        self._showing: Showing | None = None
        if how == "open" and not self.refusing:
            return
        mask = tripwires.mask()
        self._showing = Showing(mask, tripwires.apart)
        files = sizes[tripwires.first :]
        self._files = len(files) / max(1, int(np.count_nonzero(mask)))
        self._bytes = float(files.sum()) / max(1, int(sizes[mask].sum()))
        if how == "tripwire":
            gauge[Gauge.REFUSING] = 1

    @property
    def tripwires(self) -> bool:
        """Whether names of tripwires must not be remembered."""
        return self._showing is not None

    @property
    def refusing(self) -> bool:
        """Whether the kernel is told to open files by itself."""
        return self._gauge[Gauge.REFUSING] != 0

    def keep_open(self) -> None:
        """OPEN is needed: files are passed through."""
        self._auto = False

    def tell(self, follower: Follower) -> None:
        """Let a follower know whose opens it will see."""
        if self.refusing and self._showing is not None:
            follower.show_only(self._showing)

    def turn(self, follower: Follower, conductor: Conductor) -> None:
        """Go over to tripwires when the time has come."""
        if not self._auto or self.refusing or self._showing is None or not follower.steady:
            return
        if follower.shares and not conductor.has_room_for_all:
            return  # what stays in memory is replaced by what is read again sooner: that takes closes
        log.info("the plan is certain: from now on the kernel opens files by itself")
        self._gauge[Gauge.REFUSING] = 1
        self.tell(follower)
        conductor.without_closes()

    def shown(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Which of these opens tell how far the reader is, b[m]; None: all do."""
        if not self.refusing or self._showing is None:
            return None
        return self._showing.mask[rows]

    def estimate(self, server: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The servers' counters, i64[GAUGES], with opens that did not show."""
        if not self.refusing or self._showing is None:
            return server
        server = server.copy()
        server[Gauge.OPENS] += round(int(server[Gauge.TRIPWIRES]) * self._files)
        server[Gauge.OPENED_BYTES] += round(int(server[Gauge.TRIPWIRE_BYTES]) * self._bytes)
        return server

    @property
    def predicted(self) -> int:
        """Opens that were foreseen, with those that did not show."""
        seen = int(self._gauge[Gauge.PREDICTED])
        if not self.refusing or self._showing is None:
            return seen
        return seen + round(int(self._gauge[Gauge.TRIPWIRES_PREDICTED]) * self._files)
