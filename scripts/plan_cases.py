"""The orders that are measured: one reading for each sampler, as a program would have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from plan_play import Reading

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, GivenOrders, Sampler, Spec, Value

# Families whose order in one process is that of another family: measured as one rank of several.
_SEVERAL = ("repeat_aug", "tf_shuffle_shard", "tf_shard_shuffle", "accelerate", "hf_trainer", "lightning", "timm")
# Samples in a batch of one process, where several take batches in turn.
_BATCH = 8
_CLASS = 1000  # files of a class, where the order depends on it
# Orders that are computed in another way than those of the first variant.
_OTHERS: dict[str, tuple[dict[str, Value], ...]] = {
    "random": ({"replacement": True},),
    "global": ({"direct": True},),
    "tf_shuffle": ({"buffer": 1000},),
    "tf_list_files": ({"twice": True, "buffer": 1000},),
    "grain": ({"sharding": "slice"},),
    "python": ({"method": "sample"}, {"carry": "stream"}),
    "dali": ({"shuffle_after_epoch": True},),
    "webdataset": ({"method": "detshuffle"},),
    "webdataset_split": ({"method": "detshuffle"},),
    "hf_streaming": ({"workers": 8},),
    "numpy": ({"carry": "shuffle"},),
    "keras_directory": ({"validation_split": 0.2, "fixed": True},),
}


def first(family: Sampler, seed: int) -> Spec:
    """Its likeliest configuration."""
    spec = next(iter(family.variants(seed)), Spec(family.name, seed if family.seeds is not None else 0))
    return spec.with_option("batch", _BATCH) if family.dealt is Dealt.BATCHES else spec


def specs(family: Sampler, seed: int, n: int) -> dict[str, Spec]:
    """What is computed to measure a family, by name: its first variant, and those of other algorithms."""
    if family.name == "explicit":
        backwards = np.arange(n - 1, -1, -1, dtype=np.int64)
        return {"explicit": Spec("explicit", data=GivenOrders((backwards,)))}
    found = {family.name: first(family, seed)}
    for options in _OTHERS.get(family.name, ()):
        words = "-".join(name if value is True else f"{name}={value}" for name, value in options.items())
        found[f"{family.name}-{words}"] = registry.make_spec(family, seed, options)
    if family.by_class:
        found = {name: spec.with_option("classes", _classes(n)) for name, spec in found.items()}
    return found


def _classes(n: int) -> str:
    """The numbers of files of the classes of `n` files, as an index has them."""
    return ",".join(str(min(_CLASS, n - first)) for first in range(0, n, _CLASS))


def reading(family: Sampler, seed: int) -> Reading:
    """A job that reads by the family's likeliest configuration, one rank of eight where one process is nothing of its
    own. timm's own seed is 0, whatever the program's."""
    found = Reading(first(family, seed), files=family.files[0])
    if family.name in _SEVERAL or (family.dealt is Dealt.STRIDED and family.name != "distributed"):
        found = replace(found, world=8, ranks=(3,))
    return replace(found, data="shards") if "shards" in family.files[:1] else found


def identified() -> list[Sampler]:
    """The families that are found by what is opened: all but orders that are given."""
    return [family for family in registry.SAMPLERS.values() if family.name != "explicit"]
