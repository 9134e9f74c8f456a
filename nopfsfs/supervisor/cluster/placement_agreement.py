"""Where the files of a cluster live, as the nodes agree upon it: one node of them.

Each says once what room it has. The leader, the lowest node that has not left, names what is read, from its own plan;
all compute the same placement of that, each for itself, write the column `holder`, and tell their policy what lives
here. A placement that was computed otherwise somewhere costs speed alone: who is asked in vain says no, and the source
has everything. So nothing here is waited for by a read, and a fault in here costs the cluster its placements only.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.dataset.index import Index
from nopfsfs.placement.access_counts import NOBODY
from nopfsfs.placement.cluster_homes import ClusterHomes
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.policy.homes import UNCOVERED
from nopfsfs.policy.node_policy import Rows
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.supervisor.cluster.copy_handover import CopyHandover, SayTo
from nopfsfs.supervisor.cluster.placement_proposal import EPOCHS_MOST, NUMBER_MOST, NodeRoom, PlacementProposal, ReadSet
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.system.outages import reason
from nopfsfs.tiers.disk import FLOOR_BYTES

log = logging.getLogger(__name__)
Say = Callable[[dict[str, Any]], Awaitable[None]]

LOOK_S = 0.25  # between looks at the plan of the leader
ROOMS_S = 10.0  # for all to have said what room they have; those who have not have none, until they say it
FOLLOWER_S = 30.0  # for this node's plan to be made, whose lists of files are used; then they are made anew
COMPUTING_S = 600.0
BEGIN_S = 10.0  # for all to have computed a placement, after the leader has; it begins without the others
BEGIN_LATE_S = 30.0  # for the leader to say so
HOLD_BACK_S = 5.0  # from when there is a plan: for the first placement, before anything is fetched ahead
SAYING_S = 10.0  # what the peer process does not take by then is not said
HEARD_MOST = 4096  # messages that wait to be looked at
WORTH = 0.01  # a data set of which more than this share is not covered is placed
FURTHEST_LOOKED_AT = 1 << 20
UNFIT = (ValueError, ArithmeticError, LookupError, MemoryError)  # of a plan that cannot be gone by
_NO_ROOM = NodeRoom(0, (), 0)


class PlacementAgreement:
    """See the module. One task, `run`; `hear`, `left` and `lost` are called by others in its thread. The only writer of
    the column `holder` u16[n], with its `CopyHandover`; `charges` i64[n] as of `NodePolicy`. `say` reaches all other
    nodes, `say_to` one."""

    def __init__(
        self, config: MountConfig, loop: EventLoop, index: Index, *, charges: NDArray[np.int64],
        holder: NDArray[np.uint16], say: Say, say_to: SayTo,
    ) -> None:  # fmt: skip
        self._config, self._loop, self._index = config, loop, index
        self._charges, self._holder, self._say, self._say_to = charges, holder, say, say_to
        self._handing = CopyHandover(loop.conductor, holder, partial(self._limited, say_to))
        self.node, self.nodes = config.node, config.nodes
        self._rooms: dict[int, NodeRoom] = {}
        self._cluster: ClusterHomes | None = None
        self._share, self._homes_here = 0.0, 0
        self._number = 0
        self._named: dict[int, int] = {}  # by node: the number of the last placement that it named
        self._early: dict[int, dict[str, Any]] = {}  # placements of nodes that do not lead yet, as far as is known here
        self._begun = 0  # the number of the last placement by which others are asked
        self._begin_by = math.inf  # others are asked by then, whatever is not heard
        self._ready: dict[int, int] = {}  # by node: the number of the last placement that it has computed
        self._handled: set[tuple[object, ...]] = set()  # what the leader has looked at
        self._left: set[int] = set()
        self._after: set[int] = set()  # of these, all that they had said before was looked at
        self._heard: deque[tuple[int, dict[str, Any] | None]] = deque()  # None: it has left
        self._news = trio.Event()
        self._lost = False
        self._strange: set[int] = set()  # nodes that have said what cannot be
        loop.holds_back = True
        loop.stray = self.staged_from_source

    # ---- what others say ----------------------------------------------------------------------------------

    def hear(self, node: int, body: dict[str, Any]) -> None:
        """The supervisor of that node has said this: it is looked at soon."""
        if node in self._left or not 0 <= node < self.nodes or node == self.node:
            return
        if body.get("kind") in ("have", "took"):
            try:
                self._handing.hear(node, body)
            except ValueError as e:
                self._refuse(node, str(e))
            return
        if len(self._heard) >= HEARD_MOST:
            self._refuse(node, "more than is looked at")
            return
        self._heard.append((node, body))
        self._news.set()

    def left(self, node: int) -> None:
        """That node is not asked any more: what lives there is read from the source."""
        if node in self._left or node == self.node or not 0 <= node < self.nodes:
            return
        self._left.add(node)
        self._handing.left(node)
        self._forsake(self._holder == 1 + node)
        self._heard.append((node, None))
        self._news.set()

    def lost(self) -> None:
        """There are no other nodes any more."""
        self._lost = True
        self._heard.clear()
        self._handing.lost()
        self._forsake((self._holder != 0) & (self._holder != HOME_HERE))
        self._news.set()

    def staged_from_source(self, rows: Iterable[int]) -> None:
        """These were read from the source here, whoever was to be asked for them: their homes may want them."""
        self._handing.offer(rows)

    def _forsake(self, rows: NDArray[np.bool_]) -> None:
        self._holder[rows] = 0
        self._loop.conductor.unplace(rows)

    @property
    def _leader(self) -> int:
        return min(set(range(self.nodes)) - self._after)

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or all others are gone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._handing.run)
                nursery.start_soon(self._hold_back)
                await self._run()
                nursery.cancel_scope.cancel()
        except Exception:
            log.exception("where files live in the cluster cannot be agreed upon; going on with what was")
        finally:
            self._loop.holds_back = False
            self._handing.lost()

    async def _hold_back(self) -> None:
        await self._plan_made()
        await trio.sleep(HOLD_BACK_S)
        self._loop.holds_back = False

    async def _plan_made(self) -> None:
        for _ in range(round(FOLLOWER_S / LOOK_S)):
            if self._loop.follower is not None:
                break
            await trio.sleep(LOOK_S)

    async def _run(self) -> None:
        conductor = self._loop.conductor
        disks = await trio.to_thread.run_sync(_disk_rooms, self._config.disks, abandon_on_cancel=True)
        own = NodeRoom(conductor.split.homes, disks, conductor.split.whole_limit)
        self._rooms[self.node] = own
        await self._send(own.say())
        begins = trio.current_time() + ROOMS_S
        while not self._lost:
            with trio.move_on_after(LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
            while self._heard:
                node, body = self._heard.popleft()
                if body is None:
                    self._go_on_without(node)
                else:
                    await self._take(node, body)
            known = set(self._rooms) | self._left
            if self._leader == self.node and (len(known) == self.nodes or trio.current_time() >= begins):
                await self._lead()
            await self._begin()

    def _go_on_without(self, node: int) -> None:
        self._after.add(node)
        early = self._early.pop(self._leader, None)
        if early is not None:
            self._heard.appendleft((self._leader, early))

    async def _send(self, body: dict[str, Any]) -> None:
        with trio.move_on_after(SAYING_S) as limit:
            await self._say(body)
        if limit.cancelled_caught:
            log.error("the other nodes could not be told %s in time", body["kind"])

    async def _limited(self, say_to: SayTo, node: int, body: dict[str, Any]) -> None:
        with trio.move_on_after(SAYING_S):  # what is not said is read from the source once more
            await say_to(node, body)

    async def _take(self, node: int, body: dict[str, Any]) -> None:
        try:
            kind = body.get("kind")
            if kind == "room":
                self._rooms.setdefault(node, NodeRoom.hear(body))
            elif kind == "place":
                await self._obey(node, body)
            elif kind == "ready":
                self._ready[node] = _number_of(body)
            elif kind == "begin":
                if node == self._leader and _number_of(body) == self._number:
                    self._ask_others()
            else:
                raise ValueError("no such kind of message")
        except ValueError as e:
            self._refuse(node, str(e))

    def _refuse(self, node: int, why: str) -> None:
        if node not in self._strange:
            self._strange.add(node)
            log.warning("node %d says what cannot be: %s; that is ignored", node, why)

    # ---- placements ---------------------------------------------------------------------------------------

    async def _obey(self, node: int, body: dict[str, Any]) -> None:
        """Another node has named what is to be placed."""
        order = PlacementProposal.hear(body, self.nodes, self._index.n_dirs)
        if order.number <= self._named.get(node, 0):
            raise ValueError("number: it was named before")
        if node != self._leader:  # what makes it the leader is yet to be heard of here
            self._early[node] = body
            return
        self._named[node] = order.number
        await self._compute(order)

    async def _lead(self) -> None:
        """Name what is read here and is not covered."""
        for what, epochs in self._wanted():
            key = (what.root, what.files, what.plan and what.plan.subset)
            if key in self._handled:
                continue
            self._handled.add(key)
            if self._number >= NUMBER_MOST or not await self._is_worth(what):
                continue
            rooms = [self._rooms.get(node, _NO_ROOM) if node not in self._left else _NO_ROOM
                     for node in range(self.nodes)]  # fmt: skip
            limit = min((room.whole_limit for room in rooms if room != _NO_ROOM), default=0)
            order = PlacementProposal(
                self._number + 1, _table(rooms), limit,
                self._config.placement, min(epochs, EPOCHS_MOST), what,
            )  # fmt: skip
            await self._send(order.say())
            await self._compute(order)

    def _wanted(self) -> list[tuple[ReadSet, int]]:
        """What is read, as far as it is known here, and how many epochs are to be looked at."""
        follower = self._loop.follower
        if follower is None:
            return []
        found = [
            (ReadSet.of(track.hypothesis, follower.datasets), 1 if track.repeats else self._config.epochs)
            for track in follower.believed()
        ]
        if follower.status().state in (PlanState.UNKNOWN.value, PlanState.MISMATCH.value):
            found.append((ReadSet(), 1))
        return found

    async def _is_worth(self, what: ReadSet) -> bool:
        datasets = self._loop.follower.datasets if self._loop.follower is not None else ()
        before = self._before(1)
        limit = self._loop.conductor.split.whole_limit

        def share() -> float:
            rows = what.rows(self._index, datasets, self._charges)
            return float(np.mean(before.to_cover(rows, self._charges, limit))) if len(rows) else 0.0

        try:
            return await trio.to_thread.run_sync(share, abandon_on_cancel=True) > WORTH
        except UNFIT as e:
            log.error("%s cannot be placed: %s", what.files or "what is read", reason(e))
            return False

    def _before(self, classes: int) -> ClusterHomes:
        """What is placed already, with as many classes at least."""
        before = self._cluster
        if before is None:
            return ClusterHomes.empty(len(self._charges), self.nodes, classes)
        more = classes - before.used.shape[1]
        return ClusterHomes(before.home, before.local, np.pad(before.used, ((0, 0), (0, more)))) if more > 0 else before

    async def _compute(self, order: PlacementProposal) -> None:
        """Compute the placement, and go by it. One that cannot be computed is left out, as it is by all others."""
        await self._plan_made()
        datasets = list(self._loop.follower.datasets) if self._loop.follower is not None else []
        before = self._before(order.rooms.shape[1])
        order = order.with_classes(before.used.shape[1])

        def compute() -> ClusterHomes:
            rows = order.what.rows(self._index, datasets, self._charges)
            return order.compute(before, rows, self._charges, self.node)

        began = trio.current_time()
        cluster: ClusterHomes | None = None
        try:
            with trio.fail_after(COMPUTING_S):
                cluster = await trio.to_thread.run_sync(compute, abandon_on_cancel=True)
        except (*UNFIT, trio.TooSlowError) as e:
            log.error("placement %d cannot be computed: %s", order.number, reason(e))
        self._number = max(self._number, order.number)  # computed or not: all count alike
        if cluster is not None:
            if not self._lost:
                self._apply(cluster)
            log.info(
                "placement %d of %s: homes for %.1f %% of the files, computed in %.1f s", order.number,
                order.what.files or "all", 100 * cluster.distinct_share, trio.current_time() - began,
            )  # fmt: skip
        await self._ready_for(order.number)

    async def _ready_for(self, number: int) -> None:
        """Let the leader know that this node has done what it can."""
        if self._leader == self.node:
            self._begin_by = trio.current_time() + BEGIN_S
            return
        self._begin_by = trio.current_time() + BEGIN_LATE_S
        with trio.move_on_after(SAYING_S):
            await self._say_to(self._leader, {"kind": "ready", "number": number})

    async def _begin(self) -> None:
        """Ask others when all know what lives with them: a node that does not know it yet has to say no, and then two
        of them read the source."""
        if self._begun >= self._number:
            return
        late = trio.current_time() >= self._begin_by
        others = set(range(self.nodes)) - self._left - {self.node}
        if self._leader == self.node and (late or all(self._ready.get(node, 0) >= self._number for node in others)):
            await self._send({"kind": "begin", "number": self._number})
            self._ask_others()
        elif late:
            self._ask_others()

    def _ask_others(self) -> None:
        """Go by the whole of what was computed last."""
        if self._lost or self._cluster is None:
            return
        self._begun, self._begin_by = self._number, math.inf
        self._loop.holds_back = False
        home = self._cluster.home
        away = np.isin(home, [self.node, NOBODY, *self._left])
        self._holder[~away] = home[~away] + np.uint16(1)

    def _apply(self, cluster: ClusterHomes) -> None:
        """Here, from now on: what lives here. See `_begin`."""
        self._cluster = cluster
        self._share = cluster.distinct_share
        self._homes_here = int(np.count_nonzero(cluster.home == self.node))
        away = np.isin(cluster.home, list(self._left)) if self._left else np.zeros(len(cluster.home), np.bool_)
        self._holder[cluster.home == self.node] = HOME_HERE
        furthest = self._loop.furthest(FURTHEST_LOOKED_AT)
        foreign = self._foreign(furthest, (cluster.home != NOBODY) & (cluster.home != self.node) & ~away)
        self._holder[foreign] = cluster.home[foreign] + np.uint16(1)  # nobody is asked for these: they are here
        self._handing.offer(foreign.tolist())  # before they leave memory here
        local = np.where(away, np.int8(UNCOVERED), cluster.local)
        self._loop.conductor.place(local, furthest)
        self._handing.written(self._number)

    def _foreign(self, furthest: Rows, elsewhere: NDArray[np.bool_]) -> Rows:
        """What is staged here and lives `elsewhere`, b[n]: i64[m], those first that are to leave first."""
        staged = self._loop.conductor.staged_rows()
        order = np.concatenate([furthest[np.isin(furthest, staged)], np.setdiff1d(staged, furthest)])
        found: Rows = order[elsewhere[order]]
        return found

    # ---- what it says -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Of the status record."""
        return {
            "node": self.node, "nodes": self.nodes, "placement": self._config.placement, "number": self._begun,
            "distinct_share": round(self._share, 4), "homes_here": self._homes_here, "left": sorted(self._left),
        }  # fmt: skip


def _number_of(body: dict[str, Any]) -> int:
    """Raises ValueError."""
    number = body.get("number")
    if type(number) is not int or not 0 < number <= NUMBER_MOST:
        raise ValueError("number: it is none")
    return number


def _table(rooms: Sequence[NodeRoom]) -> NDArray[np.int64]:
    """i64[nodes, classes]: memory, then the disks; nodes with fewer have none there."""
    table = np.zeros((len(rooms), 1 + max(len(room.disks) for room in rooms)), np.int64)
    for node, room in enumerate(rooms):
        table[node, : 1 + len(room.disks)] = room.ram, *room.disks
    return table


def _disk_rooms(disks: Sequence[DiskSpec]) -> tuple[int, ...]:
    """Bytes of each tier; of one without a size what is free there now."""
    rooms = []
    for disk in disks:
        room = disk.size or 0
        if disk.size is None:
            with contextlib.suppress(OSError):
                found = os.statvfs(disk.path)
                room = max(0, found.f_bavail * found.f_frsize - FLOOR_BYTES)
        rooms.append(room)
    return tuple(rooms)
