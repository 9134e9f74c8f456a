"""Leases of staged copies to other nodes: their extents are pinned until the other node is done.

A row that is not staged is loaded first, from disk, or from the source if its home is here. It is never loaded from a
third node: two nodes that ask each other would wait for ever. The caller holds its own lock. Nothing here waits: all
that leaves are messages.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, Metric, Tier
from nopfsfs.protocol.stager_peer import SLOWEST, UNDER_WAY_BYTES, LeaseStatus, Record, RecordKind
from nopfsfs.stager.extents import ExtentPool
from nopfsfs.stager.load import NOWHERE
from nopfsfs.stager.peer_link import PeerOutbox
from nopfsfs.stager.whole_loads import WholeLoads
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
WAITING_MOST = 4096  # requests for which there is no room yet
ROOM_S = 2.0  # for the arena to have room for a row that is to be loaded
FULL_S = 10.0  # when it had none by then: nothing waits for that meanwhile
STUCK_S = 2.0  # without anything given back, and longer by what it takes to send: then nothing waits for that


@dataclass(slots=True, eq=False)
class _Lease:
    """A request of the peer process. First it waits for room within `UNDER_WAY_BYTES`. Then it is taken up, and waits
    for room in the arena, until `due`, and for its load. Then its extent is pinned."""

    id: int
    row: int
    length: int
    mtime_ns: int
    urgent: bool
    taken_up: bool = False
    due: float = 0.0
    slot: int = NOWHERE


class Leases:
    """All leases. `poke` makes the loop ask anew when limits are to be checked; `clock` is in seconds."""

    def __init__(
        self, pool: ExtentPool, loads: WholeLoads, outbox: PeerOutbox, *, index: Index, columns: Columns,
        source: Source, metrics: memoryview, poke: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._pool, self._loads, self._outbox = pool, loads, outbox
        self._index, self._columns, self._source, self._metrics = index, columns, source, metrics
        self._poke, self._clock = poke, clock
        self._leases: dict[int, _Lease] = {}
        self._waiting: tuple[dict[int, _Lease], dict[int, _Lease]] = {}, {}  # in their order; urgent ones apart
        self._without_room: dict[int, _Lease] = {}
        self._full_until = 0.0
        self._loading: dict[int, list[_Lease]] = {}  # by row
        self._bytes = 0  # of leases that were taken up
        self._moved = 0.0  # when the last lease was given back, or the first was taken up
        self._answers: list[Record] = []
        self.invalid = 0

    # ---- messages -----------------------------------------------------------------------------------------

    def requested(self, records: Sequence[Record]) -> None:
        """Take requests of other nodes for rows."""
        for number, row, length, mtime_ns, urgent in records:
            known = self._leases.get(number)
            if known is not None:
                self._hurry(known, row, bool(urgent))
                continue
            lease = _Lease(number, row, length, mtime_ns, bool(urgent))
            if not self._matches(lease) or len(self._waiting[0]) + len(self._waiting[1]) >= WAITING_MOST:
                self._answer(lease, LeaseStatus.NO)
                continue
            self._leases[number] = lease
            self._waiting[lease.urgent][number] = lease
            self._advance()
            if number in self._leases and lease.slot == NOWHERE:
                self._answer(lease, LeaseStatus.COMING)
        self._flush()

    def returned(self, records: Sequence[Record]) -> None:
        """End these leases. Some may have been refused meanwhile."""
        for (number,) in records:
            lease = self._leases.get(number)
            if lease is None:
                continue
            if lease.slot != NOWHERE:
                self._metrics[Metric.LENT_FILES] += 1
                self._metrics[Metric.LENT_BYTES] += lease.length
            self._forget(lease)
        self._advance()
        self._flush()

    def load_ended(self, row: int) -> None:
        """Grant or refuse what has waited for a load of the row."""
        if row not in self._loading:
            return
        for lease in self._loading.pop(row):
            if not self._grant_if_staged(lease):
                self._refuse(lease)
        self._advance()
        self._flush()

    def detach(self) -> None:
        """End all leases: the peer process has ended, and reads nothing any more."""
        for lease in list(self._leases.values()):
            self._forget(lease)

    # ---- one request --------------------------------------------------------------------------------------

    def _matches(self, lease: _Lease) -> bool:
        """True for a file whose indexed version is asked for and still holds. Later versions are never leased: requests
        carry size and mtime only, which do not distinguish them."""
        row = lease.row
        if not self._index.n_dirs <= row < self._index.n or not stat.S_ISREG(int(self._index.mode[row])):
            return False
        identity = self._source.identity(row)
        changed = self._columns.stale[row] or self._columns.version[row]
        return not changed and (identity.size, identity.mtime_ns) == (lease.length, lease.mtime_ns)

    def _hurry(self, lease: _Lease, row: int, urgent: bool) -> None:
        """Take a known number again: a reader has come to wait for it."""
        if row != lease.row:
            self.invalid += 1
            if self.invalid == 1:
                log.error("the peer process asks for row %d under the number of another", row)
        elif urgent and not lease.urgent:
            lease.urgent = True
            if not lease.taken_up:
                self._waiting[1][lease.id] = self._waiting[0].pop(lease.id)
            elif lease.slot == NOWHERE and lease.id not in self._without_room:
                self._loads.load_to_lease(row, urgent=True)

    def _advance(self) -> None:
        """Take up the requests that there is room for, in their order."""
        while queue := self._waiting[1] or self._waiting[0]:
            lease = next(iter(queue.values()))
            if self._bytes and self._bytes + lease.length > UNDER_WAY_BYTES:
                if self._clock() < self._moved + STUCK_S + self._bytes / SLOWEST:
                    return
                self._refuse(lease)  # a node that hangs does not give its leases back
                continue
            if not self._bytes:
                self._moved = self._clock()
            del queue[lease.id]
            lease.taken_up = True
            self._bytes += lease.length
            if not self._grant_if_staged(lease):
                self._load(lease)

    def _load(self, lease: _Lease) -> None:
        try:
            begun = self._matches(lease) and self._loads.load_to_lease(lease.row, urgent=lease.urgent)
        except NoRoom:
            self._await_room(lease)
            return
        self._without_room.pop(lease.id, None)
        if begun:
            self._loading.setdefault(lease.row, []).append(lease)
        else:
            self._refuse(lease)

    def _await_room(self, lease: _Lease) -> None:
        """Let a lease wait for room in the arena, for a while; leases that are returned mostly make some soon."""
        now = self._clock()
        if lease.id in self._without_room:
            if now < lease.due:
                return
            self._full_until = now + FULL_S
        elif now >= self._full_until:
            lease.due = now + ROOM_S
            if not self._without_room:
                self._poke()
            self._without_room[lease.id] = lease
            return
        self._refuse(lease)

    @property
    def without_room(self) -> bool:
        """True while `try_again` is to be called soon."""
        return bool(self._without_room)

    def try_again(self) -> None:
        """Load what has waited for room in the arena, where there is some now."""
        for lease in list(self._without_room.values()):
            if self._grant_if_staged(lease):
                del self._without_room[lease.id]
                continue
            self._load(lease)
            if lease.id in self._without_room:
                break  # the others have waited less long
        self._advance()
        self._flush()

    def _grant_if_staged(self, lease: _Lease) -> bool:
        if int(self._columns.tier[lease.row]) != Tier.RAM or not self._matches(lease):
            return False
        lease.slot = int(self._columns.slot[lease.row])
        self._pool.pin(lease.slot)
        self._answer(lease, LeaseStatus.OK)
        return True

    def _refuse(self, lease: _Lease) -> None:
        self._forget(lease)
        self._answer(lease, LeaseStatus.NO)

    def _forget(self, lease: _Lease) -> None:
        """Remove the lease from its queue or its load, or unpin its extent."""
        del self._leases[lease.id]
        if not lease.taken_up:
            del self._waiting[lease.urgent][lease.id]
            return
        self._bytes -= lease.length
        self._moved = self._clock()
        if lease.slot != NOWHERE:
            self._pool.unpin(lease.slot)
        elif lease.id in self._without_room:
            del self._without_room[lease.id]
        elif lease in (waiting := self._loading.get(lease.row, [])):
            waiting.remove(lease)
            if not waiting:
                del self._loading[lease.row]

    # ---- answers ------------------------------------------------------------------------------------------

    def _answer(self, lease: _Lease, status: LeaseStatus) -> None:
        ok = status == LeaseStatus.OK
        check = int(self._columns.check[lease.row]) if ok else 0
        self._answers.append((lease.id, lease.slot if ok else 0, lease.length, check, status))

    def _flush(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._outbox.send(RecordKind.LENT, answers)
