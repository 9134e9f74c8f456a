"""Fetches from other nodes: rows whose home is another node, fetched from there into extents of the arena.

`RemoteFetches` owns the rows that wait to be requested, the requests without an answer, and their limits. Owns also the
extents that may still be written to after their load has gone on without them. A request that a reader waits for goes
on from the source when its answer is late (a hedge). The caller holds its own lock. Nothing here waits: all that leaves
are messages.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nopfsfs.protocol.columns import HOME_HERE, Columns, Metric
from nopfsfs.protocol.stager_peer import (
    LENGTH_MOST,
    MARGIN_S,
    PREFETCHES_A_PAIR,
    UNDER_WAY_BYTES,
    LeaseStatus,
    Record,
    RecordKind,
    limit_s,
)
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import Load
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.peer_link import PeerOutbox
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
CHECK_S = 0.25  # between checks of limits of some seconds
# Bytes of a file that may still come after its reader has gone on: so that a slow node is known from a dead one.
HEDGED_MOST = 1 << 20
HEDGE_AGAIN_S = 0.02  # from a late answer that is waited for to the next look: the node may be down by then
HUNG_AFTER = 3  # requests that ran out here without any message meanwhile: the peer process itself hangs
_FAILED = {
    LeaseStatus.NO: Metric.PEER_REFUSED, LeaseStatus.LATE: Metric.PEER_LATE, LeaseStatus.CORRUPT: Metric.PEER_CORRUPT,
    LeaseStatus.LOST: Metric.PEER_REFUSED,
}  # fmt: skip
_GO_ON = (LeaseStatus.COMING, LeaseStatus.SENDING)
_LAST = max(LeaseStatus)


@dataclass(slots=True, eq=False)
class _RemoteFetch:
    load: Load
    node: int
    began: float
    due: float
    urgent: bool
    prefetch: bool  # among those that are bounded
    coming: bool = False  # the node reads the file
    sending: bool = False  # the node has it, and its bytes are under way
    late: float = math.inf  # when its answer is late for the reader that waits
    missed: bool = False  # it was late, and the reader waits on


class RemoteFetches:
    """All fetches from other nodes. `lanes` says whether a node is to be asked. `poke` makes the loop ask anew when
    limits are to be checked; `clock` is in seconds."""

    def __init__(
        self, pool: ExtentPool, queue: ReadQueue, loads: WholeLoads, lanes: LoadLanes, outbox: PeerOutbox, *,
        columns: Columns, source: Source, metrics: memoryview, poke: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._pool, self._queue, self._loads, self._lanes, self._outbox = pool, queue, loads, lanes, outbox
        self._source, self._metrics = source, metrics
        self._holder, self._disk, self._n = columns.holder, columns.disk, len(columns.holder)
        self._version = columns.version
        self._poke, self._clock = poke, clock
        self._waiting: dict[int, deque[tuple[int, int]]] = {}  # by node: (number of the command, row)
        self.may_send = False  # `send_next` may have something to do
        self._fetches: dict[int, _RemoteFetch] = {}  # requests without an answer, by number
        self._late: list[tuple[float, int]] = []  # a heap: when a request that a reader waits for is late, its number
        self._rerouted: set[int] = set()  # queued rows that are to be read from the source
        self._prefetches: dict[int, int] = {}  # by node
        self._prefetch_bytes = 0
        self._held: dict[int, tuple[int, int]] = {}  # extents, lengths by the request that may still write them
        self._held_bytes = 0
        self._hedged: dict[int, _RemoteFetch] = {}  # those of `_held` that may still be answered
        self._ids, self._order = itertools.count(1), itertools.count()
        self._attached = False
        self._checked = 0.0
        self._silent = 0  # requests that ran out here since the last message of the peer process
        self.invalid = 0  # answers to no request

    # ---- the peer process ---------------------------------------------------------------------------------

    def attach(self) -> None:
        """Use the peer process that the outbox sends to."""
        self._attached, self._silent = True, 0

    def detach(self) -> None:
        """Go on without the peer process, which has ended and writes nothing any more."""
        self._attached = False
        self.may_send = True
        fetches = list(self._fetches.values())
        self._fetches.clear()
        self._late.clear()
        self._hedged.clear()
        self._prefetches.clear()
        self._prefetch_bytes = self._held_bytes = 0
        held, self._held = self._held, {}
        for extent, _ in held.values():
            self._pool.free(extent)
        for fetch in fetches:
            self._loads.read_source(fetch.load, anew=False)

    def peer_lives(self) -> None:
        """Note that the peer process has sent a message."""
        self._silent = 0

    @property
    def usable(self) -> bool:
        """True while the peer process may be asked. One that keeps many extents may not: it would come to have all."""
        return self._attached and self._silent < HUNG_AFTER and self._held_bytes <= UNDER_WAY_BYTES

    @property
    def pause(self) -> float | None:
        """Seconds until `check_limits` is to be called; None: there are no limits."""
        while self._late and self._late[0][1] not in self._fetches:
            heapq.heappop(self._late)
        if not self._fetches and not self._hedged:
            return None
        return max(0.0, min(CHECK_S, self._late[0][0] - self._clock())) if self._late else CHECK_S

    # ---- requests -------------------------------------------------------------------------------------------

    def node_of(self, row: int) -> int | None:
        """The node that a load of the row is to be asked of; None for a row that is to be read here."""
        if not self.usable or not 0 <= row < self._n or self._disk[row]:
            return None
        holder = int(self._holder[row])
        if self._version[row]:
            return None  # changed since the index was made: others may know it otherwise
        if holder in (0, HOME_HERE) or not 0 < self._source.size(row) <= LENGTH_MOST:  # nothing is worth no message
            return None
        return holder - 1

    def node_for_demand(self, row: int) -> int | None:
        """The node that is asked for a row for which a reader waits; None: the row is read here."""
        node = self.node_of(row)
        if node is None or self._lanes.asks(self._source.size(row), node, prefetch=False):
            return node
        return None

    def node_for_prefetch(self, row: int) -> int | None:
        """The node by which a queued row is to wait, whose turn to be read here has come; None: it is read here."""
        if row in self._rerouted:
            self._rerouted.discard(row)
            return None
        return self.node_of(row)

    def queue(self, row: int, node: int) -> None:
        """Ask the node for the row when its turn comes (`send_next`)."""
        self.may_send = True
        self._waiting.setdefault(node, deque()).append((next(self._order), row))

    def cancel(self) -> list[int]:
        """Forget the rows that were not asked for yet, and return them."""
        rows = [row for _, row in sorted(itertools.chain.from_iterable(self._waiting.values()))]
        self._waiting.clear()
        self._rerouted.clear()
        return rows

    def demand(self, load: Load) -> None:
        """Ask for a load from another node that a reader waits for, or hurry its request."""
        fetch = self._fetches.get(load.ask)
        if fetch is None:
            self._outbox.send(RecordKind.ASK, [self._request(load, urgent=True)])
        elif not fetch.urgent:
            fetch.urgent = True
            self._expect(load.ask, fetch, now=self._lanes.is_down(fetch.node))
            if fetch.coming or fetch.sending:  # as for one who asks now
                fetch.due = min(fetch.due, self._clock() + self._limit(fetch))
            self._outbox.send(RecordKind.HURRY, [(load.ask,)])

    def send_next(self) -> None:
        """Ask for the rows that wait, as far as the bounds allow; read them here where no node may be asked."""
        self.may_send = False
        if not self.usable:
            self._queue.fetch(self.cancel())
            return
        requests: list[Record] = []
        while (found := self._next()) is not None:
            row, node = found
            now_of = self.node_of(row)
            if now_of is None:  # a copy on disk came, or its home is another now
                self._queue.fetch([row])
            elif now_of != node:
                self.queue(row, now_of)
            elif not self._lanes.asks(self._source.size(row), node, prefetch=True):
                self._rerouted.add(row)
                self._queue.fetch([row])
            elif (load := self._loads.begin_prefetch(row, node)) is not None:
                requests.append(self._request(load, urgent=False))
        if requests:
            self._outbox.send(RecordKind.ASK, requests)

    def _next(self) -> tuple[int, int] | None:
        """The row that has waited longest of those whose node may be asked for more, and its node."""
        heads = [
            (queue[0][0], node)
            for node, queue in self._waiting.items()
            if self._prefetches.get(node, 0) < PREFETCHES_A_PAIR or self._lanes.is_down(node)
        ]
        if not heads:
            return None
        node = min(heads)[1]
        row = self._waiting[node][0][1]
        if self._prefetch_bytes and self._prefetch_bytes + self._source.size(row) > UNDER_WAY_BYTES:
            return None
        self._waiting[node].popleft()
        if not self._waiting[node]:
            del self._waiting[node]
        return row, node

    def _request(self, load: Load, *, urgent: bool) -> Record:
        """Note a request for a load; return its record."""
        assert load.from_peer is not None
        if not self._fetches:
            self._poke()
        now, node = self._clock(), load.from_peer
        load.ask = next(self._ids)
        fetch = self._fetches[load.ask] = _RemoteFetch(load, node, now, now, urgent, not urgent)
        fetch.due = now + self._limit(fetch)
        if fetch.prefetch:
            self._prefetches[node] = self._prefetches.get(node, 0) + 1
            self._prefetch_bytes += load.length
        else:
            self._expect(load.ask, fetch)
        mtime_ns = self._source.identity(load.row).mtime_ns
        return load.ask, load.row, load.arena, load.length, mtime_ns, node, urgent

    def _expect(self, number: int, fetch: _RemoteFetch, *, now: bool = False) -> None:
        """Note when the answer to a request for which a reader waits is late; `now`: it is."""
        wait_s = 0.0
        if not now:
            wait_s = self._lanes.hedge_after(fetch.load, fetch.node, coming=fetch.coming, sending=fetch.sending)
        fetch.late = self._clock() + wait_s
        heapq.heappush(self._late, (fetch.late, number))

    @staticmethod
    def _limit(fetch: _RemoteFetch) -> float:
        goes_on = fetch.coming or fetch.sending
        return limit_s(coming=goes_on, urgent=fetch.urgent, length=fetch.load.length) + MARGIN_S

    # ---- answers ------------------------------------------------------------------------------------------

    def received(self, records: Sequence[Record]) -> None:
        """Take the peer process's answers to requests."""
        for number, check, status, held in records:
            if number in self._held:  # it was given up
                self._answered_late(number, status)
                if not held and status not in _GO_ON:
                    self._release(number)
            elif (fetch := self._fetches.get(number)) is None or status > _LAST:
                self._ignore(f"an answer to request {number} of status {status}")
            elif status in _GO_ON:
                self._goes_on(number, fetch, status)
            elif status == LeaseStatus.OK and not held:
                self._end(number)
                self._lanes.answered(fetch.node)
                self._loads.arrived(fetch.load, check, int((self._clock() - fetch.began) * 1e9))
            else:
                # Bytes that have come, and may yet be written to, are not used.
                if status == LeaseStatus.LATE:
                    self._lanes.late(fetch.node, fetch.began)
                else:
                    self._lanes.answered(fetch.node)
                self._give_up(number, _FAILED.get(LeaseStatus(status), Metric.PEER_CORRUPT), held=bool(held))

    def _answered_late(self, number: int, status: int) -> None:
        """Note an answer to a request that went on from the source."""
        fetch = self._hedged.get(number)
        if fetch is None:
            return
        if status == LeaseStatus.OK and not fetch.coming:
            self._lanes.answered_late(fetch.load, fetch.node, self._clock() - fetch.began)
        elif status != LeaseStatus.LATE:
            if not fetch.coming:
                fetch.coming, fetch.due = True, self._clock() + self._limit(fetch)
            self._lanes.answered(fetch.node)

    def _goes_on(self, number: int, fetch: _RemoteFetch, status: int) -> None:
        """Note that a node reads the file, or sends it; once: one that says no more than that for ever is late all the
        same."""
        self._lanes.answered(fetch.node)
        if fetch.coming or fetch.sending:
            return
        if status == LeaseStatus.SENDING:
            fetch.sending = True
        else:
            fetch.coming = True
            self._lanes.end(fetch.load)  # how long that takes is not for the node to say
        fetch.missed = False
        fetch.due = self._clock() + self._limit(fetch)
        if fetch.urgent:
            self._expect(number, fetch)

    def freed(self, records: Sequence[Record]) -> None:
        """Free the extents of requests that were given up: nothing will write to them."""
        for (number,) in records:
            if number in self._held:
                self._release(number)
            elif number in self._fetches:
                self._ignore(f"an extent given back of request {number}, which was not given up")

    def check_limits(self) -> None:
        """Give up the requests that have run out, and those whose answers are late for readers."""
        now = self._clock()
        self._hedge(now)
        if now < self._checked + CHECK_S:
            return
        self._checked = now
        late = [number for number, fetch in self._fetches.items() if fetch.due <= now]
        kept = [number for number, fetch in self._hedged.items() if fetch.due <= now]
        for number in kept:
            del self._hedged[number]
        if late or kept:
            self._run_out(late, len(late) + len(kept))
            self._outbox.send(RecordKind.GIVE_UP, [(number,) for number in (*late, *kept)])

    def _run_out(self, late: list[int], count: int) -> None:
        """Give up requests without an answer in time; `count`: those included that readers wait for no more."""
        self._silent += count
        for number in late:
            self._lanes.late(self._fetches[number].node, self._fetches[number].began)
            self._give_up(number, Metric.PEER_LATE, held=True)
        if self._silent >= HUNG_AFTER > self._silent - count:
            log.error("the peer process does not answer: going on without it")

    def _hedge(self, now: float) -> None:
        """Go on from the source where an answer is late, as far as that is permitted."""
        long: list[int] = []
        while self._late and self._late[0][0] <= now:
            when, number = heapq.heappop(self._late)
            fetch = self._fetches.get(number)
            if fetch is None or fetch.late != when:
                continue
            if self._lanes.hedges(fetch.node, again=fetch.missed, coming=fetch.coming):
                self._give_up(number, None, held=True)
                if fetch.load.length > HEDGED_MOST:
                    long.append(number)
                else:
                    self._hedged[number] = fetch
            else:
                fetch.late, fetch.missed = now + HEDGE_AGAIN_S, True
                heapq.heappush(self._late, (fetch.late, number))
        if long:
            self._outbox.send(RecordKind.GIVE_UP, [(number,) for number in long])

    def _end(self, number: int) -> _RemoteFetch:
        fetch = self._fetches.pop(number)
        self.may_send = True
        if fetch.prefetch:
            self._prefetches[fetch.node] -= 1
            self._prefetch_bytes -= fetch.load.length
        return fetch

    def _give_up(self, number: int, metric: Metric | None, *, held: bool) -> None:
        """Read from the source what does not come, and count it. `held`: its extent may still be written to."""
        load = self._end(number).load
        if metric is not None:
            self._metrics[metric] += 1
        if held:
            self._held[number] = load.arena, load.length
            self._held_bytes += load.length
        self._loads.read_source(load, anew=held)

    def _release(self, number: int) -> None:
        extent, length = self._held.pop(number)
        self._hedged.pop(number, None)
        self._held_bytes -= length
        self._pool.free(extent)
        self.may_send = True

    def _ignore(self, what: str) -> None:
        self.invalid += 1
        if self.invalid == 1:
            log.error("the peer process sends %s", what)
