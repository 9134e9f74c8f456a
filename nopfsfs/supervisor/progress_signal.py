"""The signal by which the reader is followed: its opens, or, once the kernel opens files by itself, tripwires.

To refuse OPEN cannot be taken back, and while OPEN is answered every open and every close is seen. So `auto` refuses
OPEN only when three things hold. All that is read now follows plans that have held for a while. Nobody opens what no
plan explains. Memory and page cache have room for all files. When somebody later reads what no plan explains, `auto`
has all opens shown again, until all is explained. Opens are shown by attributes that the kernel may not remember
(`Shown.ALL`). `tripwire` refuses OPEN from the first, and sees tripwires only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.visible_opens import VisibleOpens
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.tripwires import Shown, Tripwires

log = logging.getLogger(__name__)
# All attributes are forgotten again after so many times as long as it took, at the earliest: a tenth of a core.
REST = 10
# For which all opens are shown, and nobody opens what no plan explains: whoever is slow is seen beside who is not.
LEAST_S, LEAST_OPENS = 10.0, 512
WATCHING, PUZZLED, PASSED_THROUGH, NO_FAST_PATH, NO_ROOM = (
    "the plan is not certain yet",
    "somebody reads what no plan explains",
    "files are passed through to disk, and OPEN says to which",
    "pyfuse3 alone cannot refuse OPEN, and the fast path is off",
    "arena and page cache do not hold all files: what was read makes room for others as soon as it is closed",
)


class ProgressSignal:
    """`how`: open, tripwire, auto. `sizes` i64[n]: of the files. `metrics`: the supervisor's block, where the servers
    look. `forget` makes the kernel ask for the attributes of all files again; it takes microseconds a file, and is
    called in a thread.

    Servers read at each request which opens are to show, so that some servers follow a change before others. Each
    open says how its server counted it. The follower changes with the first open that was counted in the new way."""

    def __init__(
        self, how: str, tripwires: Tripwires, sizes: npt.NDArray[np.int64], metrics: memoryview,
        forget: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._metrics, self._forget = metrics, forget
        self._auto = how == "auto"
        self.why = WATCHING if self._auto else ""  # `auto` stays with `open`
        self._wanted = trio.Event()  # all opens are to be shown
        self._rest_until = -math.inf
        self._steady_from = 0  # opens seen
        self._puzzled_until = -math.inf
        self._puzzled = False
        self._unknown = False  # the follower began while few opens showed: it may never find who reads now
        self._counted_of = float(metrics[Metric.TRIPWIRES_TELL_OF])
        self._foreseen = float(metrics[Metric.PREDICTED])
        self._visible: VisibleOpens | None = None
        if how == "tripwire":
            metrics[Metric.SHOWN] = Shown.TRIPWIRES
        self._tripwires, self._sizes = tripwires, sizes
        if how != "open":
            apart = metrics[Metric.TRIPWIRES_APART]  # as a supervisor before this one has decided
            self._choose(Tripwires(tripwires.first, tripwires.n, apart=apart) if apart else tripwires)
        self._thin = self._servers_are_thin  # the follower gets the opens of tripwires only

    def _choose(self, tripwires: Tripwires) -> None:
        mask = tripwires.mask()
        files, wires = self._sizes[tripwires.first :], int(np.count_nonzero(mask))
        self._visible = VisibleOpens(mask, tripwires.apart, len(files) / max(1, wires))
        self._bytes = float(files.sum()) / max(1, int(self._sizes[mask].sum()))

    @property
    def _servers_are_thin(self) -> bool:
        return self._metrics[Metric.SHOWN] in (Shown.TRIPWIRES, Shown.FORGETTING)

    @property
    def tripwires(self) -> bool:
        """True when names of tripwires must not be remembered."""
        return self._visible is not None

    @property
    def refusing(self) -> bool:
        """True when the kernel is to open files by itself."""
        return self._metrics[Metric.SHOWN] != Shown.OPENED

    @property
    def name(self) -> str:
        """The signal that is seen now: open, tripwire, attributes."""
        return ("open", "tripwire", "tripwire", "attributes")[self._metrics[Metric.SHOWN]]

    def keep_open(self, why: str) -> None:
        """OPEN is needed as long as the mount lives, and names of tripwires may be remembered. Before servers start."""
        if self._auto:
            self._auto, self.why, self._visible = False, why, None

    def inform(self, follower: Follower) -> None:
        """Let a follower, which knows nothing yet, know whose opens it will see."""
        if self._thin and self._visible is not None:
            follower.show_only(self._visible)
        elif self.refusing:
            follower.without_closes()
        self._watch(follower)
        if self._servers_are_thin:
            self._unknown = True
            self._show_all()

    @property
    def _changing(self) -> bool:
        """True: servers count in a new way, and the follower has not changed yet."""
        return self._thin != self._servers_are_thin

    def changes_at(self, wires: npt.NDArray[np.bool_]) -> int:
        """The number of these opens before the one with which the follower changes to the signal of the servers: the
        first that was counted in the new way. All of them, where there is none. `wires` b[k]: opens that were counted
        as tripwires."""
        if not self._changing:
            return len(wires)
        in_new_way = wires if self._servers_are_thin else ~wires
        return int(np.argmax(in_new_way)) if in_new_way.any() else len(wires)

    def change_over(self, follower: Follower | None) -> None:
        """Let the follower change to the signal of the servers. Called between the opens of `changes_at`."""
        self._thin = self._servers_are_thin
        if self._unknown:
            self._show_all()
        if follower is None or self._visible is None:
            return
        if self._thin:
            follower.show_only(self._visible)
        else:
            follower.show_all()
            self._watch(follower)

    def taken(self, follower: Follower | None, policy: NodePolicy) -> None:
        """Events of servers were taken: go over to tripwires when the time has come, or have all opens shown again."""
        if self._auto and self._visible is not None and follower is not None and not self._changing:
            self._decide(follower, policy)

    def _watch(self, follower: Follower) -> None:
        """All opens are shown for a while at least."""
        self._puzzled_until = time.monotonic() + LEAST_S
        self._steady_from = follower.opens + LEAST_OPENS

    def _decide(self, follower: Follower, policy: NodePolicy) -> None:
        self._puzzled = follower.puzzled
        if self._puzzled:
            self._puzzled_until = time.monotonic() + LEAST_S
        if self._thin:
            if self._puzzled or self._unknown:
                self._show_all()
            return
        if not self.refusing:
            self.why = self._why(follower, policy)
            if self.why:
                return
            log.info("the plan is certain: from now on the kernel opens files by itself")
            policy.without_closes()
            tripwires = self._tripwires.for_certain(follower.shortest_part)
            self._choose(tripwires)
            self._metrics[Metric.TRIPWIRES_APART] = tripwires.apart  # before the servers count any
        elif not self._all_explained(follower):
            return
        self._metrics[Metric.SHOWN] = Shown.TRIPWIRES

    def _all_explained(self, follower: Follower) -> bool:
        """True when tripwires suffice again: names that the kernel remembers can be no tripwires any more."""
        if not follower.steady or follower.opens < self._steady_from or time.monotonic() < self._puzzled_until:
            return False
        assert self._visible is not None
        return self._visible.spacing <= 2 * self._tripwires.for_certain(follower.shortest_part).apart

    @staticmethod
    def _why(follower: Follower, policy: NodePolicy) -> str:
        """The reason why OPEN is to be answered still; "" where it is not."""
        if not follower.steady:
            return WATCHING
        if follower.puzzled:
            return PUZZLED
        return "" if policy.has_room_for_all else NO_ROOM

    def _show_all(self) -> None:
        """Have all opens shown, where `auto` is on and some files are no tripwires."""
        if self._auto and self._visible is not None and self._visible.spacing > 1:
            self._wanted.set()

    async def run(self) -> None:
        """Has the kernel forget what it knows of all files whenever all opens are to be shown. Until cancelled."""
        while True:
            await self._wanted.wait()
            await trio.sleep_until(self._rest_until)
            self._wanted = trio.Event()
            if not self._thin or self._changing or not (self._puzzled or self._unknown):
                continue
            log.info("somebody reads what no plan explains: all opens are shown until it is explained")
            self._metrics[Metric.SHOWN] = Shown.FORGETTING
            began = trio.current_time()
            try:
                await trio.to_thread.run_sync(self._forget, abandon_on_cancel=True)
            except (OSError, RuntimeError) as e:  # the connection is gone; or there is no thread
                log.info("attributes cannot be forgotten: %s", e)
                self._metrics[Metric.SHOWN] = Shown.TRIPWIRES
                self._rest_until = trio.current_time() + LEAST_S
                continue
            ended = trio.current_time()
            self._rest_until = ended + REST * (ended - began)
            self._wanted = trio.Event()
            self._unknown = False
            self._metrics[Metric.SHOWN] = Shown.ALL

    def shown(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """True for each of these opens that tells how far the reader is, b[m]; None: all do."""
        return self._visible.mask[rows] if self._thin and self._visible is not None else None

    # ---- estimates ----------------------------------------------------------------------------------------

    @property
    def estimated(self) -> bool:
        """True when opens were counted by tripwires."""
        return self.refusing and self._visible is not None

    def count(self, wires: npt.NDArray[np.bool_], of: float, foreseen: float = 0.0) -> None:
        """Count opens, which stand for `of` opens, of which the plan foresaw `foreseen`. `wires` b[k]: those that
        servers counted as tripwires, and not as opens. A server that has not read yet that all opens are to show
        hides those of other files."""
        count = int(np.count_nonzero(wires))
        hidden = 0.0 if self._thin else count * (self.apart - 1.0)
        self._counted_of += of + hidden - (len(wires) - count)
        self._foreseen += foreseen
        self._metrics[Metric.TRIPWIRES_OBSERVED] += count
        self._metrics[Metric.TRIPWIRES_TELL_OF] = round(self._counted_of)
        self._metrics[Metric.PREDICTED] = round(self._foreseen)

    @property
    def apart(self) -> float:
        """The number of opens that an open of a tripwire tells of, on average over all files."""
        return self._visible.apart if self._visible is not None else 1.0

    def waiting(self, server: npt.NDArray[np.int64]) -> int:
        """Opens of tripwires that the servers have counted, i64[METRICS], and that are yet to be looked at."""
        return max(0, int(server[Metric.TRIPWIRES]) - int(self._metrics[Metric.TRIPWIRES_OBSERVED]))

    def estimate(self, server: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The servers' counters, i64[METRICS], with opens that did not show."""
        if not self.estimated:
            return server
        server = server.copy()
        wires = int(server[Metric.TRIPWIRES])
        opens = round(int(self._metrics[Metric.TRIPWIRES_TELL_OF]) + self.waiting(server) * self.apart)
        server[Metric.OPENS] += opens
        # Files of tripwires that tell of more opens than on average are not taken to be smaller.
        each = opens / (wires * self.apart) if wires else 1.0
        server[Metric.OPENED_BYTES] += round(int(server[Metric.TRIPWIRE_BYTES]) * self._bytes * each)
        return server

    @property
    def predicted(self) -> int:
        """Opens that were foreseen, with those that did not show."""
        return int(self._metrics[Metric.PREDICTED])
