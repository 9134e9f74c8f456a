"""torchdata's `StatefulDataLoader(shuffle=True)`, bit for bit: `stateful_dataloader/sampler.py` and
`stateful_dataloader.py` of torchdata 0.11. Does not import torchdata.

Its sampler draws a seed from torch's global generator when the loader is made. The seed is for a generator of the
sampler's own, which is carried over the epochs, also by a checkpoint. A loader with workers asks for an iterator twice
in each epoch, so that every other permutation is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec
from nopfsfs.plan.samplers.torch import DROP_BATCH, SEED_WORDS, SEEDS, STATE, stream

# Of a loader with workers.
_WITH_WORKERS = 2


class Stateful(Sampler):
    """`StatefulDataLoader(shuffle=True)` after `torch.manual_seed(seed)`.

    Options: `offset`: words of the global generator's stream that were drawn before the loader was made. `every`:
    permutations for an epoch, of which the last is read (2 with workers). `drop_batch`. `state`: of the global
    generator before, instead of the seed.
    """

    name = "torchdata"
    summary = "torchdata's StatefulDataLoader(shuffle=True) after torch.manual_seed"
    dealt = Dealt.ALL
    seeds = SEEDS
    tried = 8  # few of those that cost all the epochs before
    may_repeat = may_restart = True
    options: Mapping[str, Option] = {
        "offset": Option("words drawn before the loader is made", least=0),
        "every": Option("permutations for an epoch; 2 with workers", default=1, least=1),
        **DROP_BATCH,
        "state": STATE,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The permutation of this epoch. Costs the words before: about 4 ms a million."""
        # of the two words of a seed manual_seed keeps the second
        seed = int(torch_generator.words(stream(spec, spec.number("offset")), SEED_WORDS)[-1])
        every = int(spec.get("every", 1))
        before = every * epoch + every - 1
        return torch_generator.randperm(torch_generator.generator(seed, before * max(n - 1, 0)), n, count)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """With workers, and without."""
        return Spec(self.name, seed, (("every", _WITH_WORKERS),)), Spec(self.name, seed)


FAMILIES: tuple[Sampler, ...] = (Stateful(),)
