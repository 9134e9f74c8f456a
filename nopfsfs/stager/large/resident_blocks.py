"""Blocks of large files that stay in memory: the first ones for which there is room.

An epoch reads each block once, in an order that is new each time. The block that was used longest ago is then as likely
as others to be read next. So a block that came first stays, and one that comes later passes through: of files that are
twice as large as the room, half of the blocks are found in each epoch. Where blocks followed each other by their last
use, few would be found.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from nopfsfs.stager.load import Load

Key = tuple[int, int]  # row, block


class ResidentBlocks:
    """The blocks by row and number: each is read, so that nobody waits for it. `used`: their bytes; `budget`: bytes
    that they may take. The caller holds its own lock, and frees what is given up."""

    def __init__(self) -> None:
        self.budget = self.used = 0
        self._idle_most = 0
        self._refused = 0  # bytes of blocks that found no room, since the begin
        self._loads: OrderedDict[Key, Load] = OrderedDict()  # in order of last use
        self._numbers: defaultdict[int, set[int]] = defaultdict(set)  # by row

    def __contains__(self, key: Key) -> bool:
        return key in self._loads

    @property
    def rows(self) -> set[int]:
        """The files of which blocks are here."""
        return set(self._numbers)

    def of_row(self, row: int) -> list[Load]:
        """The blocks of a file."""
        return [self._loads[row, number] for number in self._numbers.get(row, ())]

    def resize(self, budget: int, large: int) -> list[Load]:
        """Change the budget; `large`: the bytes of all large files. Return the blocks that have to make room.

        A job that reads each large file once an epoch uses a block again within two epochs: before as many bytes were
        refused as find no room in two. A block that was not used for longer is given up for another.
        """
        self.budget, self._idle_most = budget, 2 * max(0, large - budget)
        gone = []
        for key in list(self._loads):
            if self.used <= budget:
                break
            if not self._loads[key].held:
                gone.append(self.take(key))
        return gone

    def use(self, key: Key) -> Load | None:
        """The block, which counts as used now; None if it is not here."""
        load = self._loads.get(key)
        if load is not None:
            self._loads.move_to_end(key)
            load.used_at = self._refused
        return load

    def offer(self, key: Key, load: Load) -> tuple[bool, Load | None]:
        """Keep a block that was read, if there is room. Return whether it stays, and the block that is given up for it.
        """
        gone = None
        if self.used + load.length > self.budget:
            self._refused += load.length
            oldest = next(iter(self._loads.items()), None)
            if oldest is None or self._refused - oldest[1].used_at <= self._idle_most or oldest[1].held:
                return False, None
            gone = self.take(oldest[0])
            if self.used + load.length > self.budget:  # it was the short end of a file
                return False, gone
        self._loads[key] = load
        self._numbers[key[0]].add(key[1])
        self.used += load.length
        load.used_at = self._refused
        return True, gone

    def take(self, key: Key) -> Load:
        """Give a block up."""
        load = self._loads.pop(key)
        self.used -= load.length
        numbers = self._numbers[key[0]]
        numbers.discard(key[1])
        if not numbers:
            del self._numbers[key[0]]
        return load
