"""WebDataset's order of shards, bit for bit: `shardlists.py`, `filters.py` and `compat.py` of webdataset 1.0.2. Does
not import webdataset. A sample is a shard here: a .tar file.

Without a seed (and without WDS_SEED) WebDataset draws one; ResampledShards draws from the system. Neither can be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import python_shuffle, sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# What WebDataset takes for shardshuffle=True, and what `shuffle` takes for `initial` and for its buffer.
_BUFFER = 100
_INITIAL = 100
_SHUFFLE_BUFFER = 1000
# What open_clip 3.3 takes (open_clip_train/data.py).
_CLIP = (("initial", 500), ("shardshuffle", 2000))
_WORDS = 256
_SIZE = "shards to choose from at a time"
_BEFORE = "shards in the buffer before the first is read"


def picked(seed: int, n: int, size: int, initial: int = _INITIAL, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` (default: all) of 0..n-1 as `filters._shuffle` with `random.Random(seed)` yields them, from a
    buffer of `size`; int64[min(count, n)]. Costs a microsecond for each of `count`: shards are few."""
    numbers = _numbers(python_shuffle.PythonWords(seed))
    count = n if count is None else min(count, n)
    initial = min(initial, size)
    buffer: list[int] = []
    order: list[int] = []
    read = 0
    while len(order) < count:
        if read < n:
            some = min(2 if len(buffer) + 1 < size else 1, n - read)
            buffer += range(read, read + some)
            read += some
            if len(buffer) < initial:
                continue
        bound = len(buffer)
        shift = 32 - bound.bit_length()
        at = next(numbers) >> shift
        while at >= bound:
            at = next(numbers) >> shift
        order.append(buffer[at])
        buffer[at] = buffer[-1]
        buffer.pop()
    return np.array(order, np.int64)


def _numbers(words: python_shuffle.PythonWords) -> Iterator[int]:
    while True:
        yield from words.take(_WORDS).tolist()


class WebDataset(Sampler):
    """`WebDataset(urls, shardshuffle, detshuffle, seed, nodesplitter=split_by_node)`. Ranks have the shards r, r + R,
    ..., and their workers w, w + W, ... of those. Each worker shuffles its own.

    Options: `method`: "shuffle" (the same in every epoch) or "detshuffle" (seed + epoch, where workers live on).
    `shardshuffle`: the size of the buffer; `initial` of the buffer; `workers`.
    """

    name = "webdataset"
    summary = "webdataset.WebDataset(shardshuffle, detshuffle, seed): .tar files"
    dealt = Dealt.OWN
    files = ("shards",)
    may_repeat = may_restart = True  # workers made anew count from 0 again
    options: Mapping[str, Option] = {
        "method": Option("shuffle or detshuffle", str, "shuffle", choices=("shuffle", "detshuffle")),
        "shardshuffle": Option(_SIZE, default=_BUFFER, least=1),
        "initial": Option(_BEFORE, default=_INITIAL, least=1),
        "workers": Option("workers of each rank's loader", least=0, most=1 << 12),
    }

    def _own(self, spec: Spec, n: int, epoch: int, world: int, rank: int, count: int | None) -> NDArray[np.int64]:
        """The shards of one rank, its workers' interleaved."""
        shards = np.arange(n, dtype=np.int64)
        seed = spec.seed + (epoch if spec.get("method", "shuffle") == "detshuffle" else 0)
        workers = max(spec.number("workers"), 1)
        size = int(spec.get("shardshuffle", _BUFFER))
        initial = int(spec.get("initial", _INITIAL))
        parts = []
        for worker in range(workers):
            part = shards[rank::world][worker::workers]
            parts.append(part[picked(seed, len(part), size, initial, count)])
        merged = sharding.interleave(parts)
        own: NDArray[np.int64] = merged[merged != sharding.NOTHING][:count]
        return own

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The shards of a single rank. A head costs in proportion to `count`."""
        return self._own(spec, n, epoch, 1, 0, count)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded, so that some ranks may have one shard more."""
        sharding.check_ranks(world, ranks)
        return sharding.interleave([self._own(spec, n, epoch, world, rank, count) for rank in ranks])

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The buffer, the same in every epoch or not."""
        kinds = (0, "detshuffle")
        return tuple(spec.with_option("method", kind) for spec in super().variants(seed) for kind in kinds)

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other buffers; some workers."""
        buffered = self.variants(seed)
        sizes = tuple(spec.with_option("shardshuffle", size) for spec in buffered for size in (10, 1000))
        return sizes + tuple(spec.with_option("workers", workers) for spec in buffered for workers in (2, 4, 8, 16))

    def epochs(self, spec: Spec) -> int:
        """Some of seed + epoch."""
        return 4 if spec.get("method", "shuffle") == "detshuffle" else 1

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The epochs that usually follow; after the first epoch, in which all methods of shuffling are alike, also that
        of another."""
        other = 0 if spec.get("method", "shuffle") == "detshuffle" else "detshuffle"
        others = [(spec.with_option("method", other), 1)] if epoch == 0 else []
        return *super().following(spec, epoch), *others


class WebDatasetSplit(Sampler):
    """All shards are shuffled with one seed, then shared out (`split_by_node`, `split_by_worker`): rank r has the
    places r, r + R, ..., whatever its workers. `SimpleShardList(urls, seed)`, or a pipeline as open_clip's, which
    shuffles before it splits.

    Options: `method`: "list" (SimpleShardList: the same in every epoch), "shuffle" (the same in every epoch) or
    "detshuffle" (seed + epoch). `shardshuffle` and `initial` of the buffer of the latter two.
    """

    name = "webdataset_split"
    summary = "webdataset.SimpleShardList(urls, seed), or detshuffle before split_by_node (open_clip): .tar files"
    dealt = Dealt.STRIDED
    files = ("shards",)
    may_repeat = may_restart = True  # a stream that goes on, workers made anew
    options: Mapping[str, Option] = {
        "method": Option("list, shuffle or detshuffle", str, "list", choices=("list", "shuffle", "detshuffle")),
        "shardshuffle": Option(_SIZE, default=_SHUFFLE_BUFFER, least=1),
        "initial": Option(_BEFORE, default=_INITIAL, least=1),
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The shards before they are shared out. A head of a list costs the whole, of a buffer in proportion to
        `count`."""
        method = spec.get("method", "list")
        if method == "list":
            return python_shuffle.shuffled(python_shuffle.PythonWords(spec.seed), n)[:count]
        size = int(spec.get("shardshuffle", _SHUFFLE_BUFFER))
        seed = spec.seed + (epoch if method == "detshuffle" else 0)
        return picked(seed, n, size, int(spec.get("initial", _INITIAL)), count)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded, so that some ranks may have one shard more."""
        sharding.check_ranks(world, ranks)
        full = self.shared(spec, n, epoch, None if count is None else count * world)
        return sharding.interleave([full[rank::world][:count] for rank in ranks])

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The list; open_clip's buffer."""
        specs = super().variants(seed)
        det = tuple(spec.with_option("method", "detshuffle") for spec in specs)
        return *specs, *(replace(spec, options=tuple(sorted((*_CLIP, *spec.options)))) for spec in det)

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other buffers, also the same in every epoch. They begin much as those of `webdataset` do."""
        kinds = (("detshuffle", 0), ("shuffle", 0), ("shuffle", 100), ("detshuffle", 100))
        return tuple(
            spec.with_option("method", method).with_option("shardshuffle", size)
            for spec in super().variants(seed)
            for method, size in kinds
        )

    def epochs(self, spec: Spec) -> int:
        """The number of values of seed + epoch that jobs usually run; 1 where all epochs are the same."""
        return 16 if spec.get("method", "list") == "detshuffle" else 1


FAMILIES: tuple[Sampler, ...] = (WebDataset(), WebDatasetSplit())
