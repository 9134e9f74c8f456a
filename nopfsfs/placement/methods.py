"""Placement methods: the node of the cluster that keeps each sample, and the storage class there. Pure.

`nopfs` is the paper's placement (SC21, section 5.1, and its code). Every node keeps what it reads most, so that several
nodes keep the same samples. `homes` gives every sample one home in the cluster, and uses the room that is left for
second copies. All nodes compute the same placement from the same orders, so that none needs to ask another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement.access_counts import BLOCK_BYTES, NOBODY, Pairs, Readers, by_node, by_sample, pairs, shuffled

Ints = NDArray[np.int64]
# A placement gives each sample a number for each node. 0: home in the fastest class; 1, 2, ...: in the next ones; or
NOWHERE = -1  # home in no class of the node; the sample may get room that is left
UNCOVERED = -2  # not in the placement
CHOICES = 3  # the most frequent readers of a sample that are tried before any node with room


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes and classes of all samples. `home` i32[F]: the node that peers ask for the sample, or NOWHERE;
    `home_class` i8[F]: the storage class there (0: the first after the staging buffer). `copies`: for each node,
    further samples that it keeps (`nopfs`: all), i64[m] ascending, and their classes, i8[m]. `slice` i64[nodes]: bytes
    of each node's fastest class that are ruled by Belady."""

    home: NDArray[np.int32]
    home_class: NDArray[np.int8]
    copies: tuple[tuple[Ints, NDArray[np.int8]], ...]
    slice: Ints

    @property
    def distinct_share(self) -> float:
        """Share of the samples that are kept somewhere."""
        return float(np.count_nonzero(self.home >= 0)) / len(self.home) if len(self.home) else 1.0

    def local(self, node: int, samples: Ints) -> NDArray[np.int8]:
        """The class in which the node itself has each sample, i8[m], or NOWHERE."""
        found = np.where(self.home[samples] == node, self.home_class[samples], np.int8(NOWHERE))
        kept, classes = self.copies[node]
        if len(kept):
            at = np.minimum(np.searchsorted(kept, samples), len(kept) - 1)
            found = np.where((kept[at] == samples) & (found < 0), classes[at], found)
        return found.astype(np.int8)


@dataclass(frozen=True, slots=True)
class Begun:
    """Homes that samples have before a placement is computed: `home` i32[F] and `home_class` i8[F] as of `Placement`,
    NOWHERE where there is none."""

    home: NDArray[np.int32]
    home_class: NDArray[np.int8]

    @staticmethod
    def none(count: int) -> Begun:
        """No homes of `count` samples."""
        return Begun(np.full(count, NOWHERE, np.int32), np.full(count, NOWHERE, np.int8))

    def of(self, part: slice) -> Begun:
        """Take the homes of some of the samples."""
        return Begun(self.home[part], self.home_class[part])


def take(group: Ints, sizes: Ints, room: Ints, *, closes: bool = False) -> NDArray[np.bool_]:
    """Choose which of m things fit, b[m]. Thing i wants `sizes[i]` of the room of group `group[i]`. The things are
    sorted by group, and within a group in the order in which they may choose. `room` i64[groups] is reduced by what was
    taken. `closes`: a group takes nothing after the first thing that does not fit; else smaller things may still fit.
    """
    taken = np.zeros(len(group), np.bool_)
    left = np.arange(len(group))
    while len(left):
        if not closes:
            left = left[sizes[left] <= room[group[left]]]
        groups = group[left]
        total = np.cumsum(sizes[left])
        begins = np.flatnonzero(np.diff(groups, prepend=-1)) if len(left) else left
        before = np.repeat(total[begins] - sizes[left][begins], np.diff(begins, append=len(left)))
        fits = total - before <= room[groups]
        taken[left[fits]] = True
        won = groups[fits]
        firsts = np.flatnonzero(np.diff(won, prepend=-1))
        room[won[firsts]] -= np.add.reduceat(sizes[left][fits], firsts)
        if closes:
            break
        left = left[~fits]
    return taken


def fill(sizes: Ints, room: Ints, *, closes: bool = False) -> NDArray[np.int8]:
    """The storage class of each of m samples that one node would keep, the most wanted first: i8[m], or NOWHERE. `room`
    i64[classes], bytes, the fastest first, is reduced by what was taken."""
    classes = np.full(len(sizes), NOWHERE, np.int8)
    for number in range(len(room)):
        free = np.flatnonzero(classes < 0)
        at = room[number : number + 1]
        classes[free[take(np.zeros(len(free), np.int64), sizes[free], at, closes=closes)]] = number
    return classes


def nopfs(readers: Readers, epochs: int, sizes: Ints, room: Ints, block: int = BLOCK_BYTES) -> Placement:
    """Compute the paper's placement. Each node keeps the samples that it reads most, of equal ones those with the lower
    number, as all nodes do. A class closes at the first sample that does not fit. Peers ask the first node that keeps a
    sample. `sizes` i64[F]; `room` i64[nodes, classes]; bytes."""
    count, nodes = len(sizes), len(room)
    home = np.full(count, NOWHERE, np.int32)
    home_class = np.full(count, NOWHERE, np.int8)
    copies: list[tuple[Ints, NDArray[np.int8]]] = []
    for part in by_node(readers, epochs, count, nodes, block):
        for at, often in enumerate(part.often):
            node = part.first + at
            read = np.flatnonzero(often)
            wanted = read[np.argsort(255 - often[read], kind="stable")]
            classes = fill(sizes[wanted], room[node].copy(), closes=True)
            kept = np.flatnonzero(classes >= 0)
            wanted, classes = wanted[kept], classes[kept]
            new = home[wanted] < 0
            home[wanted[new]], home_class[wanted[new]] = node, classes[new]
            order = np.argsort(wanted)
            copies.append((wanted[order], classes[order]))
    return Placement(home, home_class, tuple(copies), np.zeros(nodes, np.int64))


def homes(
    readers: Readers, epochs: int, sizes: Ints, room: Ints, *, slice_share: float | None = None,
    block: int = BLOCK_BYTES, begun: Begun | None = None,
) -> Placement:  # fmt: skip
    """Give every sample one home while there is room: the node that reads it most among those with room. At their home,
    the samples that the node reads most get the fastest class. Room may be left when every sample has a home. In the
    fastest class that room is a slice ruled by Belady, and in the others it holds second copies. With less room than
    one copy of everything there is neither, unless `slice_share` of the fastest class is set aside. `sizes` i64[F];
    `room` i64[nodes, classes], not changed; bytes. Samples keep the homes of `begun`, whose bytes `room` has not."""
    begun = Begun.none(len(sizes)) if begun is None else begun
    left = room.copy()
    apart = np.zeros(len(room), np.int64)
    if not room.size or not len(sizes):
        return Placement(begun.home, begun.home_class, _none(len(room)), apart)
    if slice_share:
        apart = (left[:, 0] * slice_share).astype(np.int64)
        left[:, 0] -= apart
    largest = int(left.max())  # what is larger fits nowhere
    home, often = _nodes(readers, epochs, sizes, left.sum(axis=1), block, begun.home)
    home_class = _classes(home, often, sizes, left, begun.home_class)
    if ((home < 0) & (sizes <= largest)).any():
        return Placement(home, home_class, _none(len(room)), apart)
    if slice_share is None:
        apart, left[:, 0] = left[:, 0].copy(), 0
    return Placement(home, home_class, _second(readers, epochs, sizes, left, home, block), apart)


def _nodes(
    readers: Readers, epochs: int, sizes: Ints, room: Ints, block: int, begun: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The home of each sample, i32[F], and how often its home reads it, u8[F]: 0 where it had its home before."""
    home = begun.copy()
    own = np.zeros(len(sizes), np.uint8)
    ranked = by_sample(readers, epochs, len(sizes), CHOICES, block)
    for choice in range(CHOICES):
        node, often = ranked.node[:, choice], ranked.often[:, choice]
        wanting = np.flatnonzero((home < 0) & (node != NOBODY))
        order = wanting[np.lexsort((255 - often[wanting], node[wanting]))]  # stable: then by number
        won = order[take(node[order].astype(np.int64), sizes[order], room)]
        home[won], own[won] = node[won], often[won]
        if (home >= 0).all():
            break
    _anywhere(home, sizes, room)
    return home, own


def _anywhere(home: NDArray[np.int32], sizes: Ints, room: Ints) -> None:
    """Give each sample without a home one where there is room. The free room of all nodes counts as one row of bytes,
    into which the samples are laid; samples on a border try again."""
    while True:
        without = np.flatnonzero((home < 0) & (sizes <= room.max()))
        if not len(without):
            return
        ends = np.cumsum(room)
        last = np.cumsum(sizes[without])
        without = without[: np.searchsorted(last, ends[-1], side="right") + 1]
        node = np.minimum(np.searchsorted(ends, last[: len(without)] - 1, side="right"), len(room) - 1)
        won = take(node.astype(np.int64), sizes[without], room)
        if not won.any():  # only borders: the roomiest node takes what fits
            node[:] = int(np.argmax(room))
            won = take(node.astype(np.int64), sizes[without], room)
        home[without[won]] = node[won]


def _classes(
    home: NDArray[np.int32], often: NDArray[np.uint8], sizes: Ints, room: Ints, begun: NDArray[np.int8]
) -> NDArray[np.int8]:
    """The class of each sample at its home: the fastest for the samples that its node reads most. `room` i64[nodes,
    classes] is reduced. A sample that fits the node, but no single class, loses its home. Samples without one go where
    room is."""
    classes: NDArray[np.int8] = begun.copy()
    placed = np.flatnonzero(home >= 0)
    order = placed[np.lexsort((255 - often[placed], home[placed]))]
    for number in range(room.shape[1]):
        order = order[classes[order] < 0]
        column = np.ascontiguousarray(room[:, number])
        won = order[take(home[order].astype(np.int64), sizes[order], column)]
        classes[won] = number
        room[:, number] = column
    home[order[classes[order] < 0]] = NOWHERE
    lost = np.flatnonzero(home < 0)
    if len(lost):
        slots = np.ascontiguousarray(room.reshape(-1))
        slot = np.full(len(lost), NOWHERE, np.int32)
        _anywhere(slot, sizes[lost], slots)
        found = slot >= 0
        home[lost[found]] = slot[found] // room.shape[1]
        classes[lost[found]] = slot[found] % room.shape[1]
        room[:] = slots.reshape(room.shape)
    return classes


def _second(
    readers: Readers, epochs: int, sizes: Ints, room: Ints, home: NDArray[np.int32], block: int
) -> tuple[tuple[Ints, NDArray[np.int8]], ...]:
    """Choose second copies: samples that a node reads more than once and that have their home elsewhere, the most read
    first. A copy saves a fetch from the home for every read but the first. `room` i64[nodes, classes] is reduced."""
    if not (room > 0).any():
        return _none(len(room))
    found = pairs(readers, epochs, len(sizes), 2, block)
    wanting = Pairs.joined([part.of(home[part.sample] != part.node) for part in found])
    ends = np.searchsorted(wanting.node, np.arange(len(room)), side="right")
    copies: list[tuple[Ints, NDArray[np.int8]]] = []
    for node, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        some = wanting.of(slice(begin, end))
        wanted = some.sample.astype(np.int64)
        if int(sizes[wanted].sum()) > int(room[node].sum()):
            wanted = wanted[np.lexsort((shuffled(node, wanted), some.since, 255 - some.often))]
        classes = fill(sizes[wanted], room[node])
        kept = np.flatnonzero(classes >= 0)
        order = kept[np.argsort(wanted[kept], kind="stable")]
        copies.append((wanted[order], classes[order]))
    return tuple(copies)


def _none(nodes: int) -> tuple[tuple[Ints, NDArray[np.int8]], ...]:
    return tuple((np.zeros(0, np.int64), np.zeros(0, np.int8)) for _ in range(nodes))
