"""PyTorch's samplers, bit for bit: `distributed.py`, `sampler.py`, `dataloader.py` of torch 1.12 to 2.13.

The tests compare with the real classes. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import torch_random
from nopfsfs.plan.spec import Spec

# An int64 drawn by `random_()` takes two words: the loader's base seed.
_BASE_SEED_WORDS = 2


def check_ranks(world: int, ranks: Sequence[int]) -> None:
    """Raises ValueError unless there is a rank and every rank lies in [0, world)."""
    if world < 1 or not ranks or any(not 0 <= rank < world for rank in ranks):
        raise ValueError(f"ranks {list(ranks)} do not fit a world of {world}")


class Distributed:
    """`DistributedSampler(shuffle, seed, drop_last)` after `set_epoch(epoch)`.

    Options: `sequential` (1: shuffle=False), `drop_last` (1). The generator is seeded with seed + epoch.
    """

    name = "distributed"
    strided = True

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """randperm(n), or 0..n-1; neither padded nor cut."""
        if spec.number("sequential"):
            return np.arange(n if count is None else min(n, count), dtype=np.int64)
        return torch_random.randperm(torch_random.generator(spec.seed + epoch), n, count)

    def order(self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
        """Padded by repeating the list from its beginning, or cut, to a multiple of `world`; dealt out."""
        check_ranks(world, ranks)
        each = (n // world if spec.number("drop_last") else -(-n // world)) if n else 0
        full = self.shared(spec, n, epoch)
        if each * world != n:
            full = np.resize(full, each * world)
        if len(ranks) == world and list(ranks) == list(range(world)):
            return full
        return np.ascontiguousarray(full.reshape(each, world)[:, list(ranks)]).reshape(-1)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Shuffled, then in order. drop_last is not tried: it changes at most the last place of a rank."""
        return Spec(self.name, seed), Spec(self.name, seed, (("sequential", 1),))

    def epochs(self, spec: Spec) -> int:
        """Any epoch costs the same, so all that jobs usually run."""
        return 1 if spec.number("sequential") else 128

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch; the same again (`set_epoch` forgotten); the first (the job was started again)."""
        return (spec, epoch + 1), (spec, epoch), (spec, 0)


class Random:
    """`RandomSampler` without replacement on one generator, seeded once and carried over the epochs.

    Options: `base_seed`: who else draws from that generator. "epoch": the loader, at the start of every
    epoch (`DataLoader(shuffle=True, generator=g)`); "once": the loader, in the first epoch only (persistent
    workers); "never": the sampler alone has it. `left_early`: how many of the epochs before were left before
    the sampler was exhausted: those have not drawn the trailing permutation that the sampler draws (and
    mostly throws away) at its end.
    """

    name = "random"
    strided = False

    def _skip(self, spec: Spec, n: int, epoch: int) -> int:
        """Words drawn before this epoch's permutation."""
        base_seed = spec.get("base_seed", "epoch")
        draws = {"epoch": epoch + 1, "once": 1, "never": 0}[str(base_seed)]
        permutations = 2 * epoch - spec.number("left_early")
        return draws * _BASE_SEED_WORDS + permutations * max(n - 1, 0)

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """This epoch's permutation. Costs the words of all epochs before: about 4 ms a million."""
        return torch_random.randperm(torch_random.generator(spec.seed, self._skip(spec, n, epoch)), n, count)

    def order(self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
        """The permutation; the sampler knows no ranks, so each reads the whole."""
        check_ranks(world, ranks)
        full = self.shared(spec, n, epoch)
        return full if len(ranks) == 1 else np.repeat(full, len(ranks))

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The loader's generator, the sampler's own, persistent workers (differs after one epoch)."""
        return tuple(Spec(self.name, seed, (("base_seed", who),)) for who in ("epoch", "never", "once"))

    def epochs(self, spec: Spec) -> int:
        """Few: a generator is seeded in the program, so a job that starts again begins at 0 again."""
        return 4

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch after this one was exhausted, or was left early; the first again."""
        early = spec.with_option("left_early", spec.number("left_early") + 1)
        fresh = spec.with_option("left_early", 0)
        return (spec, epoch + 1), (early, epoch + 1), (fresh, 0)


class Sequential:
    """`SequentialSampler`, and any reader that goes through the files in order."""

    name = "sequential"
    strided = False

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """0..n-1."""
        return np.arange(n if count is None else min(n, count), dtype=np.int64)

    def order(self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
        """0..n-1 for every rank."""
        check_ranks(world, ranks)
        full = self.shared(spec, n, epoch)
        return full if len(ranks) == 1 else np.repeat(full, len(ranks))

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """One."""
        return (Spec(self.name),)

    def epochs(self, spec: Spec) -> int:
        """All are alike."""
        return 1

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The same again."""
        return ((spec, epoch + 1),)
