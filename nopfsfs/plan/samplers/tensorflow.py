"""tf.data's shuffle and what is made with it, bit for bit: TensorFlow 2.12 to 2.21
(`core/kernels/data/shuffle_dataset_op.cc`, `python/data/util/random_seed.py`).

A shuffle that is reshuffled owns a generator. Every iterator made of it takes a pair of words as its own seeds: the
iterator, not the epoch, counts. So an epoch has a pair, and which one depends on what makes iterators.

The tests compare with the real data sets. Does not import TensorFlow.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates, philox
from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import STRIDED, STRIDED_OPTION, Dealt, Option, Sampler, Spec, Value

# set_seed and shuffle take any whole number; these are what other frameworks take too.
SEEDS = (-(2**63), 2**64 - 1)

# `python/framework/random_seed.py`: the global seed of a program that set none; what seeds are taken modulo.
DEFAULT_GRAPH_SEED = 87654321
MAXINT32 = 2**31 - 1
# Samples that a shuffle takes: the swaps are computed in 32 bits.
MAX_N = 2**31 - 1
# Pairs of seeds that an epoch may be ahead of the one before.
_STEPS = range(1, 9)

SEEDED: Mapping[str, Option] = {
    "seeded": Option(
        "who has the seed: the shuffle; set_seed, and the shuffle none; both",
        str,
        "op",
        choices=("op", "global", "both"),
    ),
    "global_seed": Option("tf.random.set_seed, with seeded = both", least=SEEDS[0], most=SEEDS[1]),
    "op_index": Option("random operations without a seed since set_seed, with seeded = global", least=0, most=10**6),
}
PAIRED: Mapping[str, Option] = {
    "pair": Option("the pair of seeds that epoch 0 takes"),
    "step": Option("pairs from one epoch to the next; 2 in model.fit of Keras 3", default=1, least=1),
}


def op_seeds(spec: Spec, later: int = 0) -> tuple[int, int]:
    """The (seed, seed2) of a random operation made eagerly: `random_seed.get_seed`. `later`: of the operation that
    comes so many after the one of `op_index`. Options: those of `SEEDED`."""
    seeded = spec.get("seeded", "op")
    if seeded == "op":
        return avoid_zeros(DEFAULT_GRAPH_SEED, spec.seed)
    if seeded == "both":
        return avoid_zeros(spec.number("global_seed"), spec.seed)
    stream = random.Random(spec.seed)
    drawn = [stream.randint(0, MAXINT32) for _ in range(spec.number("op_index") + later + 1)]
    return avoid_zeros(spec.seed, drawn[-1])


def avoid_zeros(seed: int, seed2: int) -> tuple[int, int]:
    """Both seeds as the kernels get them: truncated, and never both 0."""
    pair = seed % MAXINT32, seed2 % MAXINT32
    return (0, MAXINT32) if pair == (0, 0) else pair


def iterator_seeds(seeds: tuple[int, int], pair: int) -> tuple[int, int]:
    """The seeds of the iterator that is the `pair`-th made of a shuffle with these seeds. Raises ValueError when
    negative."""
    if pair < 0:
        raise ValueError(f"pair: an epoch before the first pair of seeds, {pair}")
    first, second = philox.words(*seeds, 2 * pair, 2).tolist()
    return first, second


def shuffled(seeds: tuple[int, int], n: int, buffer: int = 0, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` (default: all) elements that an iterator with these seeds gives of n in order through
    `shuffle(buffer)`, int64[min(count, n)]; buffer 0: n. Time in proportion to `count`.

    The buffer is a window on the input. Of the places i .. i+buffer-1, emission i takes the one that a word says. The
    element that stood at i goes to the place taken. Raises ValueError: n negative or above `MAX_N`, buffer negative.
    """
    if not 0 <= n <= MAX_N or buffer < 0:
        raise ValueError(f"shuffle({buffer}) of {n}: neither may be negative, and n at most {MAX_N}")
    target = np.arange(n if count is None else min(count, n), dtype=np.int64)
    window = np.minimum(buffer or n, n - target)
    np.remainder(philox.words(*seeds, 0, len(target)), window, out=window)
    target += window
    del window
    return fisher_yates.forward(target)


class Shuffled(Sampler):
    """The part that all shuffles share: which pair of seeds an epoch takes."""

    seeds: tuple[int, int] = SEEDS

    def _specs(self, seed: int, configurations: Sequence[Mapping[str, Value]]) -> tuple[Spec, ...]:
        """A spec for each; none when the framework would not take the seed."""
        if not self.seeds[0] <= seed <= self.seeds[1]:
            return ()
        return tuple(self._make(seed, **options) for options in configurations)

    def _make(self, seed: int, **options: Value) -> Spec:
        """A spec without the options that have their default."""
        known = {STRIDED: STRIDED_OPTION, **self.options}
        changed = ((name, value) for name, value in options.items() if value != known[name].default)
        return Spec(self.name, seed, tuple(sorted(changed)))

    def _with(self, spec: Spec, **options: Value) -> Spec:
        return self._make(spec.seed, **{**dict(spec.options), **options})

    def _pair(self, spec: Spec, epoch: int) -> int:
        return spec.number("pair") + int(spec.get("step", 1)) * epoch

    def _repeats(self, spec: Spec) -> bool:
        """True: every epoch has the same order."""
        return bool(spec.number("fixed"))

    def epochs(self, spec: Spec) -> int:
        """Few: a program that starts again begins at the first pair again."""
        return 1 if self._repeats(spec) else 8

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The pair that is as far on as this one was from the one before; the next few pairs; the first again."""
        if self._repeats(spec):
            return ((spec, epoch + 1),)
        here = self._pair(spec, epoch)
        steps = dict.fromkeys((int(spec.get("step", 1)), *_STEPS))
        later = ((self._with(spec, pair=here - step * epoch, step=step), epoch + 1) for step in steps)
        return (*later, (self._with(spec, pair=0), 0))


class Shuffle(Shuffled):
    """`from_tensor_slices(files).shuffle(buffer, seed, reshuffle_each_iteration)`, or `list_files(shuffle=False)`.

    Options: `buffer` (0: all files); `seeded`, `global_seed`, `op_index`: whose seed it is; `fixed` (1:
    reshuffle_each_iteration=False). `pair`, `step`: epoch e takes the pair of seeds pair + step * e. `skip`, `take`:
    what is left of the shuffled files by `.skip(skip).take(take)` (take 0: all).
    """

    name = "tf_shuffle"
    summary = "tf.data: Dataset.shuffle of the files"
    options: Mapping[str, Option] = {
        "buffer": Option("buffer_size; 0: as many as there are files", least=0),
        "fixed": Option("reshuffle_each_iteration=False", bool),
        "skip": Option("files left out at the beginning of the shuffled order", least=0),
        "take": Option("files taken of the rest; 0: all", least=0),
        **SEEDED,
        **PAIRED,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of this epoch, whatever the epochs before. A head costs in proportion to count and `skip`."""
        skip, take = spec.number("skip"), spec.number("take") or n
        count = take if count is None else min(count, take)
        seeds = op_seeds(spec)
        if not spec.number("fixed"):
            seeds = iterator_seeds(seeds, self._pair(spec, epoch))
        return shuffled(seeds, n, spec.number("buffer"), skip + count)[skip:]

    def dealt_out(self, spec: Spec, batch: int) -> Spec | None:
        """In strides: as `shard` after the shuffle."""
        return Spec("tf_shuffle_shard", spec.seed, spec.options) if batch == 1 else None

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """A buffer for all files with the shuffle's seed, set_seed's, the same for both, never reshuffled; then the
        buffer of the tutorials."""
        usual: tuple[dict[str, Value], ...] = (
            {},
            {"seeded": "global"},
            {"seeded": "both", "global_seed": seed},
            {"fixed": 1},
            {"buffer": 1000},
            {"buffer": 1000, "seeded": "global"},
        )
        return self._specs(seed, usual)

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other buffers, then other random operations first."""
        whose: tuple[dict[str, Value], ...] = ({}, {"seeded": "global"}, {"seeded": "both", "global_seed": seed})
        buffers = (10_000, 1024, 2048, 100, 5000, 500, 4096, 512, 256)
        sized = [{"buffer": buffer, **options} for buffer in buffers for options in whose]
        more: list[dict[str, Value]] = [
            {"seeded": "global", "op_index": 1},
            {"seeded": "global", "fixed": 1},
            {"seeded": "both", "global_seed": seed, "fixed": 1},
            {"seeded": "global", "op_index": 2},
            {"buffer": 1000, "fixed": 1},
            {"buffer": 1000, "seeded": "both", "global_seed": seed},
            {"buffer": 1000, "seeded": "global", "op_index": 1},
        ]
        return self._specs(seed, (*more, *sized))


class ShuffleThenShard(Shuffle):
    """`.shuffle(buffer, seed).shard(world, rank)`: every rank shuffles all files and keeps each world-th. Options:
    those of `Shuffle`."""

    name = "tf_shuffle_shard"
    alone = False
    summary = "tf.data: Dataset.shuffle of all files, then Dataset.shard"
    dealt = Dealt.STRIDED

    def dealt_out(self, spec: Spec, batch: int) -> Spec | None:
        """In strides."""
        return spec if batch == 1 else None

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """None: `tf_shuffle` has these orders; that they are dealt out shows in the opens."""
        return ()

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """None, as `variants`."""
        return ()

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """Neither padded nor cut: the last ranks may have one sample less."""
        sharding.check_ranks(world, ranks)
        full = self.shared(spec, n, epoch, None if count is None else count * world)
        if list(ranks) == list(range(world)) and len(full) % world == 0:
            return full
        return sharding.interleave([full[rank::world] for rank in ranks])


class ShardThenShuffle(Shuffle):
    """`.shard(world, rank).shuffle(buffer, seed)`: every rank keeps each world-th file and shuffles those. Options:
    those of `Shuffle`; buffer 0 is all files of the rank."""

    name = "tf_shard_shuffle"
    alone = False
    summary = "tf.data: Dataset.shard, then Dataset.shuffle of the rank's files"
    dealt = Dealt.OWN

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The ranks of equally many files have the same order of them."""
        sharding.check_ranks(world, ranks)
        orders = {files: self.shared(spec, files, epoch, count) for files in {len(range(r, n, world)) for r in ranks}}
        return sharding.interleave([orders[len(range(rank, n, world))] * world + rank for rank in ranks])


class ListFiles(Shuffled):
    """`Dataset.list_files(pattern, shuffle=True, seed)`, and a `.shuffle(buffer, seed)` after it.

    Options: `twice` (1: such a shuffle follows) with its `buffer` (0: all files) and `fixed` (1:
    reshuffle_each_iteration=False). `seeded`, `global_seed`, `op_index` as for `Shuffle`. The two shuffles have the
    same seed, or without one follow each other after set_seed. `pair`, `step`: of the last shuffle. The first makes its
    iterator when it is read, so that its pair is the number of the epoch.
    """

    name = "tf_list_files"
    summary = "tf.data: Dataset.list_files, shuffled, once or with Dataset.shuffle after it"
    files = ("sorted_files", "image_folder")
    options: Mapping[str, Option] = {
        "twice": Option("Dataset.shuffle follows", bool),
        "buffer": Option("its buffer_size; 0: as many as there are files", least=0),
        "fixed": Option("its reshuffle_each_iteration=False", bool),
        **SEEDED,
        **PAIRED,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of this epoch. A head costs in proportion to count, and to the buffer of the second shuffle."""
        if not spec.number("twice"):
            return shuffled(iterator_seeds(op_seeds(spec), self._pair(spec, epoch)), n, count=count)
        seeds = op_seeds(spec, later=1)
        if not spec.number("fixed"):
            seeds = iterator_seeds(seeds, self._pair(spec, epoch))
        buffer = spec.number("buffer") or n
        taken = shuffled(seeds, n, buffer, count)
        listed = shuffled(iterator_seeds(op_seeds(spec), epoch), n, count=min(len(taken) + buffer, n))
        return listed[taken]

    def _repeats(self, spec: Spec) -> bool:
        """Never: the listing is shuffled anew for every epoch."""
        return False

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """list_files alone; then with a shuffle of 1000 after it. In TensorFlow 2 it lists in another order in each
        epoch."""
        usual: tuple[dict[str, Value], ...] = (
            {},
            {"seeded": "global"},
            {"seeded": "both", "global_seed": seed},
            {"twice": 1, "buffer": 1000},
            {"twice": 1, "buffer": 1000, "seeded": "global"},
        )
        return self._specs(seed, usual)

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Other buffers after it."""
        whose: tuple[dict[str, Value], ...] = ({}, {"seeded": "global"}, {"seeded": "both", "global_seed": seed})
        buffers = (0, 10_000, 1024, 2048, 100, 5000, 500, 4096, 512, 256)
        sized = [{"twice": 1, "buffer": buffer, **options} for buffer in buffers for options in whose]
        more: list[dict[str, Value]] = [
            {"seeded": "global", "op_index": 1},
            {"twice": 1, "buffer": 1000, "seeded": "both", "global_seed": seed},
            {"twice": 1, "fixed": 1},
        ]
        return self._specs(seed, (*more, *sized))


FAMILIES: tuple[Sampler, ...] = (Shuffle(), ListFiles(), ShuffleThenShard(), ShardThenShuffle())
