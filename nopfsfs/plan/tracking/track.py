"""A plan that is followed: its hypothesis, its verdict on each open, and the change from one epoch to the next.

Does not search, and does not change what the plan is worth: `Beliefs` does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder, Hypothesis, same_order, successor
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.agreement import LOST, Agreement, PlanState
from nopfsfs.plan.tracking.cursor import Cursor, Step
from nopfsfs.plan.tracking.epoch_places import EpochPlaces
from nopfsfs.plan.visible_opens import VisibleOpens

# Opens of one rank in a row that lie in the next epoch and show that this one is over.
_WELL_IN = 4
# Opens of a new epoch by which it is verified.
_VERIFIED_BY = 16
# An open this many windows ahead is a slow worker's neighbour, not a contradiction: 4 K is at most 20 %.
_NEAR_WINDOWS = 4
# Where so many such opens are more than this share of those foreseen, and several times as many as contradict, readers
# are further apart, if most of the places behind them were opened, or the windows have gone on by so many places since:
# K grows by a half, up to this share of an epoch.
_NEAR_LEAST, _NEAR_SHARE, _NEAR_TIMES, _FILLED, _GONE_ON, _WIDER, _WIDEST = 8, 0.005, 4, 0.7, 2, 1.5, 0.25
# A file opened twice for one access (a header check, a lazy decoder) is opened again within so many opens a
# rank.
_RECENT = 32
# Readers that are remembered.
_READERS = 4096
# Opens remembered, whatever they were: those of this epoch, with who opened.
_LATELY = 1024
# Numbers of opens after which to look again to whom the epoch is dealt: these, then whenever they have doubled.
_REDEAL_FROM, _REDEAL_EVERY = 16, 8192


class OpenVerdict(IntEnum):
    """The verdict of a track on an open."""

    NEITHER = 0  # not foreseen, but no contradiction
    FORESEEN = 1  # among what comes next, or a repeat of what was opened a moment ago
    AGAINST = 2  # it contradicts the plan


class Track:
    """The plan of one data set."""

    def __init__(
        self, order: EpochOrder, make: Callable[[Hypothesis], EpochOrder], inflight: int | None = None,
        showing: VisibleOpens | None = None, *, closes: bool = True,
    ) -> None:  # fmt: skip
        """`make` computes the tables of an epoch; `inflight`: K where it is known; `showing`: whose opens show, if not
        all do; `closes`: whether these show."""
        self.agreement = Agreement()
        self._make = make
        self._switches = 0  # to another epoch or plan than was expected
        self.given = False  # said by a user, not found or assumed
        self.said: Hypothesis | None = None  # in these words
        self.repeats = False  # epochs repeat: set_epoch is forgotten
        self._lately: deque[tuple[int, int]] = deque(maxlen=_LATELY)
        self._redeal_at = _REDEAL_FROM
        self._all_showed = showing is None
        self._near = self._far = 0  # opens a little ahead, and against, since K was last looked at
        self._near_since = 0  # opens that had been foreseen by then
        self._near_from: list[int] = []  # where the windows began at the first of those ahead, by lane
        self.stands_for = 1.0  # opens that the last one which was foreseen tells of
        self.places = EpochPlaces(order, inflight, showing, closes=closes)
        self._begin()

    def _begin(self) -> None:
        """Forget the opens of the epoch before."""
        self._lately.clear()
        self._left: Hypothesis | None = None  # the epoch before, if this one followed it as expected
        self._first: list[int] = []  # rows opened first in this epoch, until it is verified
        self._next_first: list[int] = []
        self.verified = True  # found, or compared with others that might have followed
        self._tail = array("q")  # rows opened last in the epoch before, sorted
        self._lane_of: dict[int, int] = {}  # by reader, of what rank its last hit was
        places = self.places
        self._recent: deque[int] = deque(maxlen=max(1, min(_RECENT * places.lanes, places.now.length // 16)))

    def show_only(self, showing: VisibleOpens) -> None:
        """From now on only the opens of these rows show. What was opened is kept, but for the beginning of the next
        epoch."""
        left = self._left
        self.places.show_only(showing)
        self._begin()
        self._left = left

    @property
    def steady(self) -> bool:
        """True: the plan has held for a while, and over the end of an epoch, and K is known or cannot be learned. At
        the end of an epoch the same order by another name would have gone on otherwise."""
        loader = self.places.loader
        known = loader is None or loader.in_order
        went_on = self._left is not None and self.verified
        return went_on and self.agreement.steady(k_known=known)

    @property
    def hypothesis(self) -> Hypothesis:
        """The plan of the epoch that is read."""
        return self.places.now.hypothesis

    @property
    def locked(self) -> bool:
        """True: the plan is certain."""
        return self.agreement.state is PlanState.LOCKED

    @property
    def generation(self) -> int:
        """Changes when the stream foretold before no longer holds."""
        return self._switches + self.agreement.turns

    @property
    def epoch_key(self) -> tuple[int, int]:
        """Changes when another epoch begins, also one that was read before."""
        return self._switches, self.places.base

    # -- opens --

    def observe(self, row: int, reader: int = 0) -> OpenVerdict:
        """Take an open by process or thread `reader` (0: not known)."""
        places = self.places
        now, lanes = places.now, places.lanes
        self.stands_for = places.stands_for
        self._lately.append((row, reader))
        offset = row - now.base
        place = now.place[offset] if 0 <= offset < len(now.place) else -1
        if place >= 0:
            lane = place % lanes
            if lanes > 1 and reader and self._begins_next(row, reader, lane):
                return OpenVerdict.FORESEEN
            if reader and places.loader is not None:
                places.watch(reader, place)
            cursor = places.cursors[lane]
            step = cursor.take(place // lanes)
            if step is Step.HIT:
                self._recent.append(row)
                if reader and lanes > 1:
                    if len(self._lane_of) > _READERS:  # workers that are made anew for each epoch
                        self._lane_of.clear()
                    self._lane_of[reader] = lane
                if not self.verified:
                    self._first.append(row)
                agreement = self.agreement
                if agreement.against or agreement.state is not PlanState.LOCKED:
                    agreement.agreed()
                if cursor.hi >= cursor.length:
                    self._near_end()
                return OpenVerdict.FORESEEN
            return self._not_next(row, place, step)
        return self._other(row, None)

    def _not_next(self, row: int, place: int, step: Step) -> OpenVerdict:
        """Judge an open of a row that this epoch holds, but not among the next K at its first place."""
        places = self.places
        again, cursors, lanes = places.now.again, places.cursors, places.lanes
        while again is not None and step is not Step.AHEAD and (place := again[place]) >= 0:
            step = cursors[place % lanes].take(place // lanes)
            if step is Step.HIT:
                self._recent.append(row)
                return OpenVerdict.FORESEEN
        if step is Step.AHEAD:
            cursor, at = cursors[place % lanes], place // lanes
            if self._opens_next(row) or self._in_tail(row):
                return OpenVerdict.FORESEEN
            if at >= cursor.lo + _NEAR_WINDOWS * cursor.reach:
                return self._contradict()
            cursor.mark(at)
            if places.showing is None:
                self._widen_for_near(cursor)
            return OpenVerdict.NEITHER
        return self._other(row, step)

    def _widen_for_near(self, cursor: Cursor) -> None:
        """Widen K where many opens lie a little ahead: readers are further apart than was thought.

        Where the places before them are not read at all, the epoch is dealt out otherwise, and K stays.
        """
        places = self.places
        if not self._near:
            self._near_from = places.window_begins()
        self._near += 1
        if self._near >= _NEAR_LEAST and self._near > _NEAR_SHARE * (self.agreement.hits - self._near_since):
            apart = cursor.filled() >= _FILLED or places.gone_on(self._near_from) >= _GONE_ON
            if apart and self._near >= _NEAR_TIMES * self._far:
                places.widen(min(int(_WIDER * places.k) + 1, int(_WIDEST * places.now.length // places.lanes)))
            self._near, self._far, self._near_since = 0, 0, self.agreement.hits

    def _other(self, row: int, step: Step | None) -> OpenVerdict:
        """Judge an open of a row that this epoch has read already (`step`), or does not read."""
        if step is Step.REPEAT and row in self._recent:
            return OpenVerdict.FORESEEN
        if self._opens_next(row):
            return OpenVerdict.FORESEEN
        if step is Step.REPEAT or self._in_tail(row):
            return OpenVerdict.FORESEEN
        return self._contradict()

    def _begins_next(self, row: int, reader: int, lane: int) -> bool:
        """True: the row, which another rank has in this epoch (`lane`), is among the next K of the reader's own rank in
        the next epoch. Ranks are not all as fast, and may read the same files one epoch after the other."""
        own, places = self._lane_of.get(reader, lane), self.places
        if own == lane or places.ahead is None or places.cursors[own].hi <= places.cursors[own].length:
            return False
        return places.ahead.find(row) % places.lanes == own and self._opens_next(row)

    def _opens_next(self, row: int) -> bool:
        """Take an open of the next epoch. True: the row is among the next K, because the window reaches there."""
        ahead, lanes = self.places.ahead, self.places.lanes
        if ahead is None:
            return False
        place = ahead.find(row)
        while place >= 0:
            cursor = self.places.cursors[place % lanes]
            at = cursor.length + place // lanes
            if at < cursor.hi and cursor.take(at) is Step.HIT:
                self._recent.append(row)
                self._next_first.append(row)
                self.stands_for = self.places.stands_for_ahead
                agreement = self.agreement
                if agreement.against or agreement.state is not PlanState.LOCKED:
                    agreement.agreed()
                if cursor.ahead_run >= _WELL_IN:
                    cursor.abandon(cursor.length)
                self._roll()
                return True
            place = ahead.again[place] if ahead.again is not None else -1
        return False

    def _contradict(self) -> OpenVerdict:
        self._far += 1
        self.agreement.disagreed()
        return OpenVerdict.AGAINST

    # -- what the follower asks --

    @property
    def revived(self) -> bool:
        """A plan that was given up fits again. A window that is a large part of the epoch proves nothing."""
        return self.agreement.revived(telling=self.places.cursors[0].reach * 8 <= self.places.cursors[0].length)

    @property
    def to_be_verified(self) -> bool:
        """Enough of an epoch that followed as expected was read to compare it with others."""
        return not self.verified and len(self._first) >= _VERIFIED_BY

    def first_rows(self) -> list[int]:
        """The rows that were opened first in this epoch; asking means that it is verified."""
        rows, self._first, self.verified = self._first[: 2 * _VERIFIED_BY], [], True
        return list(dict.fromkeys(rows))

    def alternatives_of_this(self) -> tuple[Hypothesis, ...]:
        """The epochs that might have been read in place of this one."""
        before = self._left
        if before is None:
            return ()
        family = registry.sampler(before.spec.sampler)
        return tuple(self._with(*other) for other in family.following(before.spec, before.epoch))

    def lately(self) -> list[tuple[int, int]]:
        """The last opens in this epoch, expected or not: (row, reader)."""
        return list(self._lately)

    @property
    def to_be_redealt(self) -> bool:
        """True: it is time to look (again) to whom this epoch is dealt, unless a user said it; asking means that it is
        done. What was seen while all showed is not judged by the few that show."""
        if self.given or self.agreement.hits < self._redeal_at:
            return False
        if self.places.showing is not None and self._all_showed:
            return False
        self._redeal_at = self.agreement.hits + min(self.agreement.hits, _REDEAL_EVERY)
        return True

    def _barely_begun(self) -> bool:
        return sum(self.places.begun_lanes()) <= max(LOST, self.places.now.length // (20 * self.places.spacing))

    def switch_epoch(self, order: EpochOrder) -> None:
        """Go over to another epoch, or another plan altogether; the state is kept."""
        before, after = self.hypothesis, order.hypothesis
        if self._left is not None and self._barely_begun():
            before = self._left  # this epoch was only expected; that one was read
        self.repeats = self.locked and after == before
        self._switches += 1
        self.agreement.begin_epoch()
        self._near, self._far, self._near_since = 0, 0, self.agreement.hits
        self.places.base = 0
        k = self.places.k
        self.places.enter(order)
        if same_order(before, after) and before.world == after.world:
            self.places.widen(k)  # the same readers, as far apart
        self._begin()

    def resume(self, rows: list[int]) -> None:
        """Go on where these rows were opened, in order, in the epoch that was gone over to. Who had been through it
        may have begun the next."""
        places = self.places
        places.already(rows)
        places.begin(rows)
        if any(cursor.hi >= cursor.length for cursor in places.cursors):
            later = [row for row in rows if places.now.find(row) < 0]
            self._near_end()
            for row in later:
                self._opens_next(row)

    # -- the next epoch --

    def following(self) -> Hypothesis:
        """The epoch that is thought to follow this one."""
        return successor(self.hypothesis, repeats=self.repeats)

    def alternatives(self) -> tuple[Hypothesis, ...]:
        """The epochs that may be read next, the expected one first."""
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

    def _near_end(self) -> None:
        """Make the next epoch known, which the window has reached; go over to it when this one is over."""
        self._know_next()
        self._roll()

    def _know_next(self) -> None:
        if self.places.ahead is None:
            self.places.expect(self._make(self.following()))

    def _roll(self) -> None:
        """Go over to the next epoch when this one is over."""
        places = self.places
        if not places.over():
            return
        self._lately.clear()
        self.stands_for += places.untold
        self._left, self._tail = self.hypothesis, places.last_opened()
        self._first, self._next_first, self.verified = self._next_first, [], False
        places.roll()
        # one epoch an open: of those in which nothing is seen to be opened there would be no end
        if any(cursor.hi >= cursor.length for cursor in places.cursors):
            self._know_next()

    def _in_tail(self, row: int) -> bool:
        cursors = self.places.cursors
        if self._tail and min(cursor.lo for cursor in cursors) > 2 * cursors[0].reach:
            self._tail = array("q")
        at = bisect_left(self._tail, row)
        return at < len(self._tail) and self._tail[at] == row

    # -- the stream --

    @property
    def position(self) -> int:
        """The stream position, as of `EpochPlaces`; `upcoming` and `next_uses` are as of it, too."""
        return self.places.position

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        return self.places.upcoming(start, count)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.places.next_uses(rows)
