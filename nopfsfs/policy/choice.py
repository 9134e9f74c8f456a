"""The choice whether a fetch leaves the usual order of where files come from. Pure.

The usual order, which the stager keeps, is the one that loads source and network least: a copy on disk, another node,
the source. The choice leaves this order only where a lane (`fetch_lane.py`) is down or slow. A slow lane takes SLOWER
times as long as what comes after it, for some time, and longer than a reader would notice. A prefetch keeps to the
usual order even then, if its file comes long before its reader. docs/policy.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from nopfsfs.performance.defaults import DEFAULTS, DISK
from nopfsfs.performance.model import Cluster
from nopfsfs.performance.observed import SLOWER
from nopfsfs.policy.fetch_lane import FetchLane, LaneTimes, RecentCount
from nopfsfs.protocol.source_metrics import size_class

DISK_S, PEER_S = 0.001, 0.002  # of each file, beside its bytes; no calibration measures that
UNNOTICED_S = 0.005  # a lane that is as fast as this is not left, however fast the others are
SURE_S = 1.0  # for which a lane must look slow before it is left: a machine may stand still for a moment
EARLY = 0.5  # of the time until the reader is there: a prefetch that takes less comes early enough
TRY_S, TRY_MOST_S = 2.0, 10.0  # from one try of a lane that was left to the next; without regard to their share
TRY_APART = 25  # choices from one try to the next: 4 % of them
FOREIGN_SHARE = 0.05  # of the files of other nodes: those that are read from the source because their node is slow
HEDGED_SHARE, HEDGED_FEW = 0.02, 3  # of a node's requests: those that go on from the source; so many in any case
HEDGE_TIMES = 3.0  # as long as 95 % of demands take: then a demand goes on from the source
HEDGE_LEAST_S = 0.05  # a healthy node may be as late as this: its peer process looks for messages each 20 ms
HEDGE_COMING_S = 0.5  # the same where a node has said that it reads the file, for all, or that it sends a long one
FAILED_S = 10.0  # after a failed read nothing is read from the source that has a copy elsewhere
_NUMBERS = ("source", "disk", "peer")


class Rerouted(Enum):
    """The reason of a choice against the usual order."""

    SLOW = "slow"
    DOWN = "down"
    HEDGED = "hedged"  # a node was asked, and the answer did not come


@dataclass(frozen=True, slots=True)
class ExpectedLanes:
    """Expected times of lanes that were not seen yet; one of each kind."""

    source: LaneTimes
    disk: LaneTimes
    peer: LaneTimes

    @staticmethod
    def of(cluster: Cluster) -> ExpectedLanes:
        """The times by a calibration, or by `performance/defaults.py`. Of several disks the slowest counts."""
        source, share = cluster.source, cluster.source.share(1)
        disks = [one for one in cluster.classes if one.name != "ram"] or [DISK]
        disk = min(disks, key=lambda one: one.read_rate / one.threads)
        return ExpectedLanes(
            LaneTimes(source.latency, share / source.at_once, share),
            LaneTimes(DISK_S, disk.read_rate / disk.threads, disk.read_rate),
            LaneTimes(PEER_S, cluster.network, cluster.network),
        )

    def numbers(self) -> dict[str, int]:
        """The times as whole numbers for a `Handoff`: nanoseconds, bytes a second."""
        found = {}
        for name in _NUMBERS:
            times: LaneTimes = getattr(self, name)
            found[f"{name}_ns"] = round(1e9 * times.latency)
            found[f"{name}_alone"], found[f"{name}_together"] = _whole(times.alone), _whole(times.together)
        return found

    @staticmethod
    def from_numbers(numbers: dict[str, int]) -> ExpectedLanes:
        """Read `numbers`; what is missing is as by default."""
        known = ExpectedLanes.of(DEFAULTS).numbers() | numbers
        times = [
            LaneTimes(known[f"{name}_ns"] / 1e9, max(1, known[f"{name}_alone"]), max(1, known[f"{name}_together"]))
            for name in _NUMBERS
        ]
        return ExpectedLanes(*times)


def _whole(rate: float) -> int:
    return int(max(1.0, min(rate, 1e15)))


@dataclass(slots=True)
class _Standing:
    """The standing of a lane for files of a size class. `left`: the lane is slow, and is not used; `slow_since`: the
    time from which on it has looked so. `after`: seconds that what comes after the lane takes; `again`: the last try
    was as fast as that."""

    left: bool = False
    slow_since: float | None = None
    after: float = 0.0
    tried_at: float = 0.0
    passed: int = 0  # choices since the last try
    again: bool = False
    down: bool = False


class FetchChoice:
    """Chooses lanes. `clock`: seconds; `count` is called with the reason of each choice against the usual order."""

    def __init__(
        self, expected: ExpectedLanes, clock: Callable[[], float], count: Callable[[Rerouted], None] = lambda _: None
    ) -> None:
        self._expected, self._clock, self._count = expected, clock, count
        self.source = FetchLane(expected.source)
        self._disks: dict[int, FetchLane] = {}
        self._peers: dict[int, FetchLane] = {}
        self._standings: dict[FetchLane, dict[int, _Standing]] = {}  # by size class
        self._doubted: set[FetchLane] = set()  # those that are, or were lately, slow or down
        self._foreign, self._apart = RecentCount(), RecentCount()
        self._hedged: dict[FetchLane, RecentCount] = {}
        self._source_failed = -FAILED_S
        self._source_hangs = 0  # reads of it that do not end, though what was read has a copy elsewhere

    def disk(self, number: int) -> FetchLane:
        """The lane of a disk tier."""
        return self._disks.get(number) or self._disks.setdefault(number, FetchLane(self._expected.disk))

    def peer(self, node: int) -> FetchLane:
        """The lane of another node."""
        return self._peers.get(node) or self._peers.setdefault(node, FetchLane(self._expected.peer))

    # ---- the choice ---------------------------------------------------------------------------------------

    def choose(
        self, usual: Sequence[FetchLane], size: int, within: float | None, *, foreign: bool = False
    ) -> FetchLane:
        """The lane for a file of `size` bytes. `usual`: where it is but for the source, in the usual order. `within`:
        seconds until the reader is there, as far as known; None: a reader waits. `foreign`: the last of `usual` is the
        node where the file lives."""
        now = self._clock()
        if foreign:
            self._foreign.add(now)
        if usual and usual[0] not in self._doubted and not usual[0].down and usual[0].eta(size, now) <= UNNOTICED_S:
            return usual[0]  # as nearly always
        chosen, why = self.source, None
        for place, lane in enumerate(usual):
            after = [*usual[place + 1 :], self.source]
            reason = self._against(lane, after, size, within, now, foreign=foreign and len(after) == 1)
            if reason is None:
                chosen = lane
                break
            why = reason
        if why is not None:
            self._count(why)
            if foreign and why is Rerouted.SLOW and chosen is self.source:
                self._apart.add(now)
        return chosen

    def _against(
        self, lane: FetchLane, after: list[FetchLane], size: int, within: float | None, now: float, *, foreign: bool
    ) -> Rerouted | None:
        """The reason not to use a lane; None: it is used."""
        standing = self._standing(lane, size)
        if lane.down:
            if not standing.down:
                standing.down, standing.tried_at, standing.passed = True, now, 0
                self._doubted.add(lane)
            if self._source_fails(now) or self._tries(standing, now, demand=within is None):
                return None
            return Rerouted.DOWN
        standing.down = False
        eta = lane.eta(size, now)
        early = within is not None and eta < EARLY * within
        if not self._is_slow(lane, standing, eta, after, size, now) or early:
            return None
        if foreign and self._apart.at(now) + 1 > FOREIGN_SHARE * self._foreign.at(now):
            return None
        return None if self._tries(standing, now, demand=within is None) else Rerouted.SLOW

    def _is_slow(
        self, lane: FetchLane, standing: _Standing, eta: float, after: list[FetchLane], size: int, now: float
    ) -> bool:  # fmt: skip
        """Look at a lane beside those that come after it. One that was left is used again when it is as fast."""
        if eta <= UNNOTICED_S or self._source_fails(now):
            standing.left, standing.slow_since = False, None
            self._trust(lane)
            return False
        best = standing.after = min(other.eta(size, now) for other in after if not other.down)
        if standing.left:
            standing.left = eta > best
        elif eta <= SLOWER * best:
            standing.slow_since = None
        elif standing.slow_since is None:
            standing.slow_since = now
            self._doubted.add(lane)
        elif now - standing.slow_since >= SURE_S:
            standing.left, standing.slow_since = True, None
            standing.tried_at, standing.passed, standing.again = now, 0, False
            lane.forget(size)
        return standing.left

    def _trust(self, lane: FetchLane) -> None:
        """Note that a lane is as it should be for files of one size class; it may be so for all."""
        if lane in self._doubted:
            standings = self._standings[lane].values()
            if not any(standing.left or standing.slow_since is not None or standing.down for standing in standings):
                self._doubted.discard(lane)

    def _tries(self, standing: _Standing, now: float, *, demand: bool) -> bool:
        """True when it is time to see whether a lane is better by now. Demands leave that to prefetches, if there are
        any."""
        standing.passed += 1
        passed = now - standing.tried_at
        due = passed >= (2 * TRY_S if demand else TRY_S) and standing.passed >= TRY_APART
        if not (due or standing.again or passed >= TRY_MOST_S):
            return False
        standing.tried_at, standing.passed, standing.again = now, 0, False
        return True

    def _standing(self, lane: FetchLane, size: int) -> _Standing:
        standings = self._standings.setdefault(lane, {})
        return standings.setdefault(size_class(size), _Standing())

    # ---- what is seen -------------------------------------------------------------------------------------

    def begin(self, lane: FetchLane, size: int) -> None:
        """Note that a file is under way on a lane."""
        lane.begin(size, self._clock())

    def end(self, lane: FetchLane, size: int, took: float | None = None, *, demand: bool = False) -> None:
        """Note that it is not any more; `took`, `demand`: as for `FetchLane.end`. A lane that was left, and was as fast
        as what is used in its place, is tried again at once."""
        lane.end(size, self._clock(), took=took, demand=demand)
        if took is not None and lane is not self.source:
            standing = self._standing(lane, size)
            standing.again = standing.left and took <= max(UNNOTICED_S, standing.after)

    def source_failed(self) -> None:
        """Note that a read of the source has failed: what has a copy elsewhere is not read there for a while."""
        self._source_failed = self._clock()

    def source_hangs(self, by: int) -> None:
        """Note that so many more reads of the source hang (-1: one has ended): the same, as long as any does."""
        self._source_hangs += by
        self.source_failed()

    def _source_fails(self, now: float) -> bool:
        return self._source_hangs > 0 or now < self._source_failed + FAILED_S

    # ---- hedging ------------------------------------------------------------------------------------------

    def hedge_after(self, lane: FetchLane, size: int, *, coming: bool, sending: bool = False) -> float:
        """Seconds after which a node's answer is late for a reader that waits. `coming`: the node has said that it
        reads the file; `sending`: that it sends it."""
        usual = HEDGE_TIMES * lane.p95(size, demands=not sending)
        if coming:
            usual = max(usual, HEDGE_TIMES * self.source.p95(size))
        least = HEDGE_COMING_S if coming or sending else HEDGE_LEAST_S
        return max(least, usual, self.source.eta(size, self._clock()))

    def hedges(self, lane: FetchLane, *, again: bool = False, coming: bool = False) -> bool:
        """Note that an answer is late; True when the request is to go on from the source. `again`: this was asked
        of the same answer before; `coming`: the node has said that it reads the file, which is no silence."""
        now = self._clock()
        if not coming:
            lane.unanswered(now, again=again)
        if self._source_fails(now):
            return False
        hedged = self._hedged.get(lane) or self._hedged.setdefault(lane, RecentCount())
        if not lane.down:
            if hedged.at(now) + 1 > max(HEDGED_FEW, HEDGED_SHARE * lane.asks.at(now)):
                return False
            hedged.add(now)
        self._count(Rerouted.HEDGED)
        return True
