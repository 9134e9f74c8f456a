"""PyTorch's samplers, bit for bit: `distributed.py`, `sampler.py`, `dataloader.py` of torch 1.12 to 2.13.

The tests compare with the real classes. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec

# What manual_seed takes.
SEEDS = (-(2**63), 2**64 - 1)

# An int64 drawn by `random_()` takes two words: the loader's base seed, a sampler's seed.
SEED_WORDS = 2

STATE = Option("the generator's state instead of the seed: base64 of 624 words and the index of the next", str, "")
BASE_SEED = Option(
    "who else draws: the loader each epoch, once, or never", str, "epoch", choices=("epoch", "once", "never")
)
DROP_BATCH: Mapping[str, Option] = {
    "drop_batch": Option("DataLoader(drop_last=True): its batch size; 0: it reads all", least=0)
}
DRAWING: Mapping[str, Option] = {
    "replacement": Option("replacement=True", bool),
    "num_samples": Option("samples an epoch; 0: as many as there are", least=0),
}


def stream(spec: Spec, skip: int = 0) -> np.random.RandomState:
    """The generator that a spec describes, by `state` or by its seed, after `skip` words."""
    state = str(spec.get("state", ""))
    return torch_generator.generator_from_state(state, skip) if state else torch_generator.generator(spec.seed, skip)


def base_seed_words(spec: Spec, epoch: int) -> int:
    """Words that loaders drew from the sampler's generator as base seeds, up to this epoch's samples."""
    return SEED_WORDS * {"epoch": epoch + 1, "once": 1, "never": 0}[str(spec.get("base_seed", "epoch"))]


def num_samples(spec: Spec, n: int) -> int:
    """The number of samples that RandomSampler gives in an epoch."""
    return (spec.number("num_samples") or n) if n else 0


def whole_words(spec: Spec, n: int) -> int:
    """Words that RandomSampler draws in an epoch that it was exhausted in, with the trailing permutation."""
    total = num_samples(spec, n)
    if spec.number("replacement"):
        return total
    return (total // n + 1) * (n - 1) if n else 0


def draw(spec: Spec, state: np.random.RandomState, n: int, count: int | None = None) -> NDArray[np.int64]:
    """The first `count` samples that RandomSampler draws from its generator in one epoch, int64[m]."""
    total = num_samples(spec, n)
    count = total if count is None else min(count, total)
    if spec.number("replacement") and n:
        return torch_generator.randint(state, n, count)
    if count <= n:
        return torch_generator.randperm(state, n, count)
    parts = [torch_generator.randperm(state, n, min(n, count - begin)) for begin in range(0, count, n)]
    return np.concatenate(parts)


class Distributed(Sampler):
    """`DistributedSampler(shuffle, seed, drop_last)` after `set_epoch(epoch)`.

    Options: `sequential` (1: shuffle=False), `drop_last` (1), `drop_batch`. The generator is seeded with seed + epoch.
    """

    name = "distributed"
    summary = "torch.utils.data.DistributedSampler with set_epoch"
    dealt = Dealt.STRIDED
    files = ("image_folder", "sorted_files", "timm")
    seeds = SEEDS
    tried = 128  # any epoch costs the same, so all that jobs usually run
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {
        "sequential": Option("shuffle=False", bool),
        "drop_last": Option("drop_last=True", bool),
        **DROP_BATCH,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """randperm(n), or 0..n-1; neither padded nor cut."""
        if spec.number("sequential"):
            return np.arange(n if count is None else min(n, count), dtype=np.int64)
        return torch_generator.randperm(torch_generator.generator(spec.seed + epoch), n, count)

    def dealt_out(self, spec: Spec, batch: int) -> Spec | None:
        """In batches: as transformers' Trainer does."""
        if batch == 1:
            return spec
        return Spec("hf_trainer", spec.seed, spec.options).with_option("drop_last", 0).with_option("batch", batch)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Shuffled; with the default seed, which most scripts leave to it. drop_last is not tried: it changes at most
        the last place of a rank."""
        return tuple(Spec(self.name, each) for each in dict.fromkeys((seed, 0)))

    def epochs(self, spec: Spec) -> int:
        """The number `tried`; 1 in order, for then all epochs are the same."""
        return 1 if spec.number("sequential") else self.tried


class Random(Sampler):
    """`RandomSampler` on one generator, seeded once and carried over the epochs.

    Options: `base_seed`: who else draws from that generator. "epoch": the loader, at the start of every epoch
    (`DataLoader(shuffle=True, generator=g)`). "once": the loader, in the first epoch only (persistent workers).
    "never": the sampler alone has it. `left_early`: how many of the epochs before were left before the sampler was
    exhausted. Those epochs have not drawn the trailing permutation that the sampler draws (and mostly throws away) at
    its end. `replacement`, `num_samples` (0: n): as RandomSampler has them. `state`: the generator's state before epoch
    0 (`torch_generator.torch_state`), instead of the seed. `drop_batch`: of a loader with drop_last; what it drops was
    drawn.
    """

    name = "random"
    summary = "torch.utils.data.RandomSampler with a generator of its own"
    dealt = Dealt.ALL
    seeds = SEEDS
    tried = 4  # a generator is seeded in the program, so a job that starts again begins at 0 again
    options: Mapping[str, Option] = {
        "base_seed": BASE_SEED,
        "left_early": Option("epochs before that were left before their end", least=0),
        **DRAWING,
        **DROP_BATCH,
        "state": STATE,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The samples of this epoch, num_samples of them. Costs the words of all epochs before: about 4 ms a million.

        Raises ValueError: `left_early` with `replacement`, where the words drawn before are not known.
        """
        return draw(spec, stream(spec, self._skip(spec, n, epoch)), n, count)

    def _skip(self, spec: Spec, n: int, epoch: int) -> int:
        """Words drawn before this epoch's samples."""
        early = spec.number("left_early")
        if early and spec.number("replacement"):
            raise ValueError("left_early: with replacement it is not known how many were drawn")
        # an epoch of less than one permutation draws but the trailing one, and that at its start
        trailing = max(n - 1, 0) if num_samples(spec, n) >= n else 0
        return base_seed_words(spec, epoch) + epoch * whole_words(spec, n) - early * trailing

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The loader's generator, the sampler's own, persistent workers (differs after one epoch)."""
        others = tuple(Spec(self.name, seed, (("base_seed", who),)) for who in ("never", "once"))
        return Spec(self.name, seed), *others

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """With replacement, as many as there are samples."""
        with_replacement = Spec(self.name, seed, (("replacement", 1),))
        return with_replacement, with_replacement.with_option("base_seed", "never")

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch after this one was exhausted, or was left early; the first again.

        Where every epoch was left early, this one will be: so SubsetRandomSampler and torch before 1.12 look, which
        draw no trailing permutation.
        """
        if spec.number("replacement"):
            return (spec, epoch + 1), (spec, 0)
        early = spec.with_option("left_early", spec.number("left_early") + 1)
        fresh = spec.with_option("left_early", 0)
        if 0 < epoch == spec.number("left_early"):
            return (early, epoch + 1), (spec, epoch + 1), (fresh, 0)
        return (spec, epoch + 1), (early, epoch + 1), (fresh, 0)


class SubsetRandom(Sampler):
    """`SubsetRandomSampler(range(n), generator)`: one permutation an epoch and no trailing one. The samples are those
    of the subset, in its order. Over torch's global generator it is `global` with `direct`.

    Options: `base_seed`, `drop_batch`, `state` as `random` has them. Nothing to try: `random` finds the same orders,
    as epochs that were left early.
    """

    name = "subset_random"
    summary = "torch.utils.data.SubsetRandomSampler with a generator of its own"
    seeds = SEEDS
    guessed = False  # `random` has these orders
    tried = Random.tried
    may_restart = True
    options: Mapping[str, Option] = {"base_seed": BASE_SEED, **DROP_BATCH, "state": STATE}

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The permutation of this epoch. Costs the words of all epochs before: about 4 ms a million."""
        skip = base_seed_words(spec, epoch) + epoch * max(n - 1, 0)
        return torch_generator.randperm(stream(spec, skip), n, count)


class Sequential(Sampler):
    """`SequentialSampler`, and any reader that goes through the files in order."""

    name = "sequential"
    summary = "in order: SequentialSampler, and any reader that goes through the files as they are listed"
    dealt = Dealt.ALL
    # validation after training goes through the files as training lists them
    files = (
        "image_folder", "sorted_files", "timm", "keras_images", "hf_imagefolder", "dali_files", "listed", "shards",
        "hf_shards",
    )  # fmt: skip
    seeds = None
    options = DROP_BATCH

    def dealt_out(self, spec: Spec, batch: int) -> Spec | None:
        """The strides of DistributedSampler with shuffle=False, or the batches of evaluation by transformers'
        Trainer."""
        return Distributed().dealt_out(Spec(Distributed.name, 0, (("sequential", 1),)), batch)

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """0..n-1."""
        return np.arange(n if count is None else min(n, count), dtype=np.int64)


FAMILIES: tuple[Sampler, ...] = (Distributed(), Random(), SubsetRandom(), Sequential())
