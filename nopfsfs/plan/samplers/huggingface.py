"""Hugging Face datasets, bit for bit: `Dataset.shuffle(seed)` of datasets 5.2 (`arrow_dataset.py`), and the order in
which streams open their shards (`iterable_dataset.py`, `utils/sharding.py`; 5.2, 4.8, 4.4). Does not import datasets.

Images are decoded when a row is looked at. So a loader that goes through the data set opens files in this order. A
loader with a sampler of its own opens files in that sampler's order over this one.

Of a stream a sample is a shard here. The shards are shuffled once by the seed, and in each epoch but the first once
more by the epoch alone. Each rank has every R-th of the shards where R divides their number, else all (and leaves out
samples). Each worker has every W-th of its rank's. 5.0 interleaved before it shared out; that is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# What IterableDataset.shuffle takes for max_buffer_input_shards.
_INPUTS = 10
_SHARDED = ("shards", "hf_shards")
_STRATEGY = Option(
    "split_dataset_by_node(strategy): shards are shared out among ranks (shards), or all read by each (examples)",
    str,
    "auto",
    choices=("auto", "shards", "examples"),
)


class HfDatasets(Sampler):
    """`Dataset.shuffle(seed)`: `np.random.default_rng(seed).permutation(n)`, drawn once."""

    name = "hf_datasets"
    summary = "datasets.Dataset.shuffle(seed)"
    files = ("hf_imagefolder", "sorted_files", "image_folder")
    seeds = (0, 2**64 - 1)
    guessed = False  # `numpy` tries the same order, of which it knows that it may be repeated

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order, which is the same in every epoch. A head costs as much as the whole."""
        order: NDArray[np.int64] = np.random.default_rng(spec.seed).permutation(n)
        return order if count is None or count >= n else order[:count].copy()


def in_turn(own: NDArray[np.int64], inputs: int) -> NDArray[np.int64]:
    """The order in which one process opens its shards, int64[m]. `inputs` runs of them are read at a time, each run one
    shard after the other. Shards are taken to hold equally many samples."""
    runs = np.array_split(own, max(min(len(own), inputs), 1))
    merged = sharding.interleave(runs)
    opened: NDArray[np.int64] = merged[merged != sharding.NOTHING]
    return opened


def _is_shared_out(spec: Spec, n: int, world: int) -> bool:
    """True: each rank has shards of its own."""
    strategy = spec.get("strategy", "auto")
    return strategy == "shards" or (strategy == "auto" and n % world == 0)


class HfStream(Sampler):
    """A stream that reads one shard after the other: `IterableDataset.shuffle(seed)` of datasets 4 and before, or with
    `max_buffer_input_shards=1`. Workers read every W-th shard, so that the order does not depend on them.

    Options: `reseeded`: epochs as before 4.6, which shuffled the shards by a number drawn from the seed, less the
    epoch; `strategy`.
    """

    name = "hf_stream"
    costly = True
    summary = "datasets.IterableDataset.shuffle(seed), one shard at a time: before datasets 5"
    dealt = Dealt.STRIDED
    files = _SHARDED
    seeds = (0, 2**64 - 1)
    tried = 16  # shards are few: any epoch is cheap
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {
        "reseeded": Option("epochs as before datasets 4.6", bool),
        "strategy": _STRATEGY,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The shards of a single rank. A head costs as much as the whole."""
        generator = np.random.default_rng(spec.seed)
        if epoch and spec.number("reseeded"):
            drawn = int(generator.integers(0, 1 << 63)) - epoch
            order = np.random.default_rng(drawn % (1 << 63)).permutation(n)
        else:
            order = generator.permutation(n)
            if epoch:
                order = order[np.random.default_rng(epoch).permutation(n)]
        return order if count is None or count >= n else order[:count].copy()

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded. With `strategy` "auto" each rank reads all
        shards where R does not divide them."""
        sharding.check_ranks(world, ranks)
        order = self.shared(spec, n, epoch)
        if not _is_shared_out(spec, n, world):
            return sharding.everyone(order[:count], world, ranks)
        return sharding.interleave([order[rank::world][:count] for rank in ranks])

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Epochs as now; as before."""
        return tuple(spec.with_option("reseeded", old) for spec in super().variants(seed) for old in (0, 1))

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The epochs that usually follow, and after the first epoch that of the other versions."""
        others = ((spec.with_option("reseeded", 1 - spec.number("reseeded")), 1),) if epoch == 0 else ()
        return *super().following(spec, epoch), *others


class HfStreaming(Sampler):
    """`IterableDataset.shuffle(seed)` of datasets 5.1 and 5.2, which reads up to `max_buffer_input_shards` shards at a
    time in each worker. Each rank's order is its workers' interleaved.

    Options: `workers` of each rank's loader; `input_shards`: max_buffer_input_shards; `strategy`.
    """

    name = "hf_streaming"
    costly = True
    summary = "datasets.IterableDataset.shuffle(seed), split_dataset_by_node: shards, ten at a time"
    dealt = Dealt.OWN
    files = _SHARDED
    seeds = (0, 2**64 - 1)
    tried = 16  # as those of `hf_stream`
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {
        "workers": Option("workers of each rank's loader", least=0, most=1 << 12),
        "input_shards": Option("max_buffer_input_shards", default=_INPUTS, least=1),
        "strategy": _STRATEGY,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The shards of a single rank. A head costs as much as the whole."""
        return self._own(spec, STREAM.shared(Spec(STREAM.name, spec.seed), n, epoch))[:count]

    def _own(self, spec: Spec, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shards of one rank as its workers open them, all at the same speed."""
        workers = max(spec.number("workers"), 1)
        inputs = int(spec.get("input_shards", _INPUTS))
        merged = sharding.interleave([in_turn(own[worker::workers], inputs) for worker in range(workers)])
        opened: NDArray[np.int64] = merged[merged != sharding.NOTHING]
        return opened

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded. With `strategy` "auto" each rank reads all
        shards where R does not divide them."""
        sharding.check_ranks(world, ranks)
        order = STREAM.shared(Spec(STREAM.name, spec.seed), n, epoch)
        if not _is_shared_out(spec, n, world):
            return sharding.everyone(self._own(spec, order)[:count], world, ranks)
        return sharding.interleave([self._own(spec, order[rank::world])[:count] for rank in ranks])

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The usual numbers of workers."""
        return tuple(spec.with_option("workers", workers) for spec in super().variants(seed) for workers in (0, 4, 8))

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other numbers of workers; shards shared out where they do not divide evenly."""
        usual = super().variants(seed)
        return tuple(spec.with_option("workers", workers) for spec in usual for workers in (2, 3, 6, 12, 16)) + tuple(
            spec.with_option("strategy", "shards").with_option("workers", workers)
            for spec in usual
            for workers in (0, 4, 8)
        )


STREAM = HfStream()
FAMILIES: tuple[Sampler, ...] = (HfDatasets(), STREAM, HfStreaming())
