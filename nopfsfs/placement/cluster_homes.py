"""The node of a cluster that has the home of each file of a mount: placements, one after the other. Pure.

Every node computes the same placements by itself. A further placement gives homes to files that earlier ones did not
cover, in the room that these have left; it moves nothing. Files of which a node has kept a copy on disk from an
earlier mount have their home there, as far as there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement.access_counts import NOBODY, Nodes, Readers, shuffled
from nopfsfs.placement.methods import NOWHERE, UNCOVERED, Begun, Placement, homes, nopfs, take

Ints = NDArray[np.int64]
METHODS = ("homes", "nopfs")
# Files that are placed at once; each takes some 100 bytes of memory. Each block has its share of every room.
BLOCK = 1 << 21


@dataclass(frozen=True, eq=False, slots=True)
class ClusterHomes:
    """The placed rows. `home` u16[n]: the node with the home of each row, or NOBODY; `used` i64[nodes, classes], bytes.
    `local` i8[n]: the class in which this node has the row (0: in memory; 1, 2, ...: on that disk tier), NOWHERE, or
    UNCOVERED."""

    home: Nodes
    local: NDArray[np.int8]
    used: Ints

    @staticmethod
    def empty(n: int, nodes: int, classes: int) -> ClusterHomes:
        """The homes of n rows, none of them placed."""
        return ClusterHomes(
            np.full(n, NOBODY, np.uint16), np.full(n, UNCOVERED, np.int8), np.zeros((nodes, classes), np.int64)
        )

    @property
    def distinct_share(self) -> float:
        """Share of the covered rows that have a home."""
        covered = int(np.count_nonzero(self.local != UNCOVERED))
        return int(np.count_nonzero(self.home != NOBODY)) / covered if covered else 1.0

    def to_cover(self, rows: NDArray[np.integer], charges: Ints, limit: int) -> NDArray[np.bool_]:
        """Choose which of m rows a further placement is to cover, b[m]: each row once, no covered row and no empty
        file. Nor does a placement cover a file of more than `limit` bytes, which no node keeps whole."""
        wanted: NDArray[np.bool_] = self.local[rows] == UNCOVERED
        size = charges[rows]
        wanted &= (size > 0) & (size <= limit)
        seen = np.zeros(len(charges), np.bool_)
        seen[rows] = True
        if np.count_nonzero(seen) < len(rows):
            first = np.zeros(len(rows), np.bool_)
            first[np.unique(rows, return_index=True)[1]] = True
            wanted &= first
        return wanted


@dataclass(frozen=True, eq=False, slots=True)
class CopiesByNode:
    """Copies on disk that earlier mounts have left in a cluster. `node` u16[n]: a node that has one of each row, or
    NOBODY; `tier` u8[n]: the number of its disk tier, 1, 2, ..."""

    node: Nodes
    tier: NDArray[np.uint8]

    @staticmethod
    def none(n: int) -> CopiesByNode:
        """No copies of n rows."""
        return CopiesByNode(np.full(n, NOBODY, np.uint16), np.zeros(n, np.uint8))

    def add(self, node: int, tier: int, rows: Ints) -> None:
        """Note the copies of distinct rows. Of several nodes with a copy a hash chooses, so that it does not matter
        which of them is added first."""
        other = self.node[rows]
        chosen = (other == NOBODY) | (shuffled(node, rows) < shuffled(other, rows))
        self.node[rows[chosen]], self.tier[rows[chosen]] = node, tier

    def begin(self, rows: NDArray[np.integer], charges: Ints, left: Ints) -> Begun:
        """The homes that m rows have by their copies. `left` i64[nodes, classes], bytes, is reduced."""
        nodes, classes = left.shape
        begun, node, tier = Begun.none(len(rows)), self.node[rows], self.tier[rows]
        there = np.flatnonzero((node < nodes) & (tier > 0) & (tier < classes))
        slot = node[there].astype(np.int64) * classes + tier[there]
        order = np.argsort(slot, kind="stable")
        there, slot = there[order], slot[order]
        room = left.reshape(-1).copy()
        won = there[take(slot, charges[rows[there]], room)]
        begun.home[won], begun.home_class[won] = node[won], tier[won]
        left[:] = room.reshape(left.shape)
        return begun


def by_hash(rows: NDArray[np.integer], nodes: int) -> Nodes:
    """Deal m rows out evenly and as good as at random, where no readers are known: the node of each row, u16[m]."""
    order = np.argsort(shuffled(0, rows.astype(np.int64)), kind="stable")
    found = np.empty(len(rows), np.uint16)
    found[order] = (np.arange(len(rows), dtype=np.int64) % nodes).astype(np.uint16)
    return found


def extend(
    before: ClusterHomes, rows: NDArray[np.integer], readers: Readers, epochs: int, charges: Ints, rooms: Ints,
    *, node: int, method: str = "homes", block: int = BLOCK, kept: CopiesByNode | None = None,
) -> ClusterHomes:  # fmt: skip
    """Add a placement of m rows, which are `to_cover`, as `node` has it. `readers`: the node that reads each row in
    epochs 0 .. `epochs` - 1, u16[m]; `charges` i64[n]; `rooms` i64[nodes, classes], bytes, with the bytes of earlier
    placements. The method `nopfs` knows no `kept` copies: there each node keeps what it reads most."""
    home, local, used = before.home.copy(), before.local.copy(), before.used.copy()
    left = np.maximum(rooms - used, 0)
    free = left.copy()
    begun = Begun.none(len(rows)) if kept is None or method == "nopfs" else kept.begin(rows, charges, left)
    used += free - left
    parts = [slice(first, first + block) for first in range(0, len(rows), block)]
    asking = charges[rows] * (begun.home < 0)
    if not asking.any():  # then the room is for further copies
        asking = charges[rows]
    total = [int(asking[part].sum()) for part in parts]
    for number, part in enumerate(parts):
        some = rows[part]
        share = total[number] / max(1, sum(total[number:]))
        room = left if share == 1 else (left * share).astype(np.int64)
        of_part, sizes, had = _of(readers, part), charges[some], begun.of(part)
        if method == "nopfs":
            placed = nopfs(of_part, epochs, sizes, room)
        else:
            placed = homes(of_part, epochs, sizes, room, begun=had)
        home[some] = np.where(placed.home >= 0, placed.home, NOBODY)
        local[some] = placed.local(node, np.arange(len(some)))
        taken = _taken(placed, had, sizes, *rooms.shape)
        left -= taken
        used += taken
    return ClusterHomes(home, local, used)


def _of(readers: Readers, part: slice) -> Readers:
    return lambda epoch: readers(epoch)[part]


def _taken(placed: Placement, begun: Begun, sizes: Ints, nodes: int, classes: int) -> Ints:
    """Bytes that the placement takes of each class of each node beside what was begun with, i64[nodes, classes]."""
    at_home = np.flatnonzero((placed.home >= 0) & (begun.home < 0))
    at = placed.home[at_home].astype(np.int64) * classes + placed.home_class[at_home]
    found = _sums(at, sizes[at_home], nodes * classes)
    for node, (kept, number) in enumerate(placed.copies):
        besides = (placed.home[kept] != node) & (number != NOWHERE)
        found[node * classes : (node + 1) * classes] += _sums(number[besides], sizes[kept[besides]], classes)
    return found.reshape(nodes, classes)


def _sums(at: NDArray[np.integer], sizes: Ints, count: int) -> Ints:
    return np.bincount(at, weights=sizes, minlength=count).astype(np.int64)
