"""PyGrain's shuffling, bit for bit: `samplers.py`, `dataset/transformations/shuffle.py`, `slice.py` and
`index_shuffle` of grain 0.2.18 (the C++ of which came with TensorFlow Datasets). Does not import grain.

Which worker reads what changes the order of opens little: worker k of W has the places k, k + W, ... of the order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# index_shuffle is given 32-bit numbers.
MAX_N = 2**32
_ROUNDS = 4
# Samples computed at a time: their words stay in the processor's cache.
_CHUNK = 1 << 16
# Bits of the smallest block.
_SMALL = 16
# Up to so many samples, the whole smallest block is followed at once.
_FEW = 1 << 8
_MASK = 0xFFFFFFFF


def seed_seq(seed: int, count: int) -> list[int]:
    """`std::seed_seq{seed}.generate` of `count` < 7 words (C++11, 26.5.7.1)."""
    words = [0x8B8B8B8B] * count
    middle = (count - 1) // 2
    p = (count - middle) // 2
    q = p + middle
    steps = max(2, count)
    for k in range(steps):
        mixed = words[k % count] ^ words[(k + p) % count] ^ words[(k - 1) % count]
        first = 1664525 * (mixed ^ (mixed >> 27)) & _MASK
        second = first + (1 if k == 0 else k % count + (seed if k == 1 else 0)) & _MASK
        words[(k + p) % count] = words[(k + p) % count] + first & _MASK
        words[(k + q) % count] = words[(k + q) % count] + second & _MASK
        words[k % count] = second
    for k in range(steps, steps + count):
        mixed = words[k % count] + words[(k + p) % count] + words[(k - 1) % count] & _MASK
        first = 1566083941 * (mixed ^ (mixed >> 27)) & _MASK
        second = first - k % count & _MASK
        words[(k + p) % count] ^= first
        words[(k + q) % count] ^= second
        words[k % count] = second
    return words


class _Cipher:
    """The Simon-like block cipher by which index_shuffle permutes 0 .. 2^bits - 1; bits even and at least 16."""

    def __init__(self, seed: int, bits: int) -> None:
        self._half = bits // 2
        self._mask = np.uint32((1 << self._half) - 1)
        keys = [np.uint32(key) & self._mask for key in seed_seq(seed, _ROUNDS)]
        mixed = _mixed(self._half)
        self._rounds = [(mixed ^ first, mixed ^ second) for first, second in zip(keys[::2], keys[1::2], strict=True)]

    def encrypt(self, x: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """uint32[m] to uint32[m]."""
        # Masked as grain does: of 2^bits + 1 samples the last is read as the first is, and one sample never.
        left, right = x >> np.uint32(self._half) & self._mask, x & self._mask
        for first, second in self._rounds:
            left ^= first[right]
            right ^= second[left]
        mixed: NDArray[np.uint32] = left << np.uint32(self._half) | right
        return mixed


@functools.lru_cache(maxsize=4)
def _mixed(half: int) -> NDArray[np.uint32]:
    """The cipher's outcome for each half of a block, uint32[2^half], at most 256 KiB: looking it up costs a third of
    computing it."""
    x, mask = np.arange(1 << half, dtype=np.uint32), np.uint32((1 << half) - 1)
    once, twice, more = ((x << np.uint32(by) | x >> np.uint32(half - by)) & mask for by in (1, 2, 8))
    found: NDArray[np.uint32] = once & more ^ twice
    return found


@functools.lru_cache(maxsize=32)
def _block(seed: int) -> NDArray[np.uint32]:
    """The smallest block, all of it: 256 KiB. The shards of all ranks are shuffled with the same seed."""
    return _Cipher(seed, _SMALL).encrypt(np.arange(1 << _SMALL, dtype=np.uint32))


@functools.lru_cache(maxsize=32)
def _first_below(seed: int, n: int) -> NDArray[np.uint32]:
    """The first number below n that the block leads to from each of 0 .. n-1, step after step; uint32[n]. Kept, because
    the shards of most ranks have the same size.

    Each number has some 65,536 / n steps to go, one after the other. Here all numbers of the block go at once, and
    twice as far each time.
    """
    to = _block(seed).copy()
    beyond = np.flatnonzero(to >= n)
    for _ in range(_SMALL):  # circles that have nothing below n go on for ever
        to[beyond] = to[to[beyond]]
        beyond = beyond[to[beyond] >= n]
    below: NDArray[np.uint32] = to[:n].copy()  # not all of the block is kept
    return below


def index_shuffle(n: int, seed: int, count: int | None = None) -> NDArray[np.int64]:
    """`index_shuffle(i, max_index=n - 1, seed=seed, rounds=4)` for i = 0, 1, ...: the first `count` (default: all) of
    n, int64[min(count, n)]. Costs in proportion to `count`. Raises ValueError when n is negative or above `MAX_N`."""
    if not 0 <= n <= MAX_N:
        raise ValueError(f"index_shuffle of {n}: must be between 0 and {MAX_N}")
    count = n if count is None else min(count, n)
    if n <= 1:
        return np.zeros(count, np.int64)
    top = n - 1
    if n <= _FEW and 32 * count > n:
        return _first_below(seed, n)[:count].astype(np.int64)
    bits = max(_SMALL, (top - 1).bit_length())
    if n <= 1 << _SMALL and 32 * count > n:  # some samples go through much of the block before they are below n
        step: Callable[..., NDArray[np.uint32]] = _block(seed).take
    else:
        step = _Cipher(seed, bits + bits % 2).encrypt
    order = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        x = step(np.arange(start, min(start + _CHUNK, count), dtype=np.uint32))
        beyond = np.flatnonzero(x > top)
        while len(beyond):
            again = step(x[beyond])
            x[beyond] = again
            beyond = beyond[again > top]
        order[start : start + len(x)] = x
    return order


def even_split(n: int, world: int, rank: int, *, drop_remainder: bool) -> tuple[int, int]:
    """The samples [start, end) of one shard (grain `sharding.even_split`)."""
    each, more = divmod(n, world)
    if drop_remainder:
        more = 0
    return each * rank + min(rank, more), each * (rank + 1) + min(rank + 1, more)


class Grain(Sampler):
    """`IndexSampler(shuffle=True, seed)` and `MapDataset.shuffle(seed)`: index_shuffle seeded with seed + epoch.

    Options: `sequential`. `same`: every epoch as the first (`repeat(reseed_each_epoch=False)`, or a loader of one epoch
    made anew). `derived`: the seed is that of `ds.seed(seed)`, this many steps above `shuffle()`. `sharding`: how a
    shard is made. "even_split": cut out and then shuffled (IndexSampler with ShardOptions). "slice": sliced out of the
    shuffled samples (`ds.shuffle(seed)[rank::world]`). "slice_first": sliced out and then shuffled. `drop_remainder` of
    even_split.

    A DataLoader of one epoch over uneven shards leaves out the last sample of the longer ones; that is not modelled.
    """

    name = "grain"
    costly = True  # where the samples are few: each goes through much of the smallest block
    summary = "grain.samplers.IndexSampler, grain.MapDataset.shuffle"
    dealt = Dealt.OWN
    files = ("sorted_files", "image_folder")
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {
        "sequential": Option("shuffle=False", bool),
        "same": Option("every epoch as the first", bool),
        "derived": Option("how many steps above shuffle() the seed was set with ds.seed(seed)", least=0, most=16),
        "sharding": Option(
            "how ranks share: a shard, shuffled (even_split); a slice of what was shuffled (slice); a slice, shuffled "
            "(slice_first)",
            str,
            "even_split",
            choices=("even_split", "slice", "slice_first"),
        ),
        "drop_remainder": Option("drop_remainder=True", bool),
    }

    def _shuffled(self, spec: Spec, n: int, epoch: int, count: int | None) -> NDArray[np.int64]:
        if spec.number("sequential"):
            return np.arange(n if count is None else min(n, count), dtype=np.int64)
        seed, depth = spec.seed, spec.number("derived")
        if depth:
            seed = int(np.random.SeedSequence([seed, depth]).generate_state(1, np.uint32)[0])
        return index_shuffle(n, (seed + (0 if spec.number("same") else epoch)) & _MASK, count)

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of a single rank. A head costs in proportion to `count`."""
        return self._shuffled(spec, n, epoch, count)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded, so that some ranks may have one sample more."""
        sharding.check_ranks(world, ranks)
        kind = spec.get("sharding", "even_split")
        if kind == "slice":
            whole = self._shuffled(spec, n, epoch, None if count is None else count * world)
            return sharding.interleave([whole[rank::world] for rank in ranks])
        parts = []
        for rank in ranks:
            if kind == "slice_first":
                size = len(range(rank, n, world))
                parts.append(self._shuffled(spec, size, epoch, count) * world + rank)
            else:
                start, end = even_split(n, world, rank, drop_remainder=bool(spec.number("drop_remainder")))
                parts.append(self._shuffled(spec, end - start, epoch, count) + start)
        return sharding.interleave(parts)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The seed given to the shuffle, or to the data set."""
        return tuple(spec.with_option("derived", depth) for spec in super().variants(seed) for depth in (0, 1))

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other ways to share, which are the same for a single rank; the seed set further up; remainders dropped."""
        usual = super().variants(seed)
        sliced = [spec.with_option("sharding", kind) for spec in usual for kind in ("slice", "slice_first")]
        dropped = [spec.with_option("drop_remainder", 1) for spec in usual]
        return (
            *(one.with_option("derived", depth) for one in usual for depth in (2, 3, 4)),
            *(one.with_option("derived", depth) for one in sliced for depth in (0, 1, 2)),
            *(one.with_option("derived", depth) for one in dropped for depth in (0, 1)),
        )

    def epochs(self, spec: Spec) -> int:
        """Any epoch costs the same, so all that jobs usually run."""
        return 1 if spec.number("sequential") or spec.number("same") else 16


FAMILIES: tuple[Sampler, ...] = (Grain(),)
