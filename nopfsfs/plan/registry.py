"""The samplers by name: the one place where a new family is entered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan import torch
from nopfsfs.plan.spec import Sampler, Spec

_FAMILIES: tuple[Sampler, ...] = (torch.Distributed(), torch.Random(), torch.Sequential())

# Likeliest first: the order in which `auto` tries them.
SAMPLERS: Mapping[str, Sampler] = MappingProxyType({family.name: family for family in _FAMILIES})
AUTO = "auto"


def sampler(name: str) -> Sampler:
    """The family of that name. Raises ValueError, naming those that exist."""
    try:
        return SAMPLERS[name]
    except KeyError:
        raise ValueError(f"unknown sampler {name!r}: known are {AUTO}, {', '.join(SAMPLERS)}") from None


def families(name: str = AUTO) -> tuple[Sampler, ...]:
    """The families to try for a sampler name given by a user; `auto`: all. Raises ValueError when unknown.

    Reading in order is always among them: validation is read so, whatever the training sampler.
    """
    if name == AUTO:
        return _FAMILIES
    return tuple(dict.fromkeys((sampler(name), sampler("sequential"))))


def order(spec: Spec, n: int, epoch: int = 0, world: int = 1, rank: int = 0) -> NDArray[np.int64]:
    """The samples that one rank reads in one epoch, int64[m]. Raises ValueError: rank outside the world."""
    return sampler(spec.sampler).order(spec, n, epoch, world, (rank,))
