"""Programs that shuffle their list of files with Python's `random`, bit for bit: `Lib/random.py` and
`Modules/_randommodule.c` of CPython 3.6 to 3.13, which draw alike. Does not use the module `random`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import fisher_yates
from nopfsfs.plan.samplers import epoch_seeding
from nopfsfs.plan.samplers.sampler import Option, Sampler, Spec

# Words drawn at a time. Fewer than about 2**15: the overhead of a call counts; more: more words whose acceptance is
# not clear at first sight.
_CHUNK = 1 << 16


class PythonWords:
    """The 32-bit words of `random.Random(seed)`, seed an int; those drawn too many can be given back."""

    def __init__(self, seed: int) -> None:
        rest = abs(seed)
        digits: list[int] = []
        while rest or not digits:
            digits.append(rest & 0xFFFFFFFF)
            rest >>= 32
        # A list, not an array: numpy takes an array of one number for that number, which it seeds in another way.
        self._state = np.random.RandomState(digits)
        self._left: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def take(self, count: int) -> NDArray[np.uint32]:
        """At least `count` words, uint32[>= count]."""
        missing = max(count - len(self._left), 0)
        drawn = self._state.randint(0, 1 << 32, size=missing, dtype=np.uint32)
        words = np.concatenate([self._left, drawn]) if len(self._left) else drawn
        self._left = words[:0]
        return words

    def give_back(self, words: NDArray[np.uint32]) -> None:
        """The last of the words taken, which are to be drawn again."""
        self._left = words

    def randbelow(self, first: int, last: int) -> NDArray[np.int64]:
        """`randbelow(first)`, `randbelow(first - 1)`, ..., `randbelow(last)`, int64[first - last + 1]."""
        drawn = np.empty(max(first - last + 1, 0), np.int64)
        bound = first
        while bound >= last:
            lowest = max(last, 1 << (bound.bit_length() - 1))  # bounds as long as this one take as many bits
            self._segment(bound, drawn[first - bound : first - lowest + 1])
            bound = lowest - 1
        return drawn

    def _segment(self, bound: int, out: NDArray[np.int64]) -> None:
        """Fill `out` with numbers below bound, bound - 1, ..., all of one bit length.

        Python takes the upper bits of a word and rejects it when it is too large. How large that is depends on how
        many were accepted before: guess that all were, count, and count again until nothing changes. Every round
        makes at least one more word certain, from the first on; few words lie where a guess can be wrong.
        """
        bits, done = bound.bit_length(), 0
        while done < len(out):
            words = self.take(min(_CHUNK, 3 * (len(out) - done) // 2 + 8))
            value = (words >> np.uint32(32 - bits)).astype(np.int64)
            limit = value + (done - bound)  # accepted when this, plus those accepted before in this chunk, is negative
            accepted = limit < 0
            while True:
                before = np.cumsum(accepted) - accepted
                again = limit + before < 0
                if np.array_equal(again, accepted):
                    break
                accepted = again
            taken = np.flatnonzero(accepted)[: len(out) - done]
            out[done : done + len(taken)] = value[taken]
            done += len(taken)
            if done == len(out):
                self.give_back(words[taken[-1] + 1 :])


def shuffled(words: PythonWords, n: int) -> NDArray[np.int64]:
    """`random.shuffle(list(range(n)))`, int64[n]."""
    fisher_yates.check(n)
    drawn = np.zeros(n, np.int64)
    if n > 1:
        drawn[:-1] = words.randbelow(n, 2)
    return fisher_yates.backward(drawn, n)[::-1]


def sampled(words: PythonWords, n: int, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` (default: all) of `random.sample(range(n), n)`, int64[min(count, n)]. A head costs in
    proportion to `count` (the generator is then not where Python's would be)."""
    fisher_yates.check(n)
    count = n if count is None else min(count, n)
    return fisher_yates.backward(words.randbelow(n, n - count + 1), n)


class Python(Sampler):
    """`random.seed(seed)` or `random.Random(seed)`, then `shuffle(files)` or `sample(files, len(files))` each epoch and
    nothing else drawn in between. Options: `carry`; `method`: shuffle or sample."""

    name = "python"
    costly = True
    summary = "random.seed(seed) or random.Random(seed), then shuffle(files) or sample(files, len(files))"
    seeds = (-(2**63), 2**64 - 1)
    options: Mapping[str, Option] = {
        "carry": epoch_seeding.option(epoch_seeding.SHUFFLE),
        "method": Option(
            "random.shuffle(files) or random.sample(files, n)", str, "shuffle", choices=("shuffle", "sample")
        ),
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of this epoch. With `carry` "stream" the numbers of all epochs before are drawn, with "shuffle"
        those epochs are computed. A head of a sample is cheap in epoch 0 and without carrying; all else costs the
        whole."""
        kind = str(spec.get("carry", epoch_seeding.SHUFFLE))
        sample = spec.get("method", "shuffle") == "sample"
        words = PythonWords(spec.seed + epoch if kind == epoch_seeding.ADD else spec.seed)
        fisher_yates.check(n)
        order: NDArray[np.int64] | None = None
        if kind == epoch_seeding.SHUFFLE:
            for _ in range(epoch):
                step = sampled(words, n) if sample else shuffled(words, n)
                order = step if order is None else order[step]
        elif kind == epoch_seeding.STREAM:
            for _ in range(epoch):
                words.randbelow(n, 1 if sample else 2)
        last = sampled(words, n, count) if sample else shuffled(words, n)[:count]
        return np.ascontiguousarray(last if order is None else order[last])

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The list shuffled on, a new shuffled list each epoch, a new generator each epoch; a sample each epoch."""
        usual = super().variants(seed)
        kinds = (epoch_seeding.SHUFFLE, epoch_seeding.STREAM, epoch_seeding.ADD)
        shuffles = tuple(epoch_seeding.with_kind(spec, kind, epoch_seeding.SHUFFLE) for spec in usual for kind in kinds)
        return shuffles + tuple(
            spec.with_option("method", "sample").with_option("carry", epoch_seeding.STREAM) for spec in usual
        )

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Samples in the other ways."""
        samples = [spec.with_option("method", "sample") for spec in super().variants(seed)]
        return tuple(
            epoch_seeding.with_kind(spec, kind, epoch_seeding.SHUFFLE)
            for spec in samples
            for kind in (epoch_seeding.ADD, epoch_seeding.SHUFFLE)
        )

    def epochs(self, spec: Spec) -> int:
        """A few of one generator; more of seed + epoch, but not many: each costs a third of a second a million."""
        return min(epoch_seeding.epochs(str(spec.get("carry", epoch_seeding.SHUFFLE))), 8)

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch, also in the other ways to carry on after the first; the same again; the first."""
        return epoch_seeding.following(spec, epoch, epoch_seeding.SHUFFLE)


FAMILIES: tuple[Sampler, ...] = (Python(),)
