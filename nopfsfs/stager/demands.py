"""Demands of servers: answered at once, or by a load under way, or by one that begins now."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, Metric, Tier
from nopfsfs.protocol.server_stager import Answer, Demand, Origin
from nopfsfs.stager.large.block_copies import BlockCopies
from nopfsfs.stager.load import Load, Waiter
from nopfsfs.stager.range_loads import RangeLoads
from nopfsfs.stager.read_queue import ReadQueue
from nopfsfs.stager.remote_fetches import RemoteFetches
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.stager.workers import Workers
from nopfsfs.tiers.source import Source

DELAY_S = 2.0  # for which a demand waits for room: its block, read by the server alone, would be read twice
COPY_DELAY_S = 0.1  # the same, of a file that has a copy on disk: the server would read the source
REST_S = 5.0  # after a demand that has waited in vain, in which none of its kind waits


class Demands:
    """Answers READs of servers. `answer` sends an answer to a server. The caller holds its own lock. `copies`: of large
    files; while a block of these finds no room, as others are being written to disk, its demand waits. So does, for a
    moment, that of a file with a copy on disk, until other reads end and make room."""

    def __init__(
        self, queue: ReadQueue, workers: Workers, loads: WholeLoads, ranges: RangeLoads, remote: RemoteFetches,
        copies: BlockCopies, *, index: Index, columns: Columns, source: Source, metrics: memoryview,
        answer: Callable[[Answer], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._copies, self._clock = copies, clock
        self._delayed: deque[tuple[Demand, float]] = deque()  # and since when
        self._waits_from = self._copy_waits_from = 0.0
        self._queue, self._workers = queue, workers
        self._loads, self._ranges, self._remote = loads, ranges, remote
        self._index, self._columns, self._source = index, columns, source
        self._metrics, self._answer = metrics, answer

    def take(self, demand: Demand) -> None:
        """Answer a demand, now or when its bytes have arrived."""
        self._take(demand, self._clock())

    def retry(self, *, freed: bool = False) -> bool:
        """Try the demands again that wait for room; True when some still do. `freed`: memory was. Demands of files that
        are not kept by blocks are tried only then, as far as there is room, or when their time is over. Each try costs
        range blocks their memory."""
        delayed, self._delayed = self._delayed, deque()
        for demand, since in delayed:
            large = demand.row in self._copies
            if large or freed or not self._has_time(since):
                waiting = len(self._delayed)
                self._take(demand, since, again=True)
                freed = freed and (large or len(self._delayed) == waiting)
            else:
                self._delayed.append((demand, since))
        return bool(self._delayed)

    def _has_time(self, since: float) -> bool:
        """True while a demand of a file with a copy on disk may wait on."""
        return since >= self._copy_waits_from and self._clock() - since < COPY_DELAY_S

    def _take(self, demand: Demand, since: float, *, again: bool = False) -> None:
        answer = self._answer_now(demand, since, again=again)
        if answer is not None:
            self._answer(answer)  # under the lock: see `WholeLoads.block_ended`
        if demand.row < self._index.n:
            # After the answer: this may give up the very block that the answer names.
            version = int(self._columns.version[demand.row])
            for load in self._ranges.ahead(demand.row, demand.offset // self._ranges.block, version):
                (self._queue.queue if load.from_disk else self._queue.follow)(load)

    def _answer_now(self, demand: Demand, since: float, *, again: bool) -> Answer | None:
        """The answer to a demand; None when one will come, at the end of a block."""
        row, start = demand.row, demand.offset
        if not self._index.n_dirs <= row < self._index.n:
            return Answer(demand.id, errno.EIO, 0, 0)
        end = min(start + demand.length, self._source.size(row))
        if start >= end:
            return Answer(demand.id, 0, 0, 0)
        if self._columns.stale[row]:
            return Answer(demand.id, errno.ESTALE, 0, 0)
        if int(self._columns.tier[row]) == Tier.RAM:
            return Answer(demand.id, 0, int(self._columns.slot[row]) + start, end - start, Origin.RAM)
        late = self._clock() - since >= DELAY_S or since < self._waits_from or not self._ranges.has_any_room
        waits = self._loads.reads_copy(row) and row not in self._copies and not self._workers.exhausted
        waits = waits and self._has_time(since)
        load = self._load_for(row, start, late=late, whole=again and waits)
        if load is None and row in self._copies:
            if not late:
                self._delayed.append((demand, since))
                return None
            self._waits_from = max(self._waits_from, since + DELAY_S + REST_S)
        if load is None and waits:
            self._delayed.append((demand, since))
            return None
        if load is None:
            if self._clock() - since >= COPY_DELAY_S:
                self._copy_waits_from = self._clock() + REST_S
            self._metrics[Metric.NO_ROOM] += 1
            return Answer(demand.id, errno.ENOSPC, 0, 0)  # the server reads by itself
        end = min(end, load.start + load.length)
        if load.failed or load.version != self._columns.version[row]:
            # It failed for whoever waited then, or has the bytes of a version before: the server reads by itself.
            return Answer(demand.id, errno.ENOSPC, 0, 0)
        if load.ready(start, end):
            return Answer(demand.id, 0, load.arena + start - load.start, end - start, load.serve(end - start))
        load.waiters.append(Waiter(demand.id, start, end))
        if load.from_peer is None:
            self._queue.demand(load, load.blocks_of(start, end))
        else:
            self._remote.demand(load)
        return None

    def _load_for(self, row: int, start: int, *, late: bool, whole: bool) -> Load | None:
        """The load that brings byte `start` of the row, under way or begun now. The load is of the `whole` file only
        where that is said. None without room or threads, and while its copy on disk is looked at, unless it is
        `late`."""
        load = self._loads.of(row)
        if load is None and not self._workers.exhausted:
            load = self._loads.begin_demanded(row, self._remote.node_for_demand(row))
            if load is None and not whole and (late or not self._copies.is_awaited(row)):
                load = self._ranges.load(row, start // self._ranges.block, int(self._columns.version[row]))
        return load
