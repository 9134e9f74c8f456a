"""One data set that is being read: its hypothesis, the cursors of its ranks, and what contradicts it.

Owns the change from one epoch to the next that was expected. Does not search: it says when it is `lost`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder, Hypothesis, window
from nopfsfs.plan.following.foresight import successor
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.suspects import Proof
from nopfsfs.plan.tracking.cursor import Cursor, Step
from nopfsfs.plan.tracking.loader_shape import LoaderShape
from nopfsfs.plan.visible_opens import VisibleOpens

# Opens of one rank in a row that lie in the next epoch and show that this one is over.
_WELL_IN = 4
# Contradicting opens of its own readers, beyond those that agreed, after which a locked plan is no longer believed.
_LOST = 24
_HITS_KEPT = 64
# Opens foreseen after which a plan has held for a while.
_STEADY = 512
_STEADY_WITHOUT_K = 8192
# Opens of a new epoch by which it is verified.
_VERIFIED_BY = 16
# Agreeing opens, beyond those that contradicted, after which a plan that was given up is believed again.
_REVIVED = 24
# An open this many windows ahead is a slow worker's neighbour, not a contradiction: 4 K is at most 20 %.
_NEAR_WINDOWS = 4
# Where so many such opens are more than this share of those foreseen, and several times as many as contradict, readers
# are further apart, if most of the places behind them were opened: K grows by a half, up to this share of an epoch.
_NEAR_LEAST, _NEAR_SHARE, _NEAR_TIMES, _FILLED, _WIDER, _WIDEST = 8, 0.005, 4, 0.7, 1.5, 0.25
# A file opened twice for one access (a header check, a lazy decoder) is opened again within so many opens a
# rank.
_RECENT = 32
# Readers that are remembered.
_READERS = 4096
# Opens remembered, whatever they were: those of this epoch, with who opened.
_LATELY = 1024
_OPENED = b"\1"
# Numbers of opens after which to look again to whom the epoch is dealt: these, then whenever they have doubled.
_REDEAL_FROM, _REDEAL_EVERY = 16, 8192
# Where a lane begins, so many of its opens lie within so many places and K.
_BEGUN, _BEGUN_WITHIN = 4, 64
# K is widened to so many times the distance that nearly all opens lay ahead.
_AHEAD, _NEARLY_ALL = 2.0, 0.95


class PlanState(str, Enum):
    """What a plan is worth; the words of `nopfs status`."""

    NONE = "none"  # there is nothing to read
    WATCHING = "watching"  # assumed or searched for, not confirmed
    LOCKED = "locked"  # what was opened cannot agree with it by chance
    MISMATCH = "mismatch"  # opens contradict it and no candidate fits
    UNKNOWN = "unknown"  # no seed was given, and no candidate fits


class OpenVerdict(IntEnum):
    """What an open was to a track."""

    NEITHER = 0  # not foreseen, but no contradiction
    FORESEEN = 1  # among what comes next, or a repeat of what was opened a moment ago
    AGAINST = 2  # it contradicts the plan


class Track:
    """Follows one data set. `tables` of the epoch that is read and, when known, of the one after it."""

    def __init__(
        self, order: EpochOrder, make: Callable[[Hypothesis], EpochOrder], inflight: int | None = None,
        showing: VisibleOpens | None = None, *, closes: bool = True,
    ) -> None:  # fmt: skip
        """`make` computes the tables of an epoch; `inflight`: K where it is known; `showing`: whose opens show, if not
        all do; `closes`: whether these show."""
        self.state = PlanState.WATCHING
        self.was_locked = False
        self.proof: Proof | None = None  # by which its sampler and seed were known first
        self._make = make
        self.generation = 0  # changes when the stream foretold before no longer holds
        self.base = 0  # merged stream position of the beginning of this epoch
        self.against = 0  # opens that contradict, less half of those that agreed since
        self.given = False  # said by a user, not found or assumed
        self.said: Hypothesis | None = None  # in these words
        self.hits = 0  # opens foreseen
        self._hits: deque[int] = deque([0], maxlen=_HITS_KEPT)  # the mount's count of opens at the last hits
        self.repeats = False  # epochs repeat: set_epoch is forgotten
        self._inflight = inflight
        self._guessed: int | None = None  # K, where it is not known and few opens show
        self._closes = closes and showing is None
        self._loader = LoaderShape() if inflight is None and showing is None else None
        self._showing = showing
        self._lately: deque[tuple[int, int]] = deque(maxlen=_LATELY)
        self._redeal_at = _REDEAL_FROM
        self._all_showed = showing is None
        self._agreeing = 0
        self._forgive = False
        self._near = self._far = 0  # opens a little ahead, and against, since K was last looked at
        self._near_since = 0  # opens that had been foreseen by then
        self._enter(order)

    def _enter(self, order: EpochOrder) -> None:
        self.now = order
        self._lately.clear()
        self.ahead: EpochOrder | None = None
        self._left: Hypothesis | None = None  # the epoch before, if this one followed it as expected
        self._first: list[int] = []  # rows opened first in this epoch, until it is verified
        self._next_first: list[int] = []
        self.verified = True  # found, or compared with others that might have followed
        self._tail: frozenset[int] = frozenset()  # rows opened last in the epoch before
        self.lanes = len(order.hypothesis.ranks)
        each = order.length // self.lanes
        self.spacing = self._showing.spacing if self._showing is not None else 1
        self.k = places = window(each, self._inflight or self._guessed)
        if self._showing is not None:
            self.k = self._showing.window(places)
        self.cursors = [
            Cursor(each, self.k, order.absent(lane), self._hidden(order, lane), 0 if self._closes else places)
            for lane in range(self.lanes)
        ]
        self._lane_of: dict[int, int] = {}  # by reader, of what rank its last hit was
        self._recent: deque[int] = deque(maxlen=max(1, min(_RECENT * self.lanes, order.length // 16)))
        self._stand()

    def _stand(self) -> None:
        """Of how many opens one that shows is told from now on, on average: exact over the rest of this epoch."""
        self.stands_for = 1.0
        if self._showing is not None:
            counts = [cursor.unread() for cursor in self.cursors]
            places, show = (sum(many) for many in zip(*counts, strict=True))
            self.stands_for = places / show if show else float(self.spacing)

    def _hidden(self, order: EpochOrder, lane: int) -> NDArray[np.bool_] | None:
        """The places of that lane whose opens do not show."""
        if self._showing is None:
            return None
        hidden: NDArray[np.bool_] = ~self._showing.mask[order.rows[lane :: self.lanes]]
        return hidden

    def show_only(self, showing: VisibleOpens) -> None:
        """From now on only the opens of these rows show. What was opened is kept, but for the beginning of the next
        epoch."""
        opened = [cursor.so_far() for cursor in self.cursors]
        ahead, left = self.ahead, self._left
        self._guessed = self.k
        self._loader, self._showing, self._closes = None, showing, False
        self._enter(self.now)
        self._left = left
        for cursor, states in zip(self.cursors, opened, strict=True):
            cursor.resume(states)
        self._stand()
        if ahead is not None:
            self.expect(ahead)

    def without_closes(self) -> None:
        """It does not show when files have been read. Before any was opened."""
        self._closes = False
        for cursor in self.cursors:
            cursor.lag_behind(window(self.now.length // self.lanes, self._inflight))

    def show_all(self) -> None:
        """From now on all opens show again, but not when files have been read."""
        if self._showing is None:
            return
        self._showing, self.spacing = None, 1
        self._loader = LoaderShape() if self._inflight is None else None
        self.k = window(self.now.length // self.lanes, self._inflight or self._guessed)
        self._guessed = None
        for cursor in self.cursors:
            cursor.show_all(self.k)
        self._stand()

    @property
    def steady(self) -> bool:
        """Its plan has held for a while, over the end of an epoch, too, and K is known, or cannot be learned. The same
        order by another name goes on otherwise."""
        known = self._loader is None or self._loader.in_order
        enough = _STEADY if known else _STEADY_WITHOUT_K
        went_on = self._left is not None and self.verified
        return self.state is PlanState.LOCKED and went_on and self.hits >= enough

    @property
    def inflight(self) -> int | None:
        """K of whole epochs where it is known."""
        return self._inflight

    @property
    def hypothesis(self) -> Hypothesis:
        """What is believed of the epoch that is read."""
        return self.now.hypothesis

    # -- opens --

    def observe(self, row: int, reader: int = 0) -> OpenVerdict:
        """An open by process or thread `reader` (0: not known)."""
        now = self.now
        self._lately.append((row, reader))
        offset = row - now.base
        place = now.place[offset] if 0 <= offset < len(now.place) else -1
        if place >= 0:
            lane = place % self.lanes
            if self.lanes > 1 and reader and self._begins_next(row, reader, lane):
                return OpenVerdict.FORESEEN
            if self._loader is not None and reader:
                self._watch(reader, place)
            cursor = self.cursors[lane]
            step = cursor.take(place // self.lanes)
            if step is Step.HIT:
                self._recent.append(row)
                if reader and self.lanes > 1:
                    if len(self._lane_of) > _READERS:  # workers that are made anew for each epoch
                        self._lane_of.clear()
                    self._lane_of[reader] = lane
                if not self.verified:
                    self._first.append(row)
                if self.against or self.state is not PlanState.LOCKED:
                    self._agree()
                if cursor.hi >= cursor.length:
                    self._near_end()
                return OpenVerdict.FORESEEN
            return self._not_next(row, place, step)
        return self._other(row, None)

    def expects(self, row: int) -> bool:
        """Whether the row is among what comes next; changes nothing."""
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

    def _watch(self, reader: int, place: int) -> None:
        """Learn K from who opens what; K of this epoch grows at once, and is exact from the next epoch on."""
        # Ranks are told apart by their lanes, so one watch serves all: a reader belongs to one rank.
        assert self._loader is not None
        if self._loader.see(reader, place // self.lanes):
            self._inflight = self._loader.inflight
            self._loader = None
            self.k = max(self.k, self._inflight or 0)
            for cursor in self.cursors:
                cursor.widen(self.k)

    def _not_next(self, row: int, place: int, step: Step) -> OpenVerdict:
        """An open of a row that this epoch holds, but not among the next K at its first place."""
        again = self.now.again
        while again is not None and step is not Step.AHEAD and (place := again[place]) >= 0:
            step = self.cursors[place % self.lanes].take(place // self.lanes)
            if step is Step.HIT:
                self._recent.append(row)
                return OpenVerdict.FORESEEN
        if step is Step.AHEAD:
            cursor, at = self.cursors[place % self.lanes], place // self.lanes
            if self._opens_next(row) or self._in_tail(row):
                return OpenVerdict.FORESEEN
            if at >= cursor.lo + _NEAR_WINDOWS * cursor.reach:
                return self._contradict()
            cursor.mark(at)
            if self._showing is None:
                self._widen_for_near(cursor)
            return OpenVerdict.NEITHER
        return self._other(row, step)

    def _widen_for_near(self, cursor: Cursor) -> None:
        """An open lay a little ahead: when there are many, readers are further apart than was thought. But not where
        others of the places before them are not read at all: then the epoch is dealt out otherwise."""
        self._near += 1
        if self._near >= _NEAR_LEAST and self._near > _NEAR_SHARE * (self.hits - self._near_since):
            if self._near >= _NEAR_TIMES * self._far and cursor.filled() >= _FILLED:
                self.widen(min(int(_WIDER * self.k) + 1, int(_WIDEST * self.now.length // self.lanes)))
            self._near, self._far, self._near_since = 0, 0, self.hits

    def _other(self, row: int, step: Step | None) -> OpenVerdict:
        """An open of a row that this epoch has read already (`step`), or does not read."""
        if step is Step.REPEAT and row in self._recent:
            return OpenVerdict.FORESEEN
        if self._opens_next(row):
            return OpenVerdict.FORESEEN
        if step is Step.REPEAT or self._in_tail(row):
            return OpenVerdict.FORESEEN
        return self._contradict()

    def _begins_next(self, row: int, reader: int, lane: int) -> bool:
        """Whether the row, which another rank has in this epoch (`lane`), is among the next K of the reader's own rank
        in the next epoch: ranks are not all as fast, and may read the same files one epoch after the other."""
        own = self._lane_of.get(reader, lane)
        if own == lane or self.ahead is None or self.cursors[own].hi <= self.cursors[own].length:
            return False
        return self.ahead.find(row) % self.lanes == own and self._opens_next(row)

    def _opens_next(self, row: int) -> bool:
        """Whether the row is among the next K because the window reaches into the next epoch."""
        ahead = self.ahead
        if ahead is None:
            return False
        place = ahead.find(row)
        while place >= 0:
            cursor = self.cursors[place % self.lanes]
            at = cursor.length + place // self.lanes
            if at < cursor.hi and cursor.take(at) is Step.HIT:
                self._recent.append(row)
                self._next_first.append(row)
                if self.against or self.state is not PlanState.LOCKED:
                    self._agree()
                if cursor.ahead_run >= _WELL_IN:
                    cursor.abandon(cursor.length)
                self._roll()
                return True
            place = ahead.again[place] if ahead.again is not None else -1
        return False

    def _agree(self) -> None:
        self._agreeing += 1
        # two for one: a plan that explains only half of what is read must come into doubt
        self._forgive = not self._forgive
        if self.against and self._forgive:
            self.against -= 1

    def _contradict(self) -> OpenVerdict:
        self._far += 1
        self._agreeing = max(0, self._agreeing - 1)
        return OpenVerdict.AGAINST

    # -- what the follower asks --

    @property
    def lost(self) -> bool:
        """A locked plan is contradicted by too many opens of its own readers."""
        return self.against >= _LOST

    @property
    def revived(self) -> bool:
        """A plan that was given up fits again. A window that is a large part of the epoch proves nothing."""
        telling = self.cursors[0].reach * 8 <= self.cursors[0].length
        given_up = self.was_locked and self.state is not PlanState.LOCKED
        return given_up and telling and self._agreeing >= _REVIVED

    def hit(self, now: int) -> None:
        """An open was foreseen; `now`: the mount's count of opens."""
        self.hits += 1
        self._hits.append(now)

    @property
    def last_hit(self) -> int:
        """The mount's count of opens at the last that was foreseen."""
        return self._hits[-1]

    def hits_since(self, then: int) -> int:
        """Opens foreseen since the mount's count was that, at most 64."""
        return sum(1 for at in self._hits if at > then)

    def rate(self, now: int) -> float:
        """The share of the mount's last opens that this track foresaw."""
        return len(self._hits) / (now - self._hits[0] + 1)

    def behind(self, rows: list[int]) -> float:
        """The share of `rows` whose first place lies before the window."""
        places = [place for place in map(self.now.find, rows) if place >= 0]
        past = sum(place // self.lanes < self.cursors[place % self.lanes].lo for place in places)
        return past / len(rows)

    def opened(self, row: int) -> bool:
        """Whether the row was opened in this epoch, as far as is known."""
        place = self.now.find(row)
        return place >= 0 and self.cursors[place % self.lanes].opened[place // self.lanes] == 1

    @property
    def to_be_verified(self) -> bool:
        """Enough of an epoch that followed as expected was read to compare it with others."""
        return not self.verified and len(self._first) >= _VERIFIED_BY

    def first_rows(self) -> list[int]:
        """The rows that were opened first in this epoch; asking means that it is verified."""
        rows, self._first, self.verified = self._first[: 2 * _VERIFIED_BY], [], True
        return list(dict.fromkeys(rows))

    def alternatives_of_this(self) -> tuple[Hypothesis, ...]:
        """What might have been read in place of this epoch."""
        before = self._left
        if before is None:
            return ()
        family = registry.sampler(before.spec.sampler)
        return tuple(self._with(*other) for other in family.following(before.spec, before.epoch))

    def rows_opened(self) -> list[int]:
        """The rows opened so far in this epoch, in the order of its plan; where few opens show, those passed by too."""
        gone = self.consumed(self.base, self.now.length)
        if self._showing is None and not any(cursor.thin for cursor in self.cursors):
            for lane, cursor in enumerate(self.cursors):
                states = np.frombuffer(bytes(cursor.opened[: cursor.length]), dtype=np.uint8)
                gone[lane :: self.lanes] = states == _OPENED[0]
        rows: list[int] = self.now.rows[gone].tolist()
        return rows

    def lately(self) -> list[tuple[int, int]]:
        """What was opened lately in this epoch, expected or not, and by whom: (row, reader)."""
        return list(self._lately)

    @property
    def to_be_redealt(self) -> bool:
        """Whether to look (again) to whom this epoch is dealt, unless a user said it; asking means that it is done.
        What was seen while all showed is not judged by the few that show."""
        if self.given or self.hits < self._redeal_at or (self._showing is not None and self._all_showed):
            return False
        self._redeal_at = self.hits + min(self.hits, _REDEAL_EVERY)
        return True

    def begun_lanes(self) -> list[int]:
        """By rank that reads here, how many of its files were opened in this epoch."""
        return [cursor.opened.count(_OPENED, 0, cursor.length) for cursor in self.cursors]

    def begin(self, opens: list[int]) -> None:
        """These rows were opened in this epoch, the last of them last. What lies before a lane's first opens was read
        before this mount, or is read elsewhere; what lay ahead of what was to come tells how far loaders read ahead."""
        places: list[list[int]] = [[] for _ in self.cursors]
        for row in opens:
            place = self.now.find(row)
            if place >= 0:
                places[place % self.lanes].append(place // self.lanes)
        firsts = [
            _first_of_many(sorted(set(mine)), _BEGUN_WITHIN + cursor.reach) if mine else -1
            for cursor, mine in zip(self.cursors, places, strict=True)
        ]
        # who has opened nothing yet begins about where the others did
        seen = [first for first in firsts if first >= 0]
        others = 2 * min(seen, default=0) - max(seen, default=0)
        ahead: list[int] = []
        for cursor, mine, first in zip(self.cursors, places, firsts, strict=True):
            begun = first if first >= 0 else others
            if begun > cursor.reach:
                cursor.abandon(begun)
            ahead += _ahead(mine, cursor.lo)
        if ahead and self._inflight is None and self._showing is None:
            nearly_all = sorted(ahead)[int(_NEARLY_ALL * (len(ahead) - 1))]
            self.widen(int(_AHEAD * nearly_all))

    def widen(self, k: int) -> None:
        """K of this epoch is so much, if that is more than before; at most half of what a rank reads."""
        self.k = max(self.k, min(k, self.now.length // self.lanes // 2))
        for cursor in self.cursors:
            cursor.widen(self.k)

    def catch_up(self, rows: list[int]) -> None:
        """These were opened while another epoch was believed in: of this one are those before where its reader is.

        They would be waited for, and where few opens show, few that never come fill the window.
        """
        furthest = [cursor.opened.rfind(_OPENED, 0, cursor.length) for cursor in self.cursors]
        for row in rows:
            place = self.now.find(row)
            if place >= 0 and place // self.lanes < furthest[place % self.lanes]:
                self.cursors[place % self.lanes].already(place // self.lanes)

    def already(self, rows: list[int]) -> None:
        """These rows were opened before, in whatever order."""
        for row in rows:
            place = self.now.find(row)
            if place >= 0:
                self.cursors[place % self.lanes].already(place // self.lanes)

    def lock(self, proof: Proof | None = None) -> None:
        """The plan is confirmed; by what opens, unless it is one that was confirmed before."""
        if self.proof is None or (proof is not None and _named(self.proof.of) != _named(self.hypothesis)):
            self.proof = proof
        if self.state is PlanState.MISMATCH:
            self.generation += 1
        self.state = PlanState.LOCKED
        self.was_locked = True
        self.against = 0

    def give_up(self, state: PlanState) -> None:
        """The plan is no longer believed, but still followed, in case its reader comes back."""
        self._agreeing = 0
        self.against = 0
        if state is not self.state and state is PlanState.MISMATCH:
            self.generation += 1
        self.state = state

    def _barely_begun(self) -> bool:
        opened = sum(cursor.opened.count(1, 0, cursor.length) for cursor in self.cursors)
        return opened <= max(_LOST, self.now.length // (20 * self.spacing))

    def switch_epoch(self, order: EpochOrder) -> None:
        """Another epoch, or another plan altogether, begins; the state is kept."""
        before, after = self.hypothesis, order.hypothesis
        if self._left is not None and self._barely_begun():
            before = self._left  # this epoch was only expected; that one was read
        self.repeats = self.state is PlanState.LOCKED and after == before
        self.generation += 1
        self.base = 0
        self.against = 0
        self._enter(order)

    # -- the next epoch --

    def following(self) -> Hypothesis:
        """What is thought to be read after this epoch."""
        return successor(self.hypothesis, repeats=self.repeats)

    def alternatives(self) -> tuple[Hypothesis, ...]:
        """What else may be read next, the expected first."""
        # an epoch that has hardly begun was only expected: then something else followed the one before
        expected_only = self._left is not None and self._barely_begun()
        found = [] if expected_only else [self.following()]
        for origin in (self._left, self.hypothesis) if expected_only else (self.hypothesis, self._left):
            if origin is not None:
                family = registry.sampler(origin.spec.sampler)
                found += [self._with(*other) for other in family.following(origin.spec, origin.epoch)]
        if self._left is not None:
            found.append(self._left)
        return tuple(dict.fromkeys(found))

    def _with(self, spec: Spec, epoch: int) -> Hypothesis:
        return replace(self.hypothesis, spec=spec, epoch=epoch)

    def expect(self, order: EpochOrder) -> None:
        """Makes the next epoch known, so that the window and the stream reach into it."""
        self.ahead = order
        for lane, cursor in enumerate(self.cursors):
            cursor.extend(order.length // self.lanes, order.absent(lane), self._hidden(order, lane))

    def _near_end(self) -> None:
        """Makes the next epoch known when the window has reached it, and goes over to it when this one is
        done."""
        self._know_next()
        self._roll()

    def _know_next(self) -> None:
        if self.ahead is None:
            self.expect(self._make(self.following()))

    def _roll(self) -> None:
        """Goes over to the next epoch when every rank has, or one has been through most of it.

        The latter is for a rank that reads nothing here: it must not hold the others up.
        """
        cursors = self.cursors
        done = [cursor.lo >= cursor.length for cursor in cursors]
        if self.ahead is None or not any(done):
            return
        each = cursors[0].length
        if not all(done) and max(cursor.lo for cursor in cursors) - each < 0.75 * each:
            return
        self._lately.clear()
        self.base += self.now.length
        self._left, self._tail = self.hypothesis, self._last_opened()
        self.now, self.ahead = self.ahead, None
        self._first, self._next_first, self.verified = self._next_first, [], False
        for cursor in cursors:
            cursor.roll()
        self._stand()
        # one epoch an open: of those in which nothing is seen to be opened there would be no end
        if any(cursor.hi >= cursor.length for cursor in cursors):
            self._know_next()

    def _last_opened(self) -> frozenset[int]:
        """The rows opened among the last 2 K places of this epoch: a slower reader of the same may still
        come."""
        first = max(0, self.now.length - 2 * self.cursors[0].reach * self.lanes)
        opened = self.consumed(self.base + first, self.now.length - first)
        return frozenset(self.now.rows[first:][opened].tolist())

    def _in_tail(self, row: int) -> bool:
        if self._tail and min(cursor.lo for cursor in self.cursors) > 2 * self.cursors[0].reach:
            self._tail = frozenset()
        return row in self._tail

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
        """Which of those positions were opened or passed over, bool[count]; False beyond what is known."""
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


def _named(hypothesis: Hypothesis) -> tuple[int, str, int]:
    """What stays over the epochs of a plan."""
    return hypothesis.dataset, hypothesis.spec.sampler, hypothesis.spec.seed


def _first_of_many(places: list[int], within: int) -> int:
    """The first of the places, in order, after which more come soon: those before are strays."""
    for at, place in enumerate(places):
        if places[min(at + _BEGUN, len(places)) - 1] - place <= within and at + _BEGUN <= len(places):
            return place
    return places[0]


def _ahead(places: list[int], first: int) -> list[int]:
    """How far each open, in order, lay beyond where a reader would be that takes one place after the other."""
    mine = [place for place in dict.fromkeys(places) if place >= first]
    return [max(0, place - first - nth) for nth, place in enumerate(mine)]
