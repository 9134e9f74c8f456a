"""How the memory budget of a mount is divided, and how it follows the memory of the node. Pure.

A byte that is in the page cache of the mount needs no copy in the arena: the page cache is the home of what fits there,
the arena is what files pass through on their way, and holds second copies when there is room for them.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
WHOLE_FRACTION = 8  # a file above 1/8 of the budget is never staged whole
PASSAGE_LEAST = 32 * MIB
PASSAGE_MOST = 1024 * MIB
KEEP_FREE_FRACTION = 0.05  # of the node's memory (or the cgroup's) that staging leaves alone
STREAM_FRACTION = 4  # of the page budget, for files that do not stay


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes. `arena` + `pages` is the whole budget; `passage` is the part of the arena that is never filled with
    second copies; `homes` is the part of `pages` for files that stay; `whole_limit` the largest file staged whole."""

    arena: int
    pages: int
    passage: int
    homes: int
    whole_limit: int


def passage(data: int) -> int:
    """Arena bytes that files pass through, for a data set of `data` bytes."""
    return min(max(data // 16, PASSAGE_LEAST), PASSAGE_MOST)


def automatic(available: int, data: int) -> int:
    """The budget when the user names none: half of the memory that is available, at most what the data set takes."""
    return max(0, min(available // 2, data + passage(data)))


def split(total: int, data: int) -> Split:
    """Divide `total` bytes for a data set of `data` bytes (files rounded to pages)."""
    way = min(passage(data), total // 4)
    pages = min(total - way, data)
    homes = pages if data <= pages else pages - min(pages // STREAM_FRACTION, 256 * MIB)
    return Split(arena=total - pages, pages=pages, passage=way, homes=homes, whole_limit=total // WHOLE_FRACTION)


def under_pressure(configured: int, allowed: int, used: int, available: int, memory: int) -> int:
    """The budget from now on, given what the node has available. Shrinks at once, grows back by an eighth at a time."""
    floor = int(memory * KEEP_FREE_FRACTION)
    if available < floor:
        return max(0, min(allowed, used - (floor - available)))
    if allowed < configured and available > 2 * floor:
        return min(configured, allowed + max(configured // 8, 1))
    return allowed
