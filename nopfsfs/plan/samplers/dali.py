"""DALI's file reader: `dali/operators/reader/loader/file_label_loader.h` and `loader.h` of nvidia-dali 2.4, whose
shuffling is that of libstdc++ 11 and later (`bits/stl_algo.h`: shuffle; `bits/uniform_int_dist.h`). Does not import
DALI.

The order here is that in which files are opened. With `random_shuffle` samples leave the reader in another order, drawn
from a buffer of `initial_fill` samples that were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates
from nopfsfs.plan.generators.mersenne64 import Mersenne64, high
from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# kDaliDataloaderSeed of loader.h: what the user gives as seed does not come into it.
_SEED = 524287
# From here on the product of two numbers of places no longer fits a word: libstdc++ draws one place a word.
_SINGLE = 1 << 16
# libstdc++ rejects about one word in 2**33 / places; so many words are looked at at a time that few are rejected.
_CHUNK = 1 << 14
_CHUNK64 = 1 << 17


def std_shuffle(seed: int, n: int) -> NDArray[np.int64]:
    """`std::shuffle` of 0..n-1 with `std::mt19937(seed)`, int64[n]. Raises ValueError when n is negative or not below
    `fisher_yates.MAX_N`."""
    fisher_yates.check(n)
    state = np.random.RandomState(seed)
    return _shuffled(_pairs(state, n) if n < _SINGLE else _singles(state, n))


def std_shuffle64(seed: int, n: int) -> NDArray[np.int64]:
    """A std::shuffle with `std::mt19937_64(seed)`."""
    fisher_yates.check(n)
    return _shuffled(_pairs64(Mersenne64(seed), n))


def _shuffled(drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Step i = 1 .. n-1 swaps place i with the place drawn[i] <= i. The same swaps in the opposite order give the
    inverse of the outcome, and those are of the kind that `swaps` computes."""
    drawn[:] = drawn[::-1].copy()
    inverse = fisher_yates.backward(drawn, len(drawn))[::-1]
    order = np.empty(len(drawn), np.int64)
    order[inverse] = np.arange(len(drawn), dtype=np.int64)
    return order


def _pairs(state: np.random.RandomState, n: int) -> NDArray[np.int64]:
    """The place that step i swaps with, for i = 0 .. n-1, two steps a word; int64[n]. Nearly half the words may be
    rejected, so one after the other."""
    drawn = [0]
    words = iter(_words(state, n + 8).tolist())

    def below(bound: int) -> int:
        nonlocal words
        while True:
            word = next(words, None)
            if word is None:
                words = iter(_words(state, n + 8).tolist())
                continue
            product = word * bound
            if product & 0xFFFFFFFF >= 0x100000000 % bound:
                return int(product >> 32)

    if n % 2 == 0 and n:
        drawn.append(below(2))
    for places in range(len(drawn) + 1, n, 2):
        drawn += divmod(below(places * (places + 1)), places + 1)
    return np.array(drawn[:n], np.int64)


def _singles(state: np.random.RandomState, n: int) -> NDArray[np.int64]:
    """The targets of a shuffle with one step a word; int64[n]."""
    drawn = np.zeros(n, np.int64)
    chunk = min(_CHUNK, max((1 << 33) // n, 64))
    words = _words(state, 0)
    step = 1
    while step < n:
        if not len(words):
            words = _words(state, 1 << 20)
        some = words[: min(chunk, n - step)]
        places = np.arange(step + 1, step + 1 + len(some), dtype=np.uint64)
        product = some * places
        low = product & np.uint64(0xFFFFFFFF)
        doubtful = np.flatnonzero(low < places)
        rejected = doubtful[low[doubtful] < np.uint64(1 << 32) % places[doubtful]]
        good = int(rejected[0]) if len(rejected) else len(some)
        drawn[step : step + good] = product[:good] >> np.uint64(32)
        step += good
        words = words[good + (1 if len(rejected) else 0) :]
    return drawn


def _pairs64(state: Mersenne64, n: int) -> NDArray[np.int64]:
    """The targets of a shuffle with two steps a word of 64 bits; int64[n]."""
    drawn = np.zeros(n, np.int64)
    step = 1
    if n % 2 == 0 and n:
        drawn[1] = int(state.words(1)[0]) >> 63
        step = 2
    words = state.words(0)
    while step < n:
        if not len(words):
            words = state.words(min(_CHUNK64, (n - step) // 2))
        places = np.arange(step + 1, n, 2, dtype=np.uint64)[: len(words)]
        bound = places * (places + np.uint64(1))
        some = words[: len(bound)]
        rejected = [i for i in np.flatnonzero(some * bound < bound).tolist() if _rejects(int(some[i]), int(bound[i]))]
        good = rejected[0] if rejected else len(some)
        first, second = np.divmod(high(some[:good], bound[:good]), places[:good] + np.uint64(1))
        drawn[step : step + 2 * good : 2] = first
        drawn[step + 1 : step + 1 + 2 * good : 2] = second
        step += 2 * good
        words = words[good + (1 if rejected else 0) :]
    return drawn


def _rejects(word: int, bound: int) -> bool:
    return word * bound % 2**64 < 2**64 % bound


def _words(state: np.random.RandomState, count: int) -> NDArray[np.uint64]:
    """The next `count` 32-bit words, uint64[count]."""
    return state.randint(0, 1 << 32, size=count, dtype=np.uint32).astype(np.uint64)


class Dali(Sampler):
    """`fn.readers.file(random_shuffle=True, shard_id=rank, num_shards=world)`: one list, shuffled once, the same
    whatever the seed. Shards are contiguous parts of the list. A reader that came to the end of its shard goes on in
    the next.

    Options: `sequential`. `shuffle_after_epoch`: the list, at first in order, is shuffled before every epoch, and a
    reader keeps its shard. `shuffle_after_epoch_seed` (not 0). `checkpointing`: enable_checkpointing=True, by which
    every shuffle begins with the list as it was. `stick_to_shard`. DALI 1 shuffled after epochs in another way.
    """

    name = "dali"
    costly = True
    summary = "nvidia.dali.fn.readers.file with random_shuffle (in the order in which it opens files)"
    dealt = Dealt.OWN
    files = ("dali_files", "image_folder", "sorted_files")
    seeds = None
    options: Mapping[str, Option] = {
        "sequential": Option("random_shuffle=False", bool),
        "shuffle_after_epoch": Option("shuffle_after_epoch=True", bool),
        "shuffle_after_epoch_seed": Option("shuffle_after_epoch_seed", default=_SEED, least=1),
        "checkpointing": Option("enable_checkpointing=True, together with shuffle_after_epoch", bool),
        "stick_to_shard": Option("stick_to_shard=True", bool),
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The list of which shards are parts. A head costs as much as the whole."""
        if spec.number("shuffle_after_epoch"):
            if spec.number("sequential") or spec.number("stick_to_shard"):
                raise ValueError("shuffle_after_epoch: DALI takes neither sequential nor stick_to_shard with it")
            seed = int(spec.get("shuffle_after_epoch_seed", _SEED))
            # DALI counts epochs from 1
            order = std_shuffle64(seed + ((epoch + 1) << 32), n)
            if not spec.number("checkpointing"):
                for before in range(epoch, 0, -1):
                    order = std_shuffle64(seed + (before << 32), n)[order]
        elif spec.number("sequential"):
            return np.arange(n if count is None else min(n, count), dtype=np.int64)
        else:
            order = std_shuffle(_SEED, n)
        return order if count is None or count >= n else order[:count].copy()

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded, so that some shards may have one sample more."""
        sharding.check_ranks(world, ranks)
        stays = spec.number("stick_to_shard") or spec.number("shuffle_after_epoch")
        full = self.shared(spec, n, epoch)
        parts = []
        for rank in ranks:
            shard = rank if stays else (rank + epoch) % world
            parts.append(full[n * shard // world : n * (shard + 1) // world][:count])
        return sharding.interleave(parts)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Shuffled; shuffled after each epoch; in order, which is another order than `sequential` for shards only."""
        usual = Spec(self.name)
        return usual, usual.with_option("shuffle_after_epoch", 1), usual.with_option("sequential", 1)

    def epochs(self, spec: Spec) -> int:
        """A few of those that are shuffled again, else as many as differ for shards of one machine's ranks."""
        return 4 if spec.number("shuffle_after_epoch") else 1


FAMILIES: tuple[Sampler, ...] = (Dali(),)
