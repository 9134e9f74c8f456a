"""The samplers by name: the one place where a new family is entered. `docs/development.md` (A new sampler) names what
else such a family needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.samplers import (
    dali,
    explicit,
    grain,
    huggingface,
    keras,
    mosaic,
    numpy_shuffle,
    python_shuffle,
    subsets,
    subsets_numpy,
    subsets_tf,
    tensorflow,
    torch,
    torch_global,
    torch_stateful,
    torch_trainers,
    torch_weighted,
    webdataset,
)
from nopfsfs.plan.samplers.sampler import STRIDED, STRIDED_OPTION, Dealt, Option, Sampler, Spec, Subset, Value

# The one list of the modules. Likeliest first: the order in which `auto` tries them.
_FAMILIES: tuple[Sampler, ...] = (
    *torch.FAMILIES,
    *torch_global.FAMILIES,
    *torch_trainers.FAMILIES,
    *torch_stateful.FAMILIES,
    *torch_weighted.FAMILIES,
    *tensorflow.FAMILIES,
    *keras.FAMILIES,
    *numpy_shuffle.FAMILIES,
    *python_shuffle.FAMILIES,
    *grain.FAMILIES,
    *huggingface.FAMILIES,
    *webdataset.FAMILIES,
    *mosaic.FAMILIES,
    *dali.FAMILIES,
    *explicit.FAMILIES,
)
_SUBSETS: tuple[Subset, ...] = (
    *subsets.SUBSETS,
    *subsets_numpy.SUBSETS,
    *subsets_tf.SUBSETS,
)

SAMPLERS: Mapping[str, Sampler] = MappingProxyType({family.name: family for family in _FAMILIES})
SUBSETS: Mapping[str, Subset] = MappingProxyType({subset.name: subset for subset in _SUBSETS})
AUTO = "auto"


def sampler(name: str) -> Sampler:
    """The family of that name. Raises ValueError, naming those that exist."""
    try:
        return SAMPLERS[name]
    except KeyError:
        raise ValueError(f"unknown sampler {name!r}: known are {AUTO}, {', '.join(SAMPLERS)}") from None


def subset(name: str) -> Subset:
    """The rule of that name. Raises ValueError, naming those that exist."""
    try:
        return SUBSETS[name]
    except KeyError:
        raise ValueError(f"unknown subset {name!r}: known are {', '.join(SUBSETS)}") from None


def families(name: str = AUTO) -> tuple[Sampler, ...]:
    """The families to try for a sampler name given by a user; `auto`: all. Raises ValueError when unknown.

    Reading in order is always among them: validation is read so, whatever the training sampler. All are, when the
    family's orders are those of others.
    """
    if name == AUTO:
        return _FAMILIES
    named = sampler(name)
    if not named.variants(0):
        return (named, *(family for family in _FAMILIES if family is not named))
    return tuple(dict.fromkeys((named, sampler("sequential"))))


def make_spec(of: Sampler | Subset, seed: int = 0, options: Mapping[str, Value] | None = None) -> Spec:
    """A checked description. Raises ValueError that begins with the option's name. The sampler may not have the option.
    A value may be of the wrong kind or out of bounds. The framework may refuse a seed."""
    if of.seeds is None:
        seed = 0
    elif not of.seeds[0] <= seed <= of.seeds[1]:
        raise ValueError(f"seed: {seed} is not a seed of {of.name}: {of.seeds[0]} to {of.seeds[1]}")
    spec, there = Spec(of.name, seed), dict(of.options)
    if isinstance(of, Sampler) and of.dealt is Dealt.ALL:
        there[STRIDED] = STRIDED_OPTION
    for name, value in (options or {}).items():
        if name not in there:
            known = ", ".join(of.options) or "none"
            raise ValueError(f"{name}: {of.name} has no such option; it has {known}")
        _check(name, there[name], value)
        spec = spec.with_option(name, int(value) if isinstance(value, bool) else value)
    return replace(spec, options=tuple(pair for pair in spec.options if pair[1] != there[pair[0]].default))


def _check(name: str, option: Option, value: Value) -> None:
    kind = option.kind
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits and not (kind is float and isinstance(value, int) and not isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", str: "a word in quotes", bool: "true or false"}
        raise ValueError(f"{name}: {value!r} is not {words[kind]}")
    if option.choices and value not in option.choices:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(option.choices)}")
    if isinstance(value, str):
        return
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not a number to count with")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{name}: {value} has more than 64 bits")
    if option.least is not None and value < option.least:
        raise ValueError(f"{name}: {value} is less than {option.least:g}")
    if option.most is not None and value > option.most:
        raise ValueError(f"{name}: {value} is more than {option.most:g}")


def order(spec: Spec, n: int, epoch: int = 0, world: int = 1, rank: int = 0) -> NDArray[np.int64]:
    """The samples that one rank reads in one epoch, int64[m]. Raises ValueError: rank outside the world."""
    return sampler(spec.sampler).order(spec, n, epoch, world, (rank,))
