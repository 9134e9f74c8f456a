"""Heirs of dead servers while there is no supervisor to choose them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from nopfsfs.fuse.taken_requests import LeftBlock, given_blocks
from nopfsfs.system.proc import has_ended

Owner = tuple[int, int, int]  # pid, start time, number of the server


def left_to(
    own: int, given: Iterable[int], owner_of: Callable[[int], Owner], ended: Collection[int]
) -> list[tuple[int, Owner]]:
    """Return the blocks, with their owners, whose processes have ended, for the server with block `own` to take over.
    That server is the heir where its block is the lowest of the living. `given`: all blocks in use; `ended`: numbers of
    servers that are known to have ended, though /proc may still show them."""
    left, living = [], []
    for block in given:
        pid, started, number = owner = owner_of(block)
        if block != own and (not pid or number in ended or has_ended(pid, started)):
            left.append((block, owner))
        else:
            living.append(block)
    return left if own == min(living, default=own) else []


class OrphanHeir:
    """A server without a supervisor, as a heir. `block`: its own, below 0 where servers keep no requests; `taken`: the
    memory of `fuse/taken_requests.py`."""

    def __init__(self, taken: int, block: int) -> None:
        self.taken, self.block = taken, block
        self._ended: set[int] = set()
        self._taken_over: set[tuple[int, Owner]] = set()

    def saw_end(self, number: int) -> None:
        """Take note that the server with this number has ended, and nobody starts another."""
        self._ended.add(number)

    def next_left(self) -> list[int]:
        """Return the blocks that this server is to take over now, each once."""
        if self.block < 0:
            return []
        given = [block for block, used in enumerate(given_blocks(self.taken, writable=False)) if used]
        left = left_to(self.block, given, lambda block: LeftBlock(self.taken, block).owner, self._ended)
        found = [(block, owner) for block, owner in left if (block, owner) not in self._taken_over]
        self._taken_over.update(found)
        return [block for block, _ in found]
