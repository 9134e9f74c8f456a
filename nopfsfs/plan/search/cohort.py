"""The opens of a cohort that no confirmed plan explains, and when to look for one that does.

Readers that begin to open files at about the same time are a *cohort* (the workers of one job). The opens of a cohort
are looked at as one sequence. Computes nothing that takes long.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import EpochOrder, Hypothesis, Proof
from nopfsfs.plan.search.evidence import elsewhere
from nopfsfs.plan.search.kept_opens import KeptOpens, Open
from nopfsfs.plan.search.matching import Search
from nopfsfs.plan.search.prepared_opens import MIN_OPENS
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.search.suspects import FEW, FIRSTS, MAX_OPENS, OpensView, Suspect

# Numbers of opens at which the plans at hand are looked at; beyond the last at every so many.
_LOOKS = frozenset((3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56))
_LOOK_EVERY = 64
# Numbers of opens at which what was said is tried (again): these, then whenever there are so many times as many. A
# search of all begins with the same, and is delayed by it: while one runs, only at so many times as many.
_QUICK, _QUICK_AGAIN, _QUICK_BESIDE = (4, 6, 8, 12, 16, 24, 32, 64), 4, 16
# A search of all begins with so many opens, when some reader has made several.
_FULL_FROM = 16
# A search of all that was begun with fewer opens than this is begun again at once; others when opens have doubled.
_ENOUGH = 32
# Bits by which it is certain that nobody reads all of a data set of which only a part was read.
_NONE_OUTSIDE = 10.0
# Readers whose first opens are kept.
_FIRST_READERS = 256
# What takes long is tried from so many opens on.
_LONG_FROM = 16
# A search over so many opens that finds nothing means that what is read is not known for now.
_LAST_WORD = 48
# Opens that are kept, to be followed again once their plan is known.
_KEPT = 65_536
# Of a few files that are read again and again: so many for each file, beside some.
_KEPT_EACH, _KEPT_BESIDE = 16, 256
# Files that are opened so often each, without an order that would explain it, are searched for at so many times as many
# opens, not at twice as many.
_OFTEN, _RARELY = 64, 16
# Opens that are repeated for a plan once it is certain: more than loaders hold.
_BEGUN_WITH = 4096
# A file that is opened again within so many others is opened twice for one access.
_TWICE = 64
# For each file that was opened again so many of a cohort's last opens are looked through.
_LATELY = 4


class Cohort:
    """Unexplained opens of readers that came together."""

    def __init__(self, ownership: RowOwners, now: int) -> None:
        self._ownership = ownership
        self.readers: set[int] = set()
        self.last = now  # the mount's count of opens at the last of these
        self.opens = KeptOpens(most=_KEPT)
        self.proof: Proof | None = None  # of the plan that was last found to be certain
        self._forgive = True  # the first time does not count
        self._begin()

    def _begin(self) -> None:
        self.era = getattr(self, "era", 0) + 1  # changes when the opens kept are no longer those that a search has seen
        self.suspects: list[Suspect] = []
        self.quick: Search | None = None  # of what was said
        self.full: Search | None = None  # of all
        self.settled = False  # what was said need not be tried before something else is believed
        self._long_asked = False  # it is time to try what takes long
        self.despaired = False  # all was tried in vain
        self.count = 0  # opens of another file than lately
        self._distinct: OrderedDict[int, tuple[int, int]] = OrderedDict()  # row: reader, count
        self._firsts: dict[int, list[int]] = {}  # by reader: rows that it opened first
        self._quick_at = self._full_at = 0  # opens with which the last search began
        self._long_at = 0  # opens with which what takes long was tried last

    @property
    def began(self) -> int:
        """The mount's count of opens at the first of these."""
        return self.opens.oldest[2] if self.opens else self.last

    def __len__(self) -> int:
        return len(self._distinct)

    def add(self, row: int, reader: int, now: int) -> bool:
        """An open. True: have a look at the plans at hand now."""
        self.last = now
        self.opens.append((row, reader, now))
        if self._of_few_files and len(self.opens) > _KEPT_EACH * len(self._distinct) + _KEPT_BESIDE:
            self.opens.popleft()
        if not self._take(row, reader):
            return False
        return self.count in _LOOKS or self.count % _LOOK_EVERY == 0

    @property
    def _of_few_files(self) -> bool:
        """True: all of its files are among those that are kept apart."""
        return len(self._distinct) < MAX_OPENS

    @property
    def young(self) -> bool:
        """True while there are so few opens that each further one may be what a search needs."""
        return MIN_OPENS <= self.count <= _LOOK_EVERY

    def _take(self, row: int, reader: int) -> bool:
        """Note the file as opened last; False if it was opened a moment ago."""
        before = self._distinct.get(row)
        if before is not None:
            if self.count - before[1] < min(_TWICE, len(self._distinct) // 2 + 1):
                return False
            del self._distinct[row]
        self.count += 1
        self._distinct[row] = (reader, self.count)
        if len(firsts := self._firsts.setdefault(reader, [])) < FIRSTS and len(self._firsts) <= _FIRST_READERS:
            firsts.append(row)
        if len(self._distinct) > MAX_OPENS:
            self._distinct.popitem(last=False)
        return True

    def forgive(self) -> None:
        """Note that a reader does what is expected of it: for every other such open the oldest one here was a stray."""
        self._forgive = not self._forgive
        if self.opens and self._forgive:
            row, _, _ = self.opens.popleft()
            self._distinct.pop(row, None)

    def view(self) -> OpensView:
        """The opens of now."""
        rows = np.fromiter(self._distinct, np.int64, len(self._distinct))
        readers = np.fromiter((reader for reader, _ in self._distinct.values()), np.int64, len(self._distinct))
        firsts = tuple(np.array(mine, np.int64) for mine in self._firsts.values())
        return OpensView(rows, readers, self._ownership.total, firsts)

    def rows(self, index: int) -> NDArray[np.int64]:
        """The distinct rows of a data set that were opened lately, in order, int64[<= MAX_OPENS]."""
        within, owner = self._ownership.within(index), self._ownership.of
        return np.array([row for row in self._distinct if owner[row] in within], dtype=np.int64)

    def of_dataset(self, index: int) -> list[Open]:
        """The opens of a data set's files."""
        within, owner = self._ownership.within(index), self._ownership.of
        return [one for one in self.opens if owner[one[0]] in within]

    def in_epoch(self, order: EpochOrder) -> list[Open]:
        """The last opens of the order's data set that were made in its epoch.

        Opens that readers who follow the order made before, in another epoch, are forgotten: by them the epoch would
        seem to have been read everywhere. Opens of readers who do not follow the order stay to be explained.
        """
        opens = self.of_dataset(order.hypothesis.dataset)[-_BEGUN_WITH:]
        if order.again is not None:
            return opens
        before, others = elsewhere([(order.find(row), who) for row, who, _ in opens], order.length)
        gone = {opens[at] for at in before}
        if gone:
            self.opens = KeptOpens((one for one in self.opens if one not in gone), most=_KEPT)
        left_out = gone | {opens[at] for at in others}
        return [one for one in opens if one not in left_out]

    def firsts(self, index: int, count: int) -> list[NDArray[np.int64]]:
        """The first rows that each reader opened of a data set, those of at least 4: int64[<= count]."""
        within, owner = self._ownership.within(index), self._ownership.of
        whose: dict[int, dict[int, None]] = {}
        for row, reader, _ in self.opens:
            if owner[row] in within and len(mine := whose.setdefault(reader, {})) < count:
                mine[row] = None
        return [np.array(list(rows), np.int64) for rows in whose.values() if len(rows) >= MIN_OPENS]

    def datasets(self) -> list[int]:
        """The data sets that hold these rows, those that hold most of them first. A data set is left out where all
        rows lie in a part of it, and chance would have put some of so many outside."""
        owner = self._ownership.of
        counts: dict[int, int] = {}
        for row in self._distinct:
            counts[owner[row]] = counts.get(owner[row], 0) + 1
        found: dict[int, int] = {}
        for index in range(len(self._ownership)):
            held = sum(counts.get(who, 0) for who in self._ownership.within(index))
            if held:
                found[index] = held
        for index in list(found):
            for other in self._ownership.within(index):
                share = self._ownership.files(other) / max(self._ownership.files(index), 1)
                if found.get(other) == found[index] and -found[index] * math.log2(max(share, 1e-9)) > _NONE_OUTSIDE:
                    del found[index]  # of so many opens some would lie outside of the smaller one
                    break
        return sorted(found, key=lambda index: (-found[index], len(self._ownership.within(index)), index))

    def quick_due(self, *, beside: bool) -> bool:
        """True: it is time to try (again) what was said; asking means that it is done. `beside`: a search of all
        goes on."""
        if not beside:
            due = self.grown or any(self._quick_at < at <= self.count for at in _QUICK)
        else:
            due = self.count >= _QUICK_BESIDE * max(self._quick_at, self._full_at)
        self._quick_at = self.count if due else self._quick_at
        return due

    @property
    def grown(self) -> bool:
        """True: the search for what was said began with far fewer opens than there are."""
        return self.count >= _QUICK_AGAIN * max(self._quick_at, MIN_OPENS)

    def full_due(self) -> bool:
        """True: it is time to try everything (again); asking means that it is done."""
        due = self.count >= self.full_from
        self._full_at = self.count if due else self._full_at
        return due

    @property
    def full_from(self) -> int:
        """The opens with which everything is tried (again)."""
        if not self._full_at:
            few = FEW * len(self._firsts) > self.count  # all are taken as one
            several = few or any(len(rows) >= MIN_OPENS for rows in self._firsts.values())
            return min(_FULL_FROM if several else MAX_OPENS, self._ownership.total // 2)
        if self._full_at < _ENOUGH:
            return _ENOUGH
        often = self._of_few_files and self._full_at > _OFTEN * len(self._distinct)
        return (_RARELY if often else 2) * self._full_at

    @property
    def thorough(self) -> bool:
        """True: there were enough opens for a search that found nothing to mean something."""
        return self.count >= min(_LAST_WORD, self._ownership.total // 2)

    def suspect(self, found: Sequence[Suspect], most: int) -> None:
        """Take what a search has found; keep so many, those with the most evidence."""
        known = {one.candidate for one in found}
        self.suspects = [*found, *(one for one in self.suspects if one.candidate not in known)]
        self.suspects = sorted(self.suspects, key=lambda one: -one.worth)[:most]

    def still_at(self, part: int | None) -> bool:
        """True: a search may yet find what is as likely as what it found in that part."""
        return not self.settled or (self.full is not None and self.full.within(part))

    def try_said(self, search: Search) -> None:
        """Search for what was said."""
        self.quick = search

    def try_all(self, search: Search) -> None:
        """Search for everything."""
        self.full = search

    def leave_all(self) -> None:
        """Search no more for everything."""
        self.full = None

    def leave_said(self) -> None:
        """Search no more for what was said: it was tried, or the search of all begins with it."""
        self.quick = None
        self.settle()

    def settle(self) -> None:
        """Note that what was said need not be tried before something else is believed."""
        self.settled = True

    def tried(self, search: Search) -> None:
        """Note that a search has tried all that it could."""
        if search is self.quick:
            self.leave_said()
        elif search is self.full:
            self.leave_all()

    def likely_tried(self) -> None:
        """Note that a search has tried what is likely. With enough opens this means that what is read is not known."""
        self.despaired = self.despaired or self.thorough

    def left_by_readers(self, last: int) -> None:
        """Go on without readers: they have begun another epoch. `last`: the mount's count of opens at the last of
        these."""
        self.readers, self.quick, self.last = set(), None, last

    def rest(self) -> None:
        """Search no more until there are twice as many opens."""
        self.leave_said()
        self.leave_all()
        self._long_asked = False
        self._quick_at = self._full_at = self.count

    @property
    def long_enough(self) -> bool:
        """True: there are so many opens that what takes long may find their order."""
        return self.count >= _LONG_FROM

    def ask_for_long(self, *, anyhow: bool = False) -> None:
        """Ask for what takes long, if there are many more opens than when it was tried last. `anyhow`: whenever it was
        tried last."""
        if anyhow:
            self._long_asked = self.long_enough
        elif not self._long_asked and self.long_enough and self.count >= 4 * self._long_at:
            self._long_asked, self._long_at = True, self.count

    def long_due(self) -> bool:
        """True: it is time to try what takes long; asking means that it is done."""
        due, self._long_asked = self._long_asked, False
        return due

    def prove(self, worth: float, hypothesis: Hypothesis) -> None:
        """Note the plan that these opens make certain, by so many bits."""
        self.proof = Proof(self.count, worth, hypothesis)

    def opened_again(self, rows: Sequence[int]) -> list[Open]:
        """The last opens of these files, in order, if the readers have opened most of these files, and before as
        well."""
        lately = [one for one in islice(reversed(self.opens), _LATELY * len(rows)) if one[0] in rows][::-1]
        mine, apart = {row for row, _, _ in lately}, min(_TWICE, len(self._distinct) // 2 + 1)
        if 2 * len(mine) < len(rows):
            return []
        if len(self.opens) == _KEPT:  # of so many opens the first are gone, and nobody can tell
            return lately
        first: dict[int, int] = {}
        again = {
            row for at, (row, _, _) in enumerate(self.opens)
            if row in mine and at - first.setdefault(row, at) >= apart
        }  # fmt: skip
        return lately if 2 * len(again) > len(mine) else []

    def restart(self, opens: Iterable[Open] = ()) -> None:
        """Forget all opens but these."""
        self._begin()
        self.opens = KeptOpens(opens, most=_KEPT)
        for row, reader, _ in self.opens:
            self._take(row, reader)
