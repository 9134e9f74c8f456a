"""What this node asks of others: rows whose home is another node, fetched from there into extents of the arena.

It owns which rows wait to be asked for, what was asked and not answered, the limits, and the extents that may still be
written after their load has gone on without them. Everything here is called with the desk's lock held; all that leaves
it are messages that nobody waits for.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nopfsfs.protocol.columns import HOME_HERE, Columns, Metric
from nopfsfs.protocol.stager_peer import (
    LENGTH_MOST,
    MARGIN_S,
    PREFETCHES_A_PAIR,
    UNDER_WAY_BYTES,
    Kind,
    Record,
    Status,
    limit_s,
)
from nopfsfs.stager.load import Load
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
LOOK_S = 0.25  # how often limits of some seconds are looked at
HUNG_AFTER = 3  # requests that ran out here, and not a word meanwhile: the peer process itself hangs
_FAILED = {
    Status.NO: Metric.PEER_REFUSED, Status.LATE: Metric.PEER_LATE, Status.CORRUPT: Metric.PEER_CORRUPT,
    Status.LOST: Metric.PEER_REFUSED,
}  # fmt: skip
_LAST = max(Status)


class Loads(Protocol):
    """What is needed of whoever loads files; the desk's lock is held."""

    def begin_from_peer(self, row: int, node: int) -> Load | None:
        """A prefetch of the row, nothing of it queued; None when there is none to be begun."""

    def arrived(self, load: Load, checksum: int, took_ns: int) -> None:
        """All bytes of it are in its extent."""

    def read_source(self, load: Load, *, anew: bool) -> None:
        """It goes on from the source; `anew`: in another extent, its own is no longer its."""

    def fetch_from_source(self, rows: Iterable[int]) -> None: ...

    def free(self, extent: int) -> None:
        """Nobody writes the extent, and nobody was told of it."""


@dataclass(slots=True, eq=False)
class _RemoteFetch:
    load: Load
    node: int
    began: float
    due: float
    urgent: bool
    prefetch: bool  # of those that are bounded
    coming: bool = False


class RemoteFetches:
    """See the module. `send` takes a message; `poke` makes the loop look at the limits; `clock` is in seconds."""

    def __init__(
        self, loads: Loads, *, columns: Columns, source: Source, gauge: memoryview,
        send: Callable[[Kind, Sequence[Record]], None], poke: Callable[[], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._loads, self._source, self._gauge = loads, source, gauge
        self._holder, self._disk, self._n = columns.holder, columns.disk, len(columns.holder)
        self._version = columns.version
        self._send, self._poke, self._clock = send, poke, clock
        self._waiting: dict[int, deque[tuple[int, int]]] = {}  # by node: (number of the order, row)
        self._asks: dict[int, _RemoteFetch] = {}
        self._prefetches: dict[int, int] = {}  # by node
        self._prefetch_bytes = 0
        self._held: dict[int, tuple[int, int]] = {}  # extents, lengths by the ask that may still write them
        self._held_bytes = 0
        self._ids, self._order = itertools.count(1), itertools.count()
        self._attached = False
        self._looked = 0.0
        self._silent = 0  # requests that ran out here since the peer process said anything
        self.strange = 0  # answers to nothing that was asked

    # ---- the peer process ---------------------------------------------------------------------------------

    def attach(self) -> None:
        """There is a peer process."""
        self._attached, self._silent = True, 0

    def detach(self) -> None:
        """It has ended: it writes nothing any more."""
        self._attached = False
        asks = list(self._asks.values())
        self._asks.clear()
        self._prefetches.clear()
        self._prefetch_bytes = self._held_bytes = 0
        held, self._held = self._held, {}
        for extent, _ in held.values():
            self._loads.free(extent)
        for ask in asks:
            self._loads.read_source(ask.load, anew=False)
        self.send_next()

    def heard(self) -> None:
        """It has said something."""
        self._silent = 0

    @property
    def usable(self) -> bool:
        """Whether it may be asked. One that keeps extents by the dozen may not: it would come to have them all."""
        return self._attached and self._silent < HUNG_AFTER and self._held_bytes <= UNDER_WAY_BYTES

    @property
    def asking(self) -> bool:
        """Whether there are limits to be looked at."""
        return bool(self._asks)

    # ---- asking -------------------------------------------------------------------------------------------

    def node_of(self, row: int) -> int | None:
        """The node that a load of the row is to be asked of; None: it is to be read here."""
        if not self.usable or not 0 <= row < self._n or self._disk[row]:
            return None
        holder = int(self._holder[row])
        if self._version[row]:
            return None  # changed since the index was made: others may know it otherwise
        if holder in (0, HOME_HERE) or not 0 < self._source.size(row) <= LENGTH_MOST:  # nothing is worth no message
            return None
        return holder - 1

    def queue(self, row: int, node: int) -> None:
        """Ask the node for the row when its turn comes (`pump`)."""
        self._waiting.setdefault(node, deque()).append((next(self._order), row))

    def cancel(self) -> list[int]:
        """Rows that were not asked for yet, and will not be."""
        rows = [row for _, row in sorted(itertools.chain.from_iterable(self._waiting.values()))]
        self._waiting.clear()
        return rows

    def demand(self, load: Load) -> None:
        """A reader waits for a load from a peer, asked for or not."""
        ask = self._asks.get(load.ask)
        if ask is None:
            self._send(Kind.ASK, [self._ask(load, urgent=True)])
        elif not ask.urgent:
            ask.urgent = True
            if ask.coming:  # as for one who asks now
                ask.due = min(ask.due, self._clock() + self._limit(ask))
            self._send(Kind.HURRY, [(load.ask,)])

    def send_next(self) -> None:
        """Ask for what waits, as far as the bounds allow."""
        if not self.usable:
            self._loads.fetch_from_source(self.cancel())
            return
        asks: list[Record] = []
        while (found := self._next()) is not None:
            row, node = found
            now_of = self.node_of(row)
            if now_of is None:  # a copy on disk came, or its home is another now
                self._loads.fetch_from_source([row])
            elif now_of != node:
                self.queue(row, now_of)
            elif (load := self._loads.begin_from_peer(row, node)) is not None:
                asks.append(self._ask(load, urgent=False))
        if asks:
            self._send(Kind.ASK, asks)

    def _next(self) -> tuple[int, int] | None:
        """The row that has waited longest of those whose node may be asked for more, and its node."""
        heads = [
            (queue[0][0], node)
            for node, queue in self._waiting.items()
            if self._prefetches.get(node, 0) < PREFETCHES_A_PAIR
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

    def _ask(self, load: Load, *, urgent: bool) -> Record:
        """Note that it was asked for; the record that asks."""
        assert load.from_peer is not None
        if not self._asks:
            self._poke()
        now, node = self._clock(), load.from_peer
        load.ask = next(self._ids)
        ask = self._asks[load.ask] = _RemoteFetch(load, node, now, now, urgent, not urgent)
        ask.due = now + self._limit(ask)
        if ask.prefetch:
            self._prefetches[node] = self._prefetches.get(node, 0) + 1
            self._prefetch_bytes += load.length
        mtime_ns = self._source.identity(load.row).mtime_ns
        return load.ask, load.row, load.arena, load.length, mtime_ns, node, urgent

    @staticmethod
    def _limit(ask: _RemoteFetch) -> float:
        return limit_s(coming=ask.coming, urgent=ask.urgent, length=ask.load.length) + MARGIN_S

    # ---- answers ------------------------------------------------------------------------------------------

    def got(self, records: Sequence[Record]) -> None:
        for number, check, status, held in records:
            if number in self._held:  # it was given up
                if not held and status != Status.COMING:
                    self._let_go(number)
            elif (ask := self._asks.get(number)) is None or status > _LAST:
                self._ignore(f"an answer to request {number} of status {status}")
            elif status == Status.COMING:
                if not ask.coming:  # once: who says no more than that for ever is late all the same
                    ask.coming = True
                    ask.due = self._clock() + self._limit(ask)
            elif status == Status.OK and not held:
                self._end(number)
                self._loads.arrived(ask.load, check, int((self._clock() - ask.began) * 1e9))
            else:
                # Bytes that are there, and may yet be written to, are not what they were.
                self._give_up(number, _FAILED.get(Status(status), Metric.PEER_CORRUPT), held=bool(held))
        self.send_next()

    def freed(self, records: Sequence[Record]) -> None:
        for (number,) in records:
            if number in self._held:
                self._let_go(number)
            elif number in self._asks:
                self._ignore(f"an extent given back of request {number}, which was not given up")
        self.send_next()

    def look(self) -> None:
        """Give up what has run out."""
        now = self._clock()
        if now < self._looked + LOOK_S:
            return
        self._looked = now
        late = [number for number, ask in self._asks.items() if ask.due <= now]
        if not late:
            return
        self._silent += len(late)
        for number in late:
            self._give_up(number, Metric.PEER_LATE, held=True)
        self._send(Kind.GIVE_UP, [(number,) for number in late])
        if self._silent >= HUNG_AFTER > self._silent - len(late):
            log.error("the peer process does not answer: going on without it")
        self.send_next()

    def _end(self, number: int) -> _RemoteFetch:
        ask = self._asks.pop(number)
        if ask.prefetch:
            self._prefetches[ask.node] -= 1
            self._prefetch_bytes -= ask.load.length
        return ask

    def _give_up(self, number: int, gauge: Metric, *, held: bool) -> None:
        """It does not come from there. `held`: its extent may still be written to."""
        load = self._end(number).load
        self._gauge[gauge] += 1
        if held:
            self._held[number] = load.arena, load.length
            self._held_bytes += load.length
        self._loads.read_source(load, anew=held)

    def _let_go(self, number: int) -> None:
        extent, length = self._held.pop(number)
        self._held_bytes -= length
        self._loads.free(extent)

    def _ignore(self, what: str) -> None:
        self.strange += 1
        if self.strange == 1:
            log.error("the peer process sends %s", what)
