"""The homes of the files of a cluster, as the nodes agree upon them: the part of one node.

Each sends once what it has kept on disk from earlier mounts, and then what room it has. The leader, the lowest node
that has not left, names what is read, from its own plan. All nodes compute the same placement of that, each for itself.
Each writes the column `holder`, and gives its policy what lives here. A node that computes a different placement costs
speed, not data. A node that does not hold a file refuses the request, and the requester reads the source. No read waits
for anything here, and a fault costs the placements alone.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from nopfsfs.config import MountConfig
from nopfsfs.dataset.index import Index
from nopfsfs.placement.access_counts import NOBODY
from nopfsfs.placement.cluster_homes import ClusterHomes
from nopfsfs.placement.methods import UNCOVERED
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.policy.stream_scan import Rows
from nopfsfs.protocol import between_supervisors as messages
from nopfsfs.protocol.codec import Message
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.protocol.supervisor_peer import ALL_OTHERS
from nopfsfs.supervisor.cluster.copy_handover import CopyHandover, Send
from nopfsfs.supervisor.cluster.kept_news import KeptNews
from nopfsfs.supervisor.cluster.placement_proposal import PlacementProposal, ReadSet, disk_rooms, room_table
from nopfsfs.supervisor.cluster.shared_base import SharedBase
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.processes.peer import ClusterEvent
from nopfsfs.system.outages import reason

log = logging.getLogger(__name__)
LOOK_S = 0.25  # between looks at the plan of the leader
ROOMS_S = 10.0  # for all to have sent what room they have; those who have not have none, until they do
FOLLOWER_S = 30.0  # for this node's plan to be made, whose lists of files are used; then they are made anew
COMPUTING_S = 600.0
BEGIN_S = 10.0  # for all to have computed a placement, after the leader has; it begins without the others
BEGIN_LATE_S = 30.0  # for the leader to say so
HOLD_BACK_S = 5.0  # from when there is a plan: for the first placement, before anything is fetched ahead
SENDING_S = 10.0  # what the peer process does not take by then is not said
RECEIVED_MOST = 4096  # messages that wait to be looked at
WORTH = 0.01  # a data set of which more than this share is not covered is placed
FURTHEST_LOOKED_AT = 1 << 20
UNFIT = (ValueError, ArithmeticError, LookupError, MemoryError)  # of a plan that cannot be gone by
_NO_ROOM = messages.NodeRoom(0, (), 0)


class PlacementAgreement:
    """The part of this node in the agreement. One task, `run`. The only writer of the column `holder` u16[n], with its
    `handover`; `charges` i64[n] as of `NodePolicy`. `events`: of the other nodes, closed when there are none any more;
    `send` reaches one node, or all others."""

    def __init__(
        self, config: MountConfig, loop: EventLoop, index: Index, handover: CopyHandover,
        events: trio.MemoryReceiveChannel[ClusterEvent], *, charges: NDArray[np.int64], holder: NDArray[np.uint16],
        kept: KeptNews, send: Send,
    ) -> None:  # fmt: skip
        self._config, self._loop, self._index, self._handover = config, loop, index, handover
        self._events, self._charges, self._holder, self._kept, self._send_to = events, charges, holder, kept, send
        self.node, self.nodes = config.node, config.nodes
        self._rooms: dict[int, messages.NodeRoom] = {}
        self._cluster: ClusterHomes | None = None
        self._share, self._homes_here = 0.0, 0
        self._number = 0
        self._named: dict[int, int] = {}  # by node: the number of the last placement that it named
        self._early: dict[int, messages.ProposedPlacement] = {}  # of nodes that do not lead yet, as far as known
        self._begun = 0  # the number of the last placement by which others are asked
        self._begin_by = math.inf  # others are asked by then, whatever is not received
        self._ready: dict[int, int] = {}  # by node: the number of the last placement that it has computed
        self._handled: set[tuple[object, ...]] = set()  # what the leader has looked at
        self._left: set[int] = set()
        self._after: set[int] = set()  # of these, all that they had sent before was looked at
        self._received: deque[tuple[int, messages.FromCluster | None]] = deque()  # None: it has left
        self._news = trio.Event()
        self._lost = False
        self._invalid: set[int] = set()  # nodes that have sent what cannot be
        self.source = SharedBase(self.node, send, lambda: self._leader)

    # ---- what others send ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Take the events of other nodes at once, until there are no other nodes any more."""
        async with self._events:
            async for event in self._events:
                if event.node == self.node or event.node in self._left or not 0 <= event.node < self.nodes:
                    continue
                try:
                    if event.body is None:
                        self._node_left(event.node)
                    else:
                        self._receive(event.node, event.body)
                except Exception:
                    log.exception("a message of node %d is of no use", event.node)
            self._lose()

    def _receive(self, node: int, body: bytes) -> None:
        try:
            message = messages.from_cluster.decode(body)
            if isinstance(message, messages.CopiesOffered | messages.CopiesTaken):
                self._handover.receive(node, message)
            elif isinstance(message, messages.SourceSeen | messages.SourceAgreed):
                self.source.receive(node, message)
            elif isinstance(message, messages.CopiesKept):
                self._kept.receive(node, message)
            elif isinstance(message, messages.NodeRoom):
                self._rooms.setdefault(node, message)
                self._news.set()
            elif len(self._received) >= RECEIVED_MOST:
                raise ValueError("more than is looked at")
            else:
                self._received.append((node, message))
                self._news.set()
        except ValueError as e:
            self._refuse(node, str(e))

    def _node_left(self, node: int) -> None:
        """Ask that node no more: files that live there are read from the source."""
        self._left.add(node)
        self._handover.left(node)
        self.source.left(node)
        self._forget_expected(self._holder == 1 + node)
        self._received.append((node, None))
        self._news.set()

    def _lose(self) -> None:
        """Note that there are no other nodes any more."""
        self._lost = True
        self._received.clear()
        self._handover.lost()
        self._forget_expected((self._holder != 0) & (self._holder != HOME_HERE))
        self._news.set()

    def _forget_expected(self, rows: NDArray[np.bool_]) -> None:
        self._holder[rows] = 0
        self._loop.policy.withdraw_placement(rows)

    @property
    def _leader(self) -> int:
        return min(set(range(self.nodes)) - self._after)

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or all others are gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)  # also when nothing more can be agreed upon: nodes may leave
            await self._agree()

    async def _agree(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._handover.run)
                nursery.start_soon(self.source.run)
                nursery.start_soon(self._hold_back)
                await self._run()
                nursery.cancel_scope.cancel()
        except Exception:
            log.exception("where files live in the cluster cannot be agreed upon; going on with what was")
        finally:
            self._loop.fetch_ahead()
            self._handover.lost()

    async def _hold_back(self) -> None:
        await self._plan_made()
        await trio.sleep(HOLD_BACK_S)
        self._loop.fetch_ahead()

    async def _plan_made(self) -> None:
        await self._until(lambda: self._loop.follower is not None, FOLLOWER_S)

    async def _until(self, holds: Callable[[], bool], limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            while not holds():  # noqa: ASYNC110 other tasks see to it
                await trio.sleep(LOOK_S)

    async def _run(self) -> None:
        policy, tiers = self._loop.policy, self._config.disks
        await self._kept.send_due(self._send)
        there = self._kept.bytes_here(self._charges, len(tiers))
        disks = await trio.to_thread.run_sync(disk_rooms, tiers, there, abandon_on_cancel=True)
        own = self._rooms[self.node] = messages.NodeRoom(policy.split.homes, disks, policy.split.whole_limit)
        await self._send(own)
        begins = trio.current_time() + ROOMS_S
        while not self._lost:
            with trio.move_on_after(LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
            while self._received:
                node, message = self._received.popleft()
                await self._take(node, message)
            known = set(self._rooms) | self._left
            if self._leader == self.node and (len(known) == self.nodes or trio.current_time() >= begins):
                await self._propose()
            await self._begin()

    def _go_on_without(self, node: int) -> None:
        self._after.add(node)
        early = self._early.pop(self._leader, None)
        if early is not None:
            self._received.appendleft((self._leader, early))

    async def _send(self, message: Message) -> None:
        """Send to all other nodes."""
        with trio.move_on_after(SENDING_S) as limit:
            await self._send_to(ALL_OTHERS, message)
        if limit.cancelled_caught:
            log.error("the other nodes did not take the message %s in time", type(message).__name__)

    async def _take(self, node: int, message: messages.FromCluster | None) -> None:
        match message:
            case None:
                self._go_on_without(node)
            case messages.ProposedPlacement():
                try:
                    await self._follow_proposal(node, message)
                except ValueError as e:
                    self._refuse(node, str(e))
            case messages.PlacementComputed(number=number):
                self._ready[node] = number
            case messages.PlacementBegins(number=number) if node == self._leader and number == self._number:
                self._ask_others()

    def _refuse(self, node: int, why: str) -> None:
        if node not in self._invalid:
            self._invalid.add(node)
            log.warning("node %d sends what cannot be: %s; that is ignored", node, why)

    # ---- placements ---------------------------------------------------------------------------------------

    async def _follow_proposal(self, node: int, message: messages.ProposedPlacement) -> None:
        """Compute the placement that another node proposes, once that node leads. Raises ValueError."""
        order = PlacementProposal.from_message(message, self.nodes, self._index.n_dirs)
        if order.number <= self._named.get(node, 0):
            raise ValueError("number: it was named before")
        if node != self._leader:  # what makes it the leader is yet to be heard of here
            self._early[node] = message
            return
        self._named[node] = order.number
        await self._compute(order)

    async def _propose(self) -> None:
        """Name what is read here and is not covered."""
        for what, epochs in self._wanted():
            key = (what.root, what.files, what.plan and what.plan.subset)
            if key in self._handled:
                continue
            self._handled.add(key)
            if self._number >= messages.NUMBER_MOST or not await self._is_worth(what):
                continue
            rooms = [self._rooms.get(node, _NO_ROOM) if node not in self._left else _NO_ROOM
                     for node in range(self.nodes)]  # fmt: skip
            limit = min((room.whole_limit for room in rooms if room != _NO_ROOM), default=0)
            order = PlacementProposal(
                self._number + 1, room_table(rooms), limit,
                self._config.placement, min(epochs, messages.EPOCHS_MOST), what,
            )  # fmt: skip
            await self._send(order.to_message())
            await self._compute(order)

    def _wanted(self) -> list[tuple[ReadSet, int]]:
        """The files that are read, as far as this node knows, and the number of epochs to be looked at."""
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
        limit = self._loop.policy.split.whole_limit

        def share() -> float:
            rows = what.rows(self._index, datasets, self._charges)
            return float(np.mean(before.to_cover(rows, self._charges, limit))) if len(rows) else 0.0

        try:
            return await trio.to_thread.run_sync(share, abandon_on_cancel=True) > WORTH
        except UNFIT as e:
            log.error("%s cannot be placed: %s", what.files or "what is read", reason(e))
            return False

    def _before(self, classes: int) -> ClusterHomes:
        """The placement so far, with at least so many classes."""
        before = self._cluster
        if before is None:
            return ClusterHomes.empty(len(self._charges), self.nodes, classes)
        more = classes - before.used.shape[1]
        return ClusterHomes(before.home, before.local, np.pad(before.used, ((0, 0), (0, more)))) if more > 0 else before

    async def _compute(self, order: PlacementProposal) -> None:
        """Compute the placement, and go by it. One that cannot be computed is left out, as it is by all others."""
        await self._plan_made()
        await self._all_heard(order)
        datasets = list(self._loop.follower.datasets) if self._loop.follower is not None else []
        before = self._before(order.rooms.shape[1])
        order = order.with_classes(before.used.shape[1])

        def compute() -> ClusterHomes:
            rows = order.what.rows(self._index, datasets, self._charges)
            return order.compute(before, rows, self._charges, self.node, self._kept.copies)

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

    async def _all_heard(self, order: PlacementProposal) -> None:
        """Wait for what nodes have kept: what they send comes by other ways than the proposal."""
        nodes = set(np.flatnonzero(order.rooms.any(axis=1)).tolist())
        await self._until(lambda: nodes <= set(self._rooms) | self._left, ROOMS_S)

    async def _ready_for(self, number: int) -> None:
        """Let the leader know that this node has done what it can."""
        if self._leader == self.node:
            self._begin_by = trio.current_time() + BEGIN_S
            return
        self._begin_by = trio.current_time() + BEGIN_LATE_S
        with trio.move_on_after(SENDING_S):
            await self._send_to(self._leader, messages.PlacementComputed(number))

    async def _begin(self) -> None:
        """Ask others when all know what lives with them. A node that does not know it yet has to say no, and then two
        nodes read the source."""
        if self._begun >= self._number:
            return
        late = trio.current_time() >= self._begin_by
        others = set(range(self.nodes)) - self._left - {self.node}
        if self._leader == self.node and (late or all(self._ready.get(node, 0) >= self._number for node in others)):
            await self._send(messages.PlacementBegins(self._number))
            self._ask_others()
        elif late:
            self._ask_others()

    def _ask_others(self) -> None:
        """Go by the whole of what was computed last."""
        if self._lost or self._cluster is None:
            return
        self._begun, self._begin_by = self._number, math.inf
        self._loop.fetch_ahead()
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
        furthest = self._loop.furthest_use_first(FURTHEST_LOOKED_AT)
        foreign = self._foreign(furthest, (cluster.home != NOBODY) & (cluster.home != self.node) & ~away)
        self._holder[foreign] = cluster.home[foreign] + np.uint16(1)  # nobody is asked for these: they are here
        self._handover.offer(foreign.tolist())  # before they leave memory here
        local = np.where(away, np.int8(UNCOVERED), cluster.local)
        self._loop.policy.apply_placement(local, furthest)
        self._handover.written(self._number)

    def _foreign(self, furthest: Rows, elsewhere: NDArray[np.bool_]) -> Rows:
        """Rows that are staged here and have their home `elsewhere`, b[n]: i64[m], the first to leave first."""
        staged = self._loop.policy.residency.staged_rows()
        order = np.concatenate([furthest[np.isin(furthest, staged)], np.setdiff1d(staged, furthest)])
        found: Rows = order[elsewhere[order]]
        return found

    # ---- status -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The part of this node in the status record."""
        return {
            "node": self.node, "nodes": self.nodes, "placement": self._config.placement, "number": self._begun,
            "distinct_share": round(self._share, 4), "homes_here": self._homes_here, "left": sorted(self._left),
        }  # fmt: skip
