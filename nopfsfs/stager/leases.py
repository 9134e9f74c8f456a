"""What other nodes ask of this one: staged rows are pinned and lent; others are loaded first, from disk, or from the
source if their home is here. Never from a third node: two that ask each other would wait for ever.

Everything here is called with the desk's lock held; all that leaves it are messages that nobody waits for.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, Metric, Tier
from nopfsfs.protocol.stager_peer import SLOWEST, UNDER_WAY_BYTES, Kind, Record, Status
from nopfsfs.stager.pins import Pins
from nopfsfs.tiers.arena import NoRoom
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
WAITING_MOST = 4096  # requests for which there is no room yet
ROOM_S = 2.0  # for the arena to have room for a row that is to be loaded
FULL_S = 10.0  # when it had none by then: nothing waits for that meanwhile
STUCK_S = 2.0  # without anything given back, and longer by what it takes to send: then nothing waits for that
_NOWHERE = -1


class Loads(Protocol):
    """What is needed of whoever loads files; the desk's lock is held."""

    def load_to_lend(self, row: int, *, urgent: bool) -> bool:
        """Load a row that is not staged, or join a load of it; `loaded` will be called. False: that may not be. Raises
        NoRoom: not now."""


@dataclass(slots=True, eq=False)
class _Lease:
    """One request of the peer process. It waits for room among those that are lent; then it is taken up: then it
    waits for room in the arena, until `due`, and for its load; then it has its extent pinned."""

    id: int
    row: int
    length: int
    mtime_ns: int
    urgent: bool
    taken_up: bool = False
    due: float = 0.0
    slot: int = _NOWHERE


class Leases:
    """See the module. `send` takes a message; `poke` makes the loop look at what waits; `clock` is in seconds."""

    def __init__(
        self, loads: Loads, *, index: Index, columns: Columns, source: Source, gauge: memoryview, pins: Pins,
        send: Callable[[Kind, Sequence[Record]], None], poke: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._loads, self._index, self._columns, self._source = loads, index, columns, source
        self._gauge, self._pins, self._send = gauge, pins, send
        self._poke, self._clock = poke, clock
        self._lends: dict[int, _Lease] = {}
        self._waiting: tuple[dict[int, _Lease], dict[int, _Lease]] = {}, {}  # in their order; urgent ones apart
        self._without_room: dict[int, _Lease] = {}
        self._full_until = 0.0
        self._loading: dict[int, list[_Lease]] = {}  # by row
        self._bytes = 0  # of what was taken up
        self._moved = 0.0  # when some of it was given back last, or was taken up first
        self._answers: list[Record] = []
        self.strange = 0

    # ---- messages -----------------------------------------------------------------------------------------

    def lend(self, records: Sequence[Record]) -> None:
        """Other nodes ask for these rows."""
        for number, row, length, mtime_ns, urgent in records:
            known = self._lends.get(number)
            if known is not None:
                self._again(known, row, bool(urgent))
                continue
            lend = _Lease(number, row, length, mtime_ns, bool(urgent))
            if not self._matches(lend) or len(self._waiting[0]) + len(self._waiting[1]) >= WAITING_MOST:
                self._say(lend, Status.NO)
                continue
            self._lends[number] = lend
            self._waiting[lend.urgent][number] = lend
            self._advance()
            if number in self._lends and lend.slot == _NOWHERE:
                self._say(lend, Status.COMING)
        self._flush()

    def back(self, records: Sequence[Record]) -> None:
        """What was lent under these numbers is not needed any more. Some may have been refused meanwhile."""
        for (number,) in records:
            lend = self._lends.get(number)
            if lend is None:
                continue
            if lend.slot != _NOWHERE:
                self._gauge[Metric.LENT_FILES] += 1
                self._gauge[Metric.LENT_BYTES] += lend.length
            self._forget(lend)
        self._advance()
        self._flush()

    def loaded(self, row: int) -> None:
        """A load of the row has ended, in one way or another."""
        if row not in self._loading:
            return
        for lend in self._loading.pop(row):
            if not self._lend_staged(lend):
                self._refuse(lend)
        self._advance()
        self._flush()

    def detach(self) -> None:
        """The peer process has ended: it reads nothing any more."""
        lends = list(self._lends.values())
        for lend in lends:
            self._forget(lend)

    # ---- one request --------------------------------------------------------------------------------------

    def _matches(self, lend: _Lease) -> bool:
        """Whether there is such a file, and it is the version that is asked for: that of the index. Of later ones size
        and mtime do not tell enough, and nothing else travels."""
        row = lend.row
        if not self._index.n_dirs <= row < self._index.n or not stat.S_ISREG(int(self._index.mode[row])):
            return False
        identity = self._source.identity(row)
        changed = self._columns.stale[row] or self._columns.version[row]
        return not changed and (identity.size, identity.mtime_ns) == (lend.length, lend.mtime_ns)

    def _again(self, lend: _Lease, row: int, urgent: bool) -> None:
        """A number that is known: a reader has come to wait for it."""
        if row != lend.row:
            self.strange += 1
            if self.strange == 1:
                log.error("the peer process asks for row %d under the number of another", row)
        elif urgent and not lend.urgent:
            lend.urgent = True
            if not lend.taken_up:
                self._waiting[1][lend.id] = self._waiting[0].pop(lend.id)
            elif lend.slot == _NOWHERE and lend.id not in self._without_room:
                self._loads.load_to_lend(row, urgent=True)

    def _advance(self) -> None:
        """Take up what there is room for, in its order."""
        while queue := self._waiting[1] or self._waiting[0]:
            lend = next(iter(queue.values()))
            if self._bytes and self._bytes + lend.length > UNDER_WAY_BYTES:
                if self._clock() < self._moved + STUCK_S + self._bytes / SLOWEST:
                    return
                self._refuse(lend)  # a node that hangs does not take what it was lent
                continue
            if not self._bytes:
                self._moved = self._clock()
            del queue[lend.id]
            lend.taken_up = True
            self._bytes += lend.length
            if not self._lend_staged(lend):
                self._load(lend)

    def _load(self, lend: _Lease) -> None:
        try:
            begun = self._matches(lend) and self._loads.load_to_lend(lend.row, urgent=lend.urgent)
        except NoRoom:
            self._await_room(lend)
            return
        self._without_room.pop(lend.id, None)
        if begun:
            self._loading.setdefault(lend.row, []).append(lend)
        else:
            self._refuse(lend)

    def _await_room(self, lend: _Lease) -> None:
        """What there is no room for now: what was lent leaves soon, mostly."""
        now = self._clock()
        if lend.id in self._without_room:
            if now < lend.due:
                return
            self._full_until = now + FULL_S
        elif now >= self._full_until:
            lend.due = now + ROOM_S
            if not self._without_room:
                self._poke()
            self._without_room[lend.id] = lend
            return
        self._refuse(lend)

    @property
    def without_room(self) -> bool:
        """Whether there is something to `look` at again soon."""
        return bool(self._without_room)

    def look(self) -> None:
        """Is there room now for what waits for it?"""
        for lend in list(self._without_room.values()):
            if self._lend_staged(lend):
                del self._without_room[lend.id]
                continue
            self._load(lend)
            if lend.id in self._without_room:
                break  # the others have not waited as long
        self._advance()
        self._flush()

    def _lend_staged(self, lend: _Lease) -> bool:
        if self._columns.tier[lend.row] != Tier.RAM or not self._matches(lend):
            return False
        lend.slot = int(self._columns.slot[lend.row])
        self._pins.pin(lend.slot)
        self._say(lend, Status.OK)
        return True

    def _refuse(self, lend: _Lease) -> None:
        self._forget(lend)
        self._say(lend, Status.NO)

    def _forget(self, lend: _Lease) -> None:
        """Whatever it waits for, or holds, it does no more."""
        del self._lends[lend.id]
        if not lend.taken_up:
            del self._waiting[lend.urgent][lend.id]
            return
        self._bytes -= lend.length
        self._moved = self._clock()
        if lend.slot != _NOWHERE:
            self._pins.unpin(lend.slot)
        elif lend.id in self._without_room:
            del self._without_room[lend.id]
        elif lend in (waiting := self._loading.get(lend.row, [])):
            waiting.remove(lend)
            if not waiting:
                del self._loading[lend.row]

    # ---- answers ------------------------------------------------------------------------------------------

    def _say(self, lend: _Lease, status: Status) -> None:
        ok = status == Status.OK
        check = int(self._columns.check[lend.row]) if ok else 0
        self._answers.append((lend.id, lend.slot if ok else 0, lend.length, check, status))

    def _flush(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._send(Kind.LENT, answers)
