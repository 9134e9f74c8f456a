"""The blocks of taken requests: those that belong to servers, those that are left, and the heir of each of these. Pure.

A block is given to a process when it is started. When the process is gone, its left requests are handed out to a
living server, the heir, which answers them. Then the block is free. An heir that dies before that leaves the block
again, with its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence


class LeftRequests:
    """`given`: the column of `fuse/taken_requests.py`; what it holds at first is of a supervisor before.
    `is_empty(block)`: it has no left requests."""

    def __init__(self, is_empty: Callable[[int], bool], given: memoryview | list[int]) -> None:
        self._is_empty, self._given = is_empty, given
        self._heirs: dict[int, int | None] = {}  # of left blocks: the heir's block, or None while there is none
        self._open: set[int] = set()  # left by processes that may yet write to them
        self._again: set[int] = set()  # that were left once more while an heir was at them
        self.inherited = [block for block in range(len(given)) if given[block]]

    def assign(self) -> int:
        """Give a free block to a process that is to be started. Raises OSError (EBUSY): there is none."""
        for block in range(len(self._given)):
            if not self._given[block]:
                self._given[block] = 1
                return block
        raise OSError(errno.EBUSY, "no room for the requests of another server")

    def left(self, block: int, *, final: bool = True) -> None:
        """The process of a block is gone. Not `final`: it is asleep, and may yet take a request or answer one; call
        this again when it has ended."""
        for other, heir in self._heirs.items():
            if heir == block:
                self._heirs[other] = None
        if not final:
            self._open.add(block)
        else:
            self._open.discard(block)
            if block not in self._heirs and self._is_empty(block):
                self._given[block] = 0
                return
        if self._heirs.get(block) is not None:
            self._again.add(block)
        else:
            self._heirs[block] = None

    def hand_out(self, living: Sequence[int]) -> list[tuple[int, int]]:
        """Return (block, heir's block) for each left block that has no heir yet; none where no server lives. `living`:
        blocks of living servers."""
        if not living:
            return []
        waiting = [block for block, heir in self._heirs.items() if heir is None]
        self._heirs.update((block, living[0]) for block in waiting)
        return [(block, living[0]) for block in waiting]

    def taken_over(self, block: int) -> None:
        """The heir has answered, or keeps in its own block, what was in this one."""
        if self._heirs.get(block) is None:
            return
        if block in self._again:
            self._again.discard(block)
            self._heirs[block] = None
            return
        del self._heirs[block]
        if block not in self._open:
            self._given[block] = 0
