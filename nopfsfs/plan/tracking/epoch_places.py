"""The places of one epoch and of the next, and which of them were opened.

Owns the tables of both epochs, the cursors of the ranks, K, and the stream that follows from them. Judges no open.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder, window
from nopfsfs.plan.tracking.cursor import Cursor
from nopfsfs.plan.tracking.loader_shape import LoaderShape
from nopfsfs.plan.visible_opens import VisibleOpens

_OPENED = b"\1"
# Where a lane begins, so many of its opens lie within so many places and K.
_BEGUN, _BEGUN_WITHIN = 4, 64
# K is widened to so many times the distance that nearly all opens lay ahead.
_AHEAD, _NEARLY_ALL = 2.0, 0.95


class EpochPlaces:
    """The places of a track. A *lane* is the index of a rank among those that read here."""

    def __init__(self, order: EpochOrder, inflight: int | None, showing: VisibleOpens | None, *, closes: bool) -> None:
        """`inflight`: K where it is known; `showing`: whose opens show, if not all do; `closes`: whether these show."""
        self.base = 0  # merged stream position of the beginning of this epoch
        self.inflight = inflight  # K of whole epochs where it is known
        self.showing = showing
        self._guessed: int | None = None  # K, where it is not known and few opens show
        self._closes = closes and showing is None
        self.loader = LoaderShape() if inflight is None and showing is None else None
        self.enter(order)

    def enter(self, order: EpochOrder) -> None:
        """Begin an epoch of which nothing was opened."""
        self.now = order
        self.ahead: EpochOrder | None = None
        self.stands_for_ahead, self._untold_ahead = 1.0, 0  # as `stands_for` and `untold`, in the next epoch
        self._all_seen = 0  # opens of this epoch while all opens showed, before few did
        self.lanes = len(order.hypothesis.ranks)
        each = order.length // self.lanes
        self.spacing = self.showing.spacing if self.showing is not None else 1
        self.k = places = window(each, self.inflight or self._guessed)
        if self.showing is not None:
            self.k = self.showing.window(places)
        self.cursors = [
            Cursor(each, self.k, order.absent(lane), self._hidden(order, lane), 0 if self._closes else places)
            for lane in range(self.lanes)
        ]
        self._stand()

    # -- which opens show --

    def _stand(self) -> None:
        """Count the opens that each one that shows stands for, on average: exact over the rest of this epoch."""
        self.stands_for, self.untold = 1.0, 0
        if self.showing is not None:
            counts = [cursor.unread() for cursor in self.cursors]
            places, show = (sum(many) for many in zip(*counts, strict=True))
            self.stands_for = places / show if show else float(self.spacing)
            self.untold = 0 if show else places  # passed by when this epoch is over

    def _hidden(self, order: EpochOrder, lane: int) -> NDArray[np.bool_] | None:
        """The places of that lane whose opens do not show."""
        if self.showing is None:
            return None
        hidden: NDArray[np.bool_] = ~self.showing.mask[order.rows[lane :: self.lanes]]
        return hidden

    def show_only(self, showing: VisibleOpens) -> None:
        """From now on only the opens of these rows show. What was opened is kept, but for the beginning of the next
        epoch."""
        opened = [cursor.so_far() for cursor in self.cursors]
        ahead = self.ahead
        self._guessed = self.k
        self.loader, self.showing, self._closes = None, showing, False
        self.enter(self.now)
        for cursor, states in zip(self.cursors, opened, strict=True):
            cursor.resume(states)
        self._all_seen = sum(self.begun_lanes())
        self._stand()
        if ahead is not None:
            self.expect(ahead)

    def without_closes(self) -> None:
        """Go by opens alone: it does not show when files have been read. Before any was opened."""
        self._closes = False
        for cursor in self.cursors:
            cursor.lag_behind(window(self.now.length // self.lanes, self.inflight))

    def show_all(self) -> None:
        """From now on all opens show again, but not when files have been read."""
        if self.showing is None:
            return
        self.showing, self.spacing = None, 1
        self.stands_for_ahead, self._untold_ahead = 1.0, 0
        self.loader = LoaderShape() if self.inflight is None else None
        self.k = window(self.now.length // self.lanes, self.inflight or self._guessed)
        self._guessed = None
        for cursor in self.cursors:
            cursor.show_all(self.k)
        self._stand()

    # -- what was opened --

    def expects(self, row: int) -> bool:
        """True: the row is among those that come next."""
        now, base = self.now, 0
        for order in (now, self.ahead):
            if order is None:
                break
            place = order.find(row)
            while place >= 0:
                cursor, at = self.cursors[place % self.lanes], base + place // self.lanes
                if at < cursor.hi and not cursor.opened[at]:
                    return True
                place = order.again[place] if order.again is not None else -1
            base = now.length // self.lanes
        return False

    def behind(self, rows: list[int]) -> float:
        """The share of `rows` whose first place lies before the window."""
        places = [place for place in map(self.now.find, rows) if place >= 0]
        past = sum(place // self.lanes < self.cursors[place % self.lanes].lo for place in places)
        return past / len(rows)

    def opened(self, row: int) -> bool:
        """True: the row was opened in this epoch, as far as is known."""
        place = self.now.find(row)
        return place >= 0 and self.cursors[place % self.lanes].opened[place // self.lanes] == 1

    def rows_opened(self) -> list[int]:
        """The rows opened so far in this epoch, in the order of its plan; where few opens show, those passed by too."""
        gone = self.consumed(self.base, self.now.length)
        if self.showing is None and not any(cursor.thin for cursor in self.cursors):
            for lane, cursor in enumerate(self.cursors):
                states = np.frombuffer(bytes(cursor.opened[: cursor.length]), dtype=np.uint8)
                gone[lane :: self.lanes] = states == _OPENED[0]
        rows: list[int] = self.now.rows[gone].tolist()
        return rows

    def begun_lanes(self) -> list[int]:
        """The number of files opened in this epoch, by lane."""
        return [cursor.opened.count(_OPENED, 0, cursor.length) for cursor in self.cursors]

    def opens(self) -> float:
        """The number of files opened in this epoch; an estimate where few opens show."""
        return self._all_seen + (sum(self.begun_lanes()) - self._all_seen) * self.stands_for

    # -- where readers are --

    def window_begins(self) -> list[int]:
        """The first place of the window, by lane."""
        return [cursor.lo for cursor in self.cursors]

    def gone_on(self, since: list[int]) -> int:
        """The number of places that the windows have left behind since they began at these, by lane. The number is 0
        where one of the places was not opened."""
        behind = b"".join(cursor.opened[first : cursor.lo] for cursor, first in zip(self.cursors, since, strict=True))
        return len(behind) if behind.count(_OPENED) == len(behind) else 0

    def begin(self, opens: list[int]) -> None:
        """Begin where these rows were opened, the last of them last; of a row that is there twice the last counts.
        Places before a lane's first opens were read before this mount, or are read elsewhere. Opens ahead of what was
        to come tell how far loaders read ahead."""
        places: list[list[int]] = [[] for _ in self.cursors]
        for row in reversed(dict.fromkeys(reversed(opens))):
            place = self.now.find(row)
            if place >= 0:
                places[place % self.lanes].append(place // self.lanes)
        reach = window(self.now.length // self.lanes, self.inflight or self._guessed)  # not K as it was seen to be
        firsts = [_first_of_many(sorted(set(mine)), _BEGUN_WITHIN + reach) if mine else -1 for mine in places]
        if self.inflight is None and self.showing is None:
            self._widen_for(places, [first if first > reach else 0 for first in firsts])
        # who has opened nothing yet begins about where the others did; and who has a slow worker no later than they
        seen = [first for first in firsts if first >= 0]
        lowest = min(seen, default=0)
        others = 2 * lowest - max(seen, default=0)
        for cursor, first in zip(self.cursors, firsts, strict=True):
            begun = others if first < 0 else lowest if first - lowest <= cursor.reach else first
            if begun > reach:
                cursor.abandon(begun)

    def _widen_for(self, places: list[list[int]], firsts: list[int]) -> None:
        """Widen K for readers that begin there, by lane, and have opened these places since, in order."""
        lanes = zip(self.cursors, places, firsts, strict=True)
        ahead = sorted(at for cursor, mine, first in lanes for at in _ahead(mine, max(cursor.lo, first)))
        if ahead:
            self.widen(int(_AHEAD * ahead[int(_NEARLY_ALL * (len(ahead) - 1))]))

    def watch(self, reader: int, place: int) -> None:
        """Learn K from who opens what; K of this epoch grows at once, and is exact from the next epoch on."""
        # Ranks are told apart by their lanes, so one watch serves all: a reader belongs to one rank.
        assert self.loader is not None
        if self.loader.see(reader, place // self.lanes):
            self.inflight = self.loader.inflight
            self.loader = None
            self.k = max(self.k, self.inflight or 0)
            for cursor in self.cursors:
                cursor.widen(self.k)

    def widen(self, k: int) -> None:
        """Set K of this epoch, if that is more than before; at most half of what a rank reads."""
        self.k = max(self.k, min(k, self.now.length // self.lanes // 2))
        for cursor in self.cursors:
            cursor.widen(self.k)

    def catch_up(self, rows: list[int]) -> None:
        """Note rows that were opened while another epoch was followed: those before the reader's place are of this one.

        They would be waited for, and where few opens show, few that never come fill the window.
        """
        furthest = [cursor.opened.rfind(_OPENED, 0, cursor.length) for cursor in self.cursors]
        for row in rows:
            place = self.now.find(row)
            if place >= 0 and place // self.lanes < furthest[place % self.lanes]:
                self.cursors[place % self.lanes].already(place // self.lanes)

    def already(self, rows: list[int]) -> None:
        """Note rows that were opened before, in whatever order."""
        for row in rows:
            place = self.now.find(row)
            if place >= 0:
                self.cursors[place % self.lanes].already(place // self.lanes)

    # -- epochs --

    def expect(self, order: EpochOrder) -> None:
        """Make the next epoch known, so that the window and the stream reach into it."""
        self.ahead, self.stands_for_ahead, self._untold_ahead = order, 1.0, 0
        if self.showing is not None:
            there = order.rows[order.rows >= 0]
            show = int(np.count_nonzero(self.showing.mask[there]))
            self.stands_for_ahead = len(there) / show if show else float(self.spacing)
            self._untold_ahead = 0 if show else len(there)
        for lane, cursor in enumerate(self.cursors):
            cursor.extend(order.length // self.lanes, order.absent(lane), self._hidden(order, lane))

    def over(self) -> bool:
        """True: every rank has gone over to the next epoch, or one has been through most of it.

        The latter is for a rank that reads nothing here: it must not hold the others up.
        """
        done = [cursor.lo >= cursor.length for cursor in self.cursors]
        if self.ahead is None or not any(done):
            return False
        each = self.cursors[0].length
        return all(done) or max(cursor.lo for cursor in self.cursors) - each >= 0.75 * each

    def roll(self) -> None:
        """Go over to the next epoch, which must be known."""
        assert self.ahead is not None
        self.base += self.now.length
        self.now, self.ahead = self.ahead, None
        self._all_seen = 0
        for cursor in self.cursors:
            cursor.roll()
        # Also for opens that are still to come: those of before, while others read on in the last epoch, counted so.
        self.stands_for, self.untold = self.stands_for_ahead, self._untold_ahead

    def last_opened(self) -> array[int]:
        """The rows opened among the last 2 K places of this epoch, sorted: a slower reader of the same may still
        come."""
        first = max(0, self.now.length - 2 * self.cursors[0].reach * self.lanes)
        opened = self.consumed(self.base + first, self.now.length - first)
        return array("q", np.sort(self.now.rows[first:][opened]).astype(np.int64).tobytes())

    # -- the stream --

    @property
    def position(self) -> int:
        """Merged stream position of the first access that is still to come."""
        lanes = self.lanes
        return self.base + min(cursor.passed * lanes + lane for lane, cursor in enumerate(self.cursors))

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """Rows at the stream positions start .. start+count-1, int64[<= count]: fewer at the end of what is
        known; -1 for positions before this epoch."""
        begin, end = start - self.base, start - self.base + count
        parts = [np.full(max(min(0, end) - begin, 0), -1, dtype=np.int64)]
        for order in (self.now, self.ahead):
            if order is not None:
                parts.append(order.rows[max(begin, 0) : max(end, 0)].astype(np.int64))
                begin, end = begin - order.length, end - order.length
        return np.concatenate(parts)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first stream position still to come of each row, int64[m]; -1 where none is known."""
        begin = self.position
        reach = self.base + max(cursor.hi for cursor in self.cursors) * self.lanes - begin
        read = np.append(self.consumed(begin, max(reach, 0)), False)
        found = np.full(len(rows), -1, dtype=np.int64)
        base = self.base
        for order in (self.now, self.ahead):
            if order is None:
                break
            places = order.places(rows)
            while True:
                at = base + places - begin
                gone = (places >= 0) & ((at < 0) | read[np.clip(at, 0, len(read) - 1)])
                if order.again is None or not gone.any():
                    break
                places[gone] = np.asarray(order.again)[places[gone]]
            first = (places >= 0) & ~gone & (found < 0)
            found[first] = base + places[first]
            base += order.length
        return found

    def consumed(self, start: int, count: int) -> NDArray[np.bool_]:
        """True where a position was opened or passed over, bool[count]; False beyond what is known."""
        result = np.ones(count, dtype=bool)
        lanes, begin = self.lanes, start - self.base
        first = max(begin, 0) // lanes
        last = max(-(-(begin + count) // lanes), first)
        known = np.zeros((last - first, lanes), dtype=bool)
        for lane, cursor in enumerate(self.cursors):
            consumed = cursor.consumed(first, last)
            known[: len(consumed), lane] = consumed
        flat = known.reshape(-1)[max(begin, 0) - first * lanes :]
        past = min(max(-begin, 0), count)
        result[past:] = flat[: count - past]
        return result


def _first_of_many(places: list[int], within: int) -> int:
    """The first of the places, in order, after which more come soon: those before are strays."""
    for at, place in enumerate(places):
        if places[min(at + _BEGUN, len(places)) - 1] - place <= within and at + _BEGUN <= len(places):
            return place
    return places[0]


def _ahead(places: list[int], first: int) -> list[int]:
    """The distance of each open, in order, beyond the place of a reader that takes one place after the other."""
    mine = [place for place in dict.fromkeys(places) if place >= first]
    return [max(0, place - first - nth) for nth, place in enumerate(mine)]
