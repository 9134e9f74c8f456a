"""How the reader is followed: by its opens, or, once the kernel opens files by itself, by tripwires.

To refuse OPEN cannot be taken back, and while OPEN is answered every open and every close is seen. So `auto` refuses it
only when all that is read now follows plans that have held for a while, and nothing that stays in memory would have to
be replaced. When somebody reads what no plan explains, `auto` has all opens shown again, by attributes that the kernel
may not remember (`Shown.ALL`), until all is explained. `tripwire` refuses OPEN from the first, and sees tripwires only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.plan.follow import Follower
from nopfsfs.plan.showing import Showing
from nopfsfs.policy.conductor import Conductor
from nopfsfs.tiers.columns import Gauge
from nopfsfs.tiers.tripwires import Shown, Tripwires

log = logging.getLogger(__name__)
# All attributes are forgotten again after so many times as long as it took, at the earliest: a tenth of a core.
REST = 10
LEAST_S, LEAST_OPENS = 10.0, 512  # for which all opens are shown, so that whoever is slow is seen beside who is not
WATCHING, PUZZLED, PASSED_THROUGH, REPLACED = (
    "the plan is not certain yet",
    "somebody reads what no plan explains",
    "files are passed through to disk, and OPEN says to which",
    "memory does not hold all files: what is read sooner replaces what is read later, and that takes closes",
)


class Signal:
    """`how`: open, tripwire, auto. `sizes` i64[n]: of the files. `gauge`: the supervisor's block, in which the servers
    are told. `forget` makes the kernel ask for the attributes of all files again; it takes microseconds a file, and is
    called in a thread."""

    def __init__(
        self, how: str, tripwires: Tripwires, sizes: npt.NDArray[np.int64], gauge: memoryview,
        forget: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._gauge, self._forget = gauge, forget
        self._auto = how == "auto"
        self.why = WATCHING if self._auto else ""  # `auto` stays with `open`
        self._showing: Showing | None = None
        self._wanted = trio.Event()  # all opens are to be shown
        self._rest_until = -math.inf
        self._turns_from = (-math.inf, 0)  # seconds, opens seen
        if how == "open" and not self.refusing:
            return
        mask = tripwires.mask()
        self._showing = Showing(mask, tripwires.apart)
        files = sizes[tripwires.first :]
        self._files = len(files) / max(1, int(np.count_nonzero(mask)))
        self._bytes = float(files.sum()) / max(1, int(sizes[mask].sum()))
        if how == "tripwire":
            gauge[Gauge.SHOWN] = Shown.TRIPWIRES

    @property
    def tripwires(self) -> bool:
        """Whether names of tripwires must not be remembered."""
        return self._showing is not None

    @property
    def refusing(self) -> bool:
        """Whether the kernel is told to open files by itself."""
        return self._gauge[Gauge.SHOWN] != Shown.OPENED

    @property
    def estimated(self) -> bool:
        """Whether opens were counted by tripwires."""
        return self.refusing and self._showing is not None

    @property
    def name(self) -> str:
        """What is seen now: open, tripwire, attributes."""
        return ("open", "tripwire", "tripwire", "attributes")[self._gauge[Gauge.SHOWN]]

    @property
    def _thin(self) -> Showing | None:
        """Whose opens show now; None: all do."""
        return self._showing if self._gauge[Gauge.SHOWN] in (Shown.TRIPWIRES, Shown.FORGETTING) else None

    def keep_open(self) -> None:
        """OPEN is needed: files are passed through."""
        self._auto, self.why = False, PASSED_THROUGH if self._auto else self.why

    def tell(self, follower: Follower) -> None:
        """Let a follower, which knows nothing yet, know whose opens it will see."""
        if self._thin is not None:
            follower.show_only(self._thin)
            self._show_all()

    def turn(self, follower: Follower, conductor: Conductor) -> None:
        """Go over to tripwires when the time has come, or have all opens shown again."""
        if not self._auto or self._showing is None:
            return
        puzzled = follower.puzzled
        if puzzled and self._gauge[Gauge.SHOWN] == Shown.TRIPWIRES:
            self._show_all()
        if self._thin is not None:
            return
        if not self.refusing:
            self.why = self._why(follower, conductor)
            if self.why:
                return
            log.info("the plan is certain: from now on the kernel opens files by itself")
            conductor.without_closes()
        elif puzzled or not follower.steady or not self._shown_for_a_while(follower):
            return
        self._gauge[Gauge.SHOWN] = Shown.TRIPWIRES
        follower.show_only(self._showing)

    def _shown_for_a_while(self, follower: Follower) -> bool:
        seconds, opens = self._turns_from
        return time.monotonic() >= seconds and follower.opens >= opens

    @staticmethod
    def _why(follower: Follower, conductor: Conductor) -> str:
        """Why OPEN is to be answered still; "" where it is not."""
        if not follower.steady:
            return WATCHING
        if follower.puzzled:
            return PUZZLED
        return REPLACED if follower.shares and not conductor.has_room_for_all else ""

    def _show_all(self) -> None:
        """Where there are files that are no tripwires."""
        if self._auto and self._showing is not None and self._showing.spacing > 1:
            self._wanted.set()

    async def run(self, follower: Callable[[], Follower | None]) -> None:
        """Has the kernel forget what it knows of all files whenever all opens are to be shown. Until cancelled."""
        while True:
            await self._wanted.wait()
            await trio.sleep_until(self._rest_until)
            self._wanted = trio.Event()
            if self._thin is None:
                continue
            log.info("somebody reads what no plan explains: all opens are shown until it is explained")
            self._gauge[Gauge.SHOWN] = Shown.FORGETTING
            began = time.monotonic()
            try:
                await trio.to_thread.run_sync(self._forget, abandon_on_cancel=True)
            except OSError as e:  # the connection is gone
                log.info("attributes cannot be forgotten: %s", e)
                return
            took = time.monotonic() - began
            self._rest_until = trio.current_time() + REST * took
            self._gauge[Gauge.SHOWN] = Shown.ALL
            told = follower()
            if told is not None:
                told.show_all()
            self._turns_from = (time.monotonic() + LEAST_S, told.opens + LEAST_OPENS if told is not None else 0)

    def shown(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Which of these opens tell how far the reader is, b[m]; None: all do."""
        thin = self._thin
        return thin.mask[rows] if thin is not None else None

    def estimate(self, server: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The servers' counters, i64[GAUGES], with opens that did not show."""
        if not self.estimated:
            return server
        server = server.copy()
        server[Gauge.OPENS] += round(int(server[Gauge.TRIPWIRES]) * self._files)
        server[Gauge.OPENED_BYTES] += round(int(server[Gauge.TRIPWIRE_BYTES]) * self._bytes)
        return server

    @property
    def predicted(self) -> int:
        """Opens that were foreseen, with those that did not show."""
        seen = int(self._gauge[Gauge.PREDICTED])
        if not self.estimated:
            return seen
        return seen + round(int(self._gauge[Gauge.TRIPWIRES_PREDICTED]) * self._files)
