"""MosaicML Streaming's order of shards, bit for bit: `base/shuffle/*.py` and `base/partition/orig.py` of
mosaicml-streaming 0.13. Does not import streaming. A sample is a shard here: a file that a node copies (`remote` is the
mount) when the first of its samples is near.

The shards are shuffled once by the seed, and cut into runs of equally many samples, one for each canonical node. Each
run is shuffled by seed + epoch. The samples are then mixed within some range. A physical node reads several runs sample
by sample in turn, or shares one with others. Its ranks and workers copy each shard once between them.

How the samples are mixed depends on how many each shard holds. Where that is not said all hold equally many, and shards
come in the order of their runs. The algorithms py1e and py1br mix samples of some 100,000 places, so that they differ
by the shards that lie in so many. Resuming with another number of nodes (`relaxed`), weighted streams and `epoch_size`
are not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# StreamingDataset(shuffle_seed=9176)
SEED = 9176
# Canonical nodes for each physical one, by default (dataset.py: _resume).
_CANONICAL = {"py1s": 64, "py2s": 64}
# Algorithms that need the numbers of samples even for the order of the runs.
_NEED_SIZES = ("py2s", "naive")
# Samples that are mixed one by one at most: 2 GiB and ten seconds. Beyond, shards come in the order of their runs.
_MOST_SAMPLES = 1 << 26
_SIZES = re.compile(r"(\d+)(?:\*(\d+))?")

Ints = NDArray[np.int64]


def parse_sizes(text: str) -> Ints:
    """The number of samples in each shard, int64[n], from "4096*31,1000": 31 shards of 4,096 samples, one of 1,000.
    Raises ValueError."""
    found = []
    for part in text.split(","):
        match = _SIZES.fullmatch(part.strip())
        if not match or not int(match[1]):
            raise ValueError(f"sizes: {part!r} is neither SAMPLES nor SAMPLES*SHARDS")
        found.append(np.full(int(match[2] or 1), int(match[1]), np.int64))
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class _Runs:
    """The pieces of shards in the order of one epoch: `shard` and `size` int64[m]. Those of canonical node c are
    `bounds[c]` to before `bounds[c + 1]`; `bounds` int64[canonical + 1]."""

    shard: Ints
    size: Ints
    bounds: Ints

    def of(self, node: int) -> slice:
        return slice(int(self.bounds[node]), int(self.bounds[node + 1]))


def _cut(sizes: Ints, seed: int, canonical: int) -> _Runs:
    """The pieces before the shuffle of the epoch (`divide_spans`). Raises ValueError: a canonical node without any."""
    total = int(sizes.sum())
    if total < canonical:
        raise ValueError(f"canonical: {total} samples are too few for {canonical} nodes")
    order = np.random.default_rng(seed).permutation(len(sizes))
    ends = np.cumsum(sizes[order])
    parts = np.arange(canonical + 1) * total // canonical
    cuts = np.union1d(ends, parts)
    return _Runs(order[np.searchsorted(ends, cuts[:-1], side="right")], np.diff(cuts), np.searchsorted(cuts, parts))


def _shuffled(runs: _Runs, rng: np.random.Generator, *, samples_too: bool) -> _Runs:
    """With the pieces of each canonical node shuffled; `samples_too`: then the samples of each piece."""
    order = np.arange(len(runs.shard))
    for node in range(len(runs.bounds) - 1):
        here = order[runs.of(node)]
        here[:] = here[rng.permutation(len(here))]
        if samples_too:
            _skip(rng, runs.size[here])
    return _Runs(runs.shard[order], runs.size[order], runs.bounds)


def _skip(rng: np.random.Generator, sizes: Ints) -> None:
    """Draws what it takes to shuffle the samples of each piece. Which of a shard's samples comes first is all one."""
    for size in sizes.tolist():
        rng.shuffle(np.empty(size, np.int64))


def _mixed_py1br(runs: _Runs, rng: np.random.Generator, block: int) -> Ints:
    """The shard of each sample, in blocks that are shuffled; int64[samples]."""
    shards = np.repeat(runs.shard, runs.size)
    ends = np.concatenate([[0], np.cumsum(runs.size)])[runs.bounds].tolist()
    low, high = int(0.75 * block), int(1.25 * block)
    staggers = rng.integers(0, low, (len(ends) - 1,)).tolist()
    for stagger, start, end in zip(staggers, ends, ends[1:], strict=False):
        blocks = []
        at = start
        while at < end:
            size = int(rng.integers(low, high))
            first, last = max(at - stagger, start), min(at + size - stagger, end)
            blocks.append((first, last))
            at += last - first
        for first, last in blocks:
            rng.shuffle(shards[first:last])
    return shards


def _mixed_py1e(runs: _Runs, rng: np.random.Generator, block: int) -> Ints:
    """The shard of each sample, each sample moved by a random number of places; int64[samples]."""
    low, high = int(0.75 * block), int(1.25 * block)
    mixed = []
    for node in range(len(runs.bounds) - 1):
        sizes = runs.size[runs.of(node)]
        total = int(sizes.sum())
        _skip(rng, sizes)
        places = np.arange(total, dtype=np.float64)
        start = 0
        for size in sizes.tolist():
            most = max((int(rng.integers(low, high)) - size) / 2, 0)
            here = slice(start, start + size)
            places[here] += rng.uniform(max(-most, -start), min(most, total - start - size), size)
            start += size
        mixed.append(np.repeat(runs.shard[runs.of(node)], sizes)[np.argsort(places)])
    return np.concatenate(mixed)


_MIXED: Mapping[str, Callable[[_Runs, np.random.Generator, int], Ints]] = {"py1br": _mixed_py1br, "py1e": _mixed_py1e}


def _by_run(runs: _Runs, nodes: Sequence[int]) -> Ints:
    """The pieces in the order in which one that reads the canonical `nodes` sample by sample in turn comes to them."""
    starts = [np.cumsum(runs.size[runs.of(node)]) - runs.size[runs.of(node)] for node in nodes]
    turn = np.repeat(np.arange(len(nodes)), [len(start) for start in starts])
    shards = np.concatenate([runs.shard[runs.of(node)] for node in nodes])
    return shards[np.lexsort((turn, np.concatenate(starts)))]


def _by_sample(mixed: Ints, canonical: int, nodes: Sequence[int], every: int, first: int) -> Ints:
    """The shard of each sample that is read in turn from the canonical `nodes`, of each the places `first`, `first` +
    `every`, ..."""
    parts = np.arange(canonical + 1) * len(mixed) // canonical
    lanes = [mixed[parts[node] : parts[node + 1]] for node in nodes]
    merged = sharding.interleave([lane[first::every] for lane in lanes])
    read: Ints = merged[merged != sharding.NOTHING]
    return read


def _first_seen(shards: Ints, n: int) -> Ints:
    """Each of the shards once, where it comes first."""
    place = np.full(n, len(shards), np.int64)
    place[shards[::-1]] = np.arange(len(shards) - 1, -1, -1)
    seen: Ints = np.argsort(place, kind="stable")[: np.count_nonzero(place < len(shards))]
    return seen


def _epoch(spec: Spec, n: int, epoch: int, algo: str, canonical: int) -> tuple[_Runs, Ints | None]:
    """The pieces in the order of an epoch, and the shard of each sample. The latter is None where `algo` does not
    mix the samples of several shards, and where there are more samples than `_MOST_SAMPLES` or an unknown number."""
    text = str(spec.get("sizes", ""))
    if not text and algo in _NEED_SIZES:
        raise ValueError(f"sizes: {algo} needs them")
    sizes = parse_sizes(text) if text else np.full(n, canonical, np.int64)
    if len(sizes) != n:
        raise ValueError(f"sizes: of {len(sizes)} shards, but there are {n}")
    rng = np.random.default_rng(spec.seed + epoch)
    total = int(sizes.sum())
    if algo == "naive":
        if total > _MOST_SAMPLES:
            raise ValueError(f"sizes: naive of more than {_MOST_SAMPLES} samples")
        runs = _Runs(np.arange(n), sizes, np.array([0, n]))
        return runs, np.repeat(runs.shard, sizes)[rng.permutation(total)]
    runs = _shuffled(_cut(sizes, spec.seed, canonical), rng, samples_too=algo == "py2s")
    if not text or algo not in _MIXED or total > _MOST_SAMPLES:
        return runs, None
    return runs, _MIXED[algo](runs, rng, spec.number("block") or max(4_000_000 // canonical, 1 << 18))


class Mosaic(Sampler):
    """`StreamingDataset(shuffle=True, shuffle_algo, shuffle_seed, num_canonical_nodes, shuffle_block_size)`, the shards
    that a node copies. Rank r of the R ranks of a node has the places r, r + R, ... of its node's order. Chance decides
    which of these ranks copies a shard.

    Options: `algo`; `canonical`: num_canonical_nodes (0: its default); `block`: shuffle_block_size (0: its default);
    `ranks_per_node`; `sizes`: how many samples each shard holds, as index.json says ("4096*31,1000").
    """

    name = "mosaic"
    costly = True
    summary = "streaming.StreamingDataset(shuffle=True) of MosaicML: shards as a node copies them"
    dealt = Dealt.OWN
    files = ("shards",)
    seeds = (0, 2**64 - 1)
    tried = 16  # shards are few: any epoch is cheap
    may_restart = True
    options: Mapping[str, Option] = {
        "algo": Option("shuffle_algo", str, "py1e", choices=("py1e", "py1br", "py1s", "py2s", "naive")),
        "canonical": Option("num_canonical_nodes; 0: its default", least=0, most=1 << 20),
        "block": Option("shuffle_block_size; 0: its default", least=0),
        "ranks_per_node": Option("ranks of each node", default=1, least=1, most=1 << 10),
        "sizes": Option('how many samples each shard holds: "4096*31,1000"', str, ""),
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The shards of a single rank. A head costs as much as the whole."""
        return self._of_nodes(spec, n, epoch, 1, (0,))[0][:count]

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded. Raises ValueError too: ranks that do not fill
        their nodes, nodes that do not fit the canonical ones. `sizes` of another number of shards raise it as well, and
        so do missing `sizes` where the algorithm needs them."""
        sharding.check_ranks(world, ranks)
        each = min(int(spec.get("ranks_per_node", 1)), world)
        if world % each:
            raise ValueError(f"ranks_per_node: {each} does not divide a world of {world}")
        nodes = tuple(dict.fromkeys(rank // each for rank in ranks))
        found = dict(zip(nodes, self._of_nodes(spec, n, epoch, world // each, nodes), strict=True))
        return sharding.interleave([found[rank // each][rank % each :: each][:count] for rank in ranks])

    def _of_nodes(self, spec: Spec, n: int, epoch: int, world: int, nodes: Sequence[int]) -> list[Ints]:
        """The shards that each of some of `world` nodes copies, in order."""
        algo = str(spec.get("algo", "py1e"))
        canonical = spec.number("canonical") or _CANONICAL.get(algo, 1) * world
        if canonical % world and world % canonical:
            raise ValueError(f"canonical: {canonical} nodes and {world} do not divide one another")
        if not n:
            return [np.zeros(0, np.int64) for _ in nodes]
        runs, mixed = _epoch(spec, n, epoch, algo, canonical)
        found = []
        for node in nodes:
            reads = range(node, canonical, world) if canonical >= world else (node % canonical,)
            if mixed is None:
                found.append(_first_seen(_by_run(runs, reads), n))
            else:
                every = max(world // canonical, 1)
                found.append(_first_seen(_by_sample(mixed, canonical, reads, every, node // canonical), n))
        return found

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """py1e, which without sizes is py1br too, and py1s; with the default seed too, which most scripts leave."""
        seeds = dict.fromkeys((seed, SEED))
        return tuple(Spec(self.name, each).with_option("algo", algo) for each in seeds for algo in (0, "py1s"))

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """Several ranks of a node; as many runs as two nodes have with py1s by default."""
        usual = self.variants(seed)
        several = tuple(spec.with_option("ranks_per_node", each) for spec in usual for each in (2, 4, 8))
        return *several, *(spec.with_option("canonical", 128) for spec in usual[::2])


FAMILIES: tuple[Sampler, ...] = (Mosaic(),)
