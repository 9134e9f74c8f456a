"""What a sampler is: a pure function from (seed, options, n, epoch, world, ranks) to an order of samples.

Owns the words that every framework's module shares. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Option = int | str


@dataclass(frozen=True)
class Spec:
    """A sampler as its user configured it: registry name, seed, options as sorted (name, value) pairs."""

    sampler: str
    seed: int = 0
    options: tuple[tuple[str, Option], ...] = ()

    def get(self, name: str, default: Option) -> Option:
        """The value of an option, or `default`."""
        return dict(self.options).get(name, default)

    def number(self, name: str) -> int:
        """The value of an option that counts or is a flag; 0 when not set."""
        return int(self.get(name, 0))

    def with_option(self, name: str, value: Option) -> Spec:
        """The same sampler with one option set; 0 is what an option is when it is not set."""
        options = {**dict(self.options), name: value}
        return replace(self, options=tuple(sorted((k, v) for k, v in options.items() if v != 0)))


class Sampler(Protocol):
    """One family of samplers. Stateless; every method is pure."""

    name: str
    # True when rank r of R reads the places r, r+R, r+2R, ... of an order that all ranks share; False when
    # every rank reads the whole.
    strided: bool

    def shared(self, spec: Spec, n: int, epoch: int, count: int | None = None) -> NDArray[np.int64]:
        """The first `count` samples of the order before it is dealt out to ranks, int64[min(count, n)]."""
        ...

    def order(self, spec: Spec, n: int, epoch: int, world: int, ranks: Sequence[int]) -> NDArray[np.int64]:
        """The samples that `ranks` read, their orders interleaved place by place: int64[m * len(ranks)]."""
        ...

    def variants(self, seed: int) -> tuple[Spec, ...]:
        """The configurations to try when only the seed is known, likeliest first; no two share `shared`."""
        ...

    def epochs(self, spec: Spec) -> int:
        """How many epochs are worth trying when the epoch is not known."""
        ...

    def following(self, spec: Spec, epoch: int) -> tuple[tuple[Spec, int], ...]:
        """What may be read after this epoch, likeliest first: (spec, epoch) pairs."""
        ...
