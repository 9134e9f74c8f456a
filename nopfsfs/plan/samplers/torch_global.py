"""torch's global generator as the source of the order: `DataLoader(shuffle=True)` after `torch.manual_seed`.

Owns the place in the generator's stream of 32-bit words from which an epoch's order comes.
`search/torch_stream_search.py` finds that place. Reproduces `RandomSampler` and `SubsetRandomSampler`
(`torch/utils/data/sampler.py`) and the base seed that making an iterator draws (`dataloader.py`), torch 1.0 to 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec
from nopfsfs.plan.samplers.torch import DRAWING, DROP_BATCH, SEED_WORDS, SEEDS, STATE, draw, num_samples, stream

# Words from one epoch's sampler to the next one's: a base seed and a sampler's seed.
USUAL_STEP = 2 * SEED_WORDS
# Other steps, likeliest first: each loader iteration in between (validation) draws 2 more, shuffled ones 4;
# persistent workers draw 2 less.
STEPS = (USUAL_STEP, 6, 2, 8, 10, 12, 14, 16, 20)
# Words that programs draw before the loader, when it is not the model that draws (then it is millions).
_OFFSETS = (2, -2, 6, 10, 14, 18, 22, 1, 3, 5, 7, 9, 16, 20, 24, 28, 32, 36, 40, 64)


class Global(Sampler):
    """`DataLoader(shuffle=True)` on torch's global generator: each epoch's sampler takes a seed from it.

    The generator is seeded with the spec's seed (`torch.manual_seed`), or is in `state`
    (`torch_generator.torch_state`). In epoch e the sampler's draw begins at word `offset` + 2 + `step` * e of the
    generator's stream. The word after that one is the seed. Options: `offset`: words drawn before the first epoch's
    loader is iterated; -2 for a sampler without a loader. Making the iterator draws 2, its base seed. `step`: words
    from one epoch's sampler to the next one's (4; with persistent workers 2; with a validation loader 6). `direct`: the
    samples are drawn from the global generator itself (SubsetRandomSampler; RandomSampler up to torch 1.7). The draw of
    epoch 0 begins at word `offset` + 2. Each later draw begins `step` - 2 words after the end of the one before.
    `replacement`, `num_samples`: as RandomSampler has them. `drop_batch`: of a loader with drop_last.
    """

    name = "global"
    summary = "DataLoader(shuffle=True) on torch's global generator after torch.manual_seed"
    dealt = Dealt.ALL
    # timm's loader on one process is of this kind.
    files = ("image_folder", "sorted_files", "timm")
    seeds = SEEDS
    tried = 4  # as of `random`
    options: Mapping[str, Option] = {
        "offset": Option("words drawn before the loader of the first epoch; -2 without a loader"),
        "step": Option("words from one epoch's sampler to the next one's", default=USUAL_STEP, least=1),
        "direct": Option("drawn from the global generator itself, as SubsetRandomSampler does", bool),
        **DRAWING,
        **DROP_BATCH,
        "state": STATE,
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The samples of this epoch. Costs the words before: about 4 ms a million.

        Raises ValueError: a place before the stream; `num_samples` with `direct` and without `replacement`.
        """
        begin = first_word(spec, n, epoch)
        if begin < 0:
            raise ValueError(f"offset: epoch {epoch} would begin at word {begin}")
        if spec.number("direct"):
            return draw(spec, stream(spec, begin), n, count)
        # of the two words of a seed manual_seed keeps the second
        seed = int(torch_generator.words(stream(spec, begin), SEED_WORDS)[-1])
        return draw(spec, torch_generator.generator(seed), n, count)

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """Right after manual_seed; the same with persistent workers (differs after one epoch)."""
        return Spec(self.name, seed), Spec(self.name, seed, (("step", SEED_WORDS),))

    def unusual(self, seed: int) -> tuple[Spec, ...]:
        """After a few words that something else drew; with replacement. `direct` is not among them: `random` has
        the same orders."""
        later = tuple(Spec(self.name, seed, (("offset", offset),)) for offset in _OFFSETS)
        return *later, Spec(self.name, seed, (("replacement", 1),))

    def after(self, spec: Spec, words: int) -> Spec:
        """With the offset that many words later."""
        return spec.with_option("offset", spec.number("offset") + words)

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """The next epoch after the step that was seen last, then after others; the same again (manual_seed in every
        epoch); the first again.

        Another step moves `offset` as well. So this epoch keeps its place, and all later ones follow in the new step.
        The epochs before this one then are not where they were, unless this was the first.
        """
        steps = (other for other in STEPS if other != step_of(spec))
        nexts = [(spec, epoch + 1), *((with_step(spec, epoch, step), epoch + 1) for step in steps)]
        return tuple(dict.fromkeys((*nexts[:9], (spec, epoch), (spec, 0))))


def step_of(spec: Spec) -> int:
    """Words from one epoch's sampler to the next one's."""
    return int(spec.get("step", USUAL_STEP))


def first_word(spec: Spec, n: int, epoch: int) -> int:
    """The word of the generator's stream, counted from 0, at which this epoch's sampler begins to draw. The word is the
    first of the two of its seed, or when `direct` the first of the permutation."""
    begin = spec.number("offset") + SEED_WORDS + epoch * step_of(spec)
    if not spec.number("direct"):
        return begin
    if spec.number("replacement"):
        drawn = num_samples(spec, n)
    elif spec.number("num_samples"):
        raise ValueError("num_samples: with direct only where there is replacement")
    else:
        drawn = max(n - 1, 0)
    return begin + epoch * (drawn - SEED_WORDS)


def beginning_at(spec: Spec, n: int, epoch: int, word: int) -> Spec:
    """The spec with the offset that makes this epoch's draw begin at that word of the stream."""
    offset = spec.number("offset") + word - first_word(spec, n, epoch)
    return spec.with_option("offset", offset)


def with_step(spec: Spec, epoch: int, step: int) -> Spec:
    """Another step from this epoch on, which keeps its place."""
    moved = spec.with_option("offset", spec.number("offset") + (step_of(spec) - step) * epoch)
    if step == USUAL_STEP:  # a default is left out
        options = tuple(pair for pair in moved.options if pair[0] != "step")
        return Spec(moved.sampler, moved.seed, options)
    return moved.with_option("step", step)


FAMILIES: tuple[Sampler, ...] = (Global(),)
