"""The plan that is assumed of a data set of which nothing is known yet, so that staging can begin.

Owns what users state about the plan before any open (`PlanHints`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nopfsfs.plan.epoch_order import DataSet, EpochOrder, Hypothesis, build
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, Sampler, Spec
from nopfsfs.plan.search.deal import World

# Samples in a batch of one process, where nobody has said it: the default of transformers.
_USUAL_BATCH = 8


@dataclass(frozen=True)
class PlanHints:
    """The plan as a user or the environment gave it. `seed` None: not given. `worlds`: likeliest first. `inflight`:
    workers x prefetch x batch + batch, where known. Raises ValueError: unknown sampler, ranks that do not fit their
    world, no world."""

    seed: int | None
    sampler: str
    worlds: tuple[World, ...]
    inflight: int | None

    def __post_init__(self) -> None:
        registry.families(self.sampler)
        if not self.worlds:
            raise ValueError("no world is given")
        for size, ranks in self.worlds:
            if size < 1 or not ranks or not all(0 <= rank < size for rank in ranks):
                raise ValueError(f"ranks {list(ranks)} do not fit a world of {size}")

    @property
    def families(self) -> Sequence[Sampler]:
        """The samplers that may be used, likeliest first."""
        return registry.families(self.sampler)

    @property
    def suffice(self) -> bool:
        """True: an order follows from them alone."""
        return self.seed is not None or (self.sampler != registry.AUTO and self.families[0].seeds is None)


def assumed(index: int, datasets: Sequence[DataSet], hints: PlanHints, near: Hypothesis | None) -> EpochOrder:
    """The first epoch of data set `index` in the likeliest order; `near`: the certain plan of another one, beside which
    this one is read."""
    (size, ranks), family = hints.worlds[0], hints.families[0]
    spec = next(iter(family.variants(hints.seed or 0)), Spec(family.name, hints.seed or 0))
    if near is not None:
        # Files that are read beside the training files are validation: in order, dealt out where training is.
        dealt = near.world > 1
        spec = Spec("distributed", options=(("sequential", 1),)) if dealt else Spec("sequential")
        size, ranks = (near.world, near.ranks) if dealt else (1, (0,))
    elif registry.sampler(spec.sampler).dealt is Dealt.ALL:
        size, ranks = 1, (0,)
    elif registry.sampler(spec.sampler).dealt is Dealt.BATCHES:
        spec = spec.with_option("batch", _USUAL_BATCH)
    orders = datasets[index].orders
    names = registry.sampler(spec.sampler).files
    if near is not None:
        same = datasets[near.dataset].orders[near.order].names
        names = (*(name for name in same if name in names), *names)
    order = next((at for name in names for at, one in enumerate(orders) if name in one.names), 0)
    hypothesis = Hypothesis(index, order, spec, 0, size, ranks)
    try:
        return build(hypothesis, datasets)
    except ValueError:  # the sampler needs options that nobody has said
        return build(replace(hypothesis, spec=Spec("sequential"), world=1, ranks=(0,)), datasets)
