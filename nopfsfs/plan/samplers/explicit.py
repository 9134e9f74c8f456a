"""Orders that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import sharding
from nopfsfs.plan.samplers.sampler import Dealt, Option, Sampler, Spec


class Explicit(Sampler):
    """The orders in `Spec.data`, epoch by epoch; after the last one they begin anew. Samples may occur several times,
    or not at all. Option: `deal`: every rank reads all of an order, or every world-th place of it."""

    name = "explicit"
    summary = "orders given in a file"
    dealt = Dealt.OWN
    seeds = None
    guessed = False  # an order cannot be guessed
    options: Mapping[str, Option] = {
        "deal": Option(
            "what a rank reads of an order: all, or every world-th place", str, "all", choices=("all", "strided")
        )
    }

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The order of this epoch. Raises ValueError: no order at all; a sample that is not in [0, n)."""
        if spec.data is None or not spec.data.epochs:
            raise ValueError("explicit: no order was given")
        which = epoch % len(spec.data.epochs)
        given = spec.data.epochs[which][:count]
        wrong = np.flatnonzero((given < 0) | (given >= n))
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(f"explicit: epoch {which}, place {at}: there is no sample {given[at]} among {n}")
        return np.array(given, np.int64)

    def order(
        self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int], count: int | None = None
    ) -> NDArray[np.int64]:
        """The order of `ranks`, as `Sampler.order`. Nothing is padded, so that some ranks may have one sample more."""
        if spec.get("deal", "all") == "all":
            return sharding.everyone(self.shared(spec, n, epoch, count), world, ranks)
        sharding.check_ranks(world, ranks)
        given = self.shared(spec, n, epoch, None if count is None else count * world)
        return sharding.interleave([given[rank::world] for rank in ranks])

    def epochs(self, spec: Spec) -> int:
        """All that were given."""
        return 1 if spec.data is None else max(len(spec.data.epochs), 1)


FAMILIES: tuple[Sampler, ...] = (Explicit(),)
