"""Frameworks on PyTorch that deal its samples out: Lightning 2.6, Accelerate 1.15, transformers 5.23, timm 1.0.31.

Owns who takes what of an order that `torch` or `torch_global` computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec
from nopfsfs.plan.samplers.torch import SEED_WORDS, SEEDS, STATE, Distributed, stream
from nopfsfs.plan.samplers.torch_global import Global

_GLOBAL, _DISTRIBUTED = Global(), Distributed()


class _ByWorld(Sampler):
    """`global` in one process, `distributed` in several. By name only: those two are tried anyway."""

    dealt = Dealt.OWN
    seeds = SEEDS
    guessed = False  # `global` and `distributed` have these orders
    tried = Distributed.tried
    options: Mapping[str, Option] = {name: Global.options[name] for name in ("offset", "step", "drop_batch", "state")}

    def distributed_seed(self, spec: Spec) -> int:
        """The seed of DistributedSampler."""
        return spec.seed

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order in one process."""
        return _GLOBAL.shared(spec, n, epoch, count)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `global`, or of `distributed` when there are several processes."""
        if world == 1:
            return _GLOBAL.order(spec, n, epoch, world, ranks, count)
        several = Spec(_DISTRIBUTED.name, self.distributed_seed(spec))
        several = several.with_option("drop_batch", spec.number("drop_batch"))
        return _DISTRIBUTED.order(several, n, epoch, world, ranks, count)

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The epochs that follow one of `global`. In several processes all but the epoch is without meaning."""
        return _GLOBAL.following(spec, epoch)


class Lightning(_ByWorld):
    """`Trainer.fit` with `DataLoader(shuffle=True)` after `seed_everything(seed)`: in several processes it puts in
    a DistributedSampler, seeded with PL_GLOBAL_SEED (which seed_everything sets) or 0.

    Options: as `global`, for one process: `step` is 4, with validation 6; the sanity check draws nothing.
    A distributed strategy in one process is `distributed`.
    """

    name = "lightning"
    summary = "Lightning: global in one process, distributed in several"


class Timm(_ByWorld):
    """`timm.data.create_loader(is_training=True)`: DistributedSampler with seed 0 in several processes, whatever the
    script's seed. Options: as `global`, for one process: the model draws some million words first; its loader drops
    the last batch (`drop_batch`)."""

    name = "timm"
    summary = "timm.data.create_loader: global in one process, distributed with seed 0 in several"
    files = ("timm", "image_folder", "sorted_files")

    def distributed_seed(self, spec: Spec) -> int:
        """0: timm leaves the default."""
        return 0


class RepeatAug(Sampler):
    """timm's `RepeatAugSampler` (DeiT's RASampler) after `set_epoch(epoch)`. Each sample of a permutation that is
    seeded with the epoch alone has `repeats` places in a row. The places are dealt out in strides, and a process keeps
    about n / world of its own.

    Option: `repeats` (3), also with a fraction.
    """

    name = "repeat_aug"
    summary = "timm.data.distributed_sampler.RepeatAugSampler"
    # in strides, but of places: a sample's first place does not tell whose it is
    dealt = Dealt.OWN
    files = ("timm", "image_folder", "sorted_files")
    seeds = None
    tried = 32  # fewer than for `distributed`, which is more usual
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {"repeats": Option("num_repeats", float, 3.0, least=1, most=100)}
    _ROUND = 256  # selected_round

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The permutation with its repetitions, int64[ceil(repeats * n)], before the processes cut it."""
        repeats = float(spec.get("repeats", 3.0))
        total = int(np.ceil(repeats * n))
        count = total if count is None else min(count, total)
        which = (np.arange(count) // repeats).astype(np.int64)
        needed = int(which[-1]) + 1 if count else 0
        return torch_generator.randperm(torch_generator.generator(epoch), n, needed)[which]

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """floor(n // 256 * 256 / world) places for each rank, ceil(n / world) when n < 256."""
        sharding.check_ranks(world, ranks)
        each = n // self._ROUND * self._ROUND // world if n >= self._ROUND else -(-n // world)
        each = each if count is None else min(each, count)
        full = self.shared(spec, n, epoch, each * world)
        return sharding.strided(np.resize(full, each * world if len(full) else 0), world, ranks)


_BATCHED: Mapping[str, Option] = {
    "batch": Option("samples in a batch of one process; needed when there are several", least=0),
    "uneven": Option("even_batches=False", bool),
    "drop_last": Option("drop_last=True", bool),
}


class _Batched(Sampler):
    """Orders that Accelerate's `BatchSamplerShard` deals out: batch k to process k mod R.

    `batch` is what one process takes in a row: the loader's batch size, with split_batches=True that divided by the
    number of processes.
    """

    dealt = Dealt.BATCHES
    seeds = SEEDS

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """Raises ValueError: no `batch` given with several processes."""
        sharding.check_ranks(world, ranks)
        batch = spec.number("batch")
        if world > 1 and not batch:
            raise ValueError(f"batch: {self.name} needs it when there are several processes")
        batch = batch or 1
        rounds = None if count is None else -(-count // batch)
        head = None if rounds is None else rounds * batch * world
        full = self.shared(spec, n, epoch, head)
        # a head is never at the end: what happens there is of no concern to it
        if world == 1 or (spec.number("uneven") and not spec.number("drop_last")):
            if spec.number("drop_last"):
                full = full[: len(full) // batch * batch]
            mine = [_chunks(full, batch, world, rank) for rank in ranks]
            return sharding.interleave(mine)[: None if count is None else count * len(ranks)]
        if head is None or len(full) < head:
            full = sharding.padded(full, batch * world, drop_last=bool(spec.number("drop_last")))
        taken: NDArray[np.int64] = full.reshape(-1, world, batch)[:, list(ranks)].transpose(0, 2, 1).reshape(-1)
        return taken[: None if count is None else count * len(ranks)]


def _chunks(full: NDArray[np.int64], batch: int, world: int, rank: int) -> NDArray[np.int64]:
    """Batches rank, rank + world, ... of an order; the last of all may be short."""
    places = np.arange(len(full))
    return full if world == 1 else full[places // batch % world == rank]


class Accelerate(_Batched):
    """A loader with shuffle=True after `Accelerator.prepare`. One process: as `global`. Several: one generator for
    all epochs, seeded at `prepare` with a word of torch's global generator, two permutations an epoch.

    Options: `offset`: words drawn from the global generator before `prepare` (in one process: before the first epoch).
    `step`: as `global`, for one process. `left_early`: epochs before that were left before their end, for several.
    `batch`: of one process; `uneven`: even_batches=False; `drop_last`; `state`: of the global generator.
    With use_seedable_sampler=True it is `hf_trainer`, with the same seed.
    """

    name = "accelerate"
    alone = False
    summary = "Accelerate: Accelerator.prepare of a shuffled DataLoader"
    options: Mapping[str, Option] = {
        "offset": Option("words drawn from the global generator before prepare; one process: before the first epoch"),
        "step": Global.options["step"],
        "left_early": Option("epochs before that were left before their end", least=0),
        "state": STATE,
        **_BATCHED,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order that several processes share. Costs the words of all epochs before: about 4 ms a million.

        Raises ValueError: an offset before the stream.
        """
        offset = spec.number("offset")
        if offset < 0:
            raise ValueError(f"offset: prepare would be at word {offset}")
        seed = int(torch_generator.words(stream(spec, offset), SEED_WORDS)[-1])
        permutations = 2 * epoch - spec.number("left_early")
        return torch_generator.randperm(torch_generator.generator(seed, permutations * max(n - 1, 0)), n, count)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `global` in one process. Raises ValueError: no `batch` given with several."""
        if world > 1:
            return super().order(spec, n, epoch, world, ranks, count)
        whole = _GLOBAL.shared(spec, n, epoch, count)
        batch = spec.number("batch")
        if count is None and batch and spec.number("drop_last"):
            whole = whole[: n // batch * batch]
        return sharding.everyone(whole, world, ranks)

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch after this one was exhausted, or was left early; the first again."""
        early = spec.with_option("left_early", spec.number("left_early") + 1)
        return (spec, epoch + 1), (early, epoch + 1), (spec.with_option("left_early", 0), 0)


class HFTrainer(_Batched):
    """transformers' `Trainer`, and Accelerate with use_seedable_sampler=True: randperm(n) seeded with seed + epoch,
    whatever the model drew. The seed is data_seed, else seed (42 by default).

    Options: `batch`: per_device_train_batch_size; `uneven`: even_batches=False; `drop_last`: dataloader_drop_last;
    `sequential`: in order, as evaluation is.
    """

    name = "hf_trainer"
    alone = False
    guessed = False  # `distributed` has these orders; that batches are dealt out shows in the opens
    tried = 4  # trainings of this kind are short
    may_restart = True
    summary = "transformers.Trainer; Accelerate with use_seedable_sampler=True"
    options: Mapping[str, Option] = {**_BATCHED, "sequential": Option("in order, as evaluation is", bool)}

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """randperm(n), seeded seed + epoch; 0..n-1."""
        return _DISTRIBUTED.shared(spec, n, epoch, count)


FAMILIES: tuple[Sampler, ...] = (Accelerate(), HFTrainer(), RepeatAug(), Lightning(), Timm())
