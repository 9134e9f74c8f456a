"""Plans from live torch samplers and DataLoaders, read from their attributes. Imports no torch.

`plan/` computes the orders bit for bit. This module finds out which sampler is used, the state of its generator, and
whether the loader draws from that generator too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry

SAMPLES_MOST = 1 << 28  # of all arrays together: 2 GiB
_SEED_WORDS = 2  # an int64 that torch draws as a seed

Samples = NDArray[np.int64]
Table = dict[str, Any]


def _is(thing: Any, name: str) -> bool:
    """True when `thing` is an object of torch's class `name` or of a class derived from it. Does not load torch."""
    return any(kind.__name__ == name and kind.__module__.startswith("torch.") for kind in type(thing).__mro__)


def live(sampler: Any, epochs: int) -> tuple[Table, list[Samples]] | None:
    """The plan's table of a torch DataLoader or sampler; None for another object. Where a table cannot describe the
    coming epochs, they are returned as arrays (`epochs`: their number). Raises ValueError."""
    loader = sampler if _is(sampler, "DataLoader") else None
    table: Table = {}
    if loader is not None:
        sampler, table["loader"] = _of_loader(loader)
    if not any(_is(sampler, name) for name in ("Sampler", "BatchSampler")):
        if loader is not None:
            raise ValueError(f"sampler: {type(sampler).__name__} is not known; give the order as arrays of indices")
        return None
    dataset = getattr(sampler, "data_source", getattr(sampler, "dataset", getattr(loader, "dataset", None)))
    part, dataset = _part(dataset)
    if _is(sampler, "SubsetRandomSampler"):
        own = np.asarray(sampler.indices, np.int64)
        part = own if part is None else part[own]
    where = getattr(dataset, "root", None)
    if isinstance(where, (str, os.PathLike)):
        table["dataset"] = os.path.abspath(os.fspath(where))
    if part is None:
        return {**table, **_whole(sampler, loader)}, []
    said, arrays = _partial(sampler, loader, part, epochs)
    return {**table, **said}, arrays


def _of_loader(loader: Any) -> tuple[Any, dict[str, int]]:
    """The sampler of a loader, and the key `loader` of its table: how far the loader reads ahead."""
    batches = getattr(loader, "batch_sampler", None)
    batch = getattr(loader, "batch_size", None)
    sampler = loader.sampler
    if batches is not None:
        if type(batches).__name__ != "BatchSampler":
            raise ValueError(f"sampler: {type(batches).__name__} is not known; give the order as arrays of indices")
        batch, sampler = batches.batch_size, batches.sampler
    said = {"workers": int(loader.num_workers), "batch": int(batch or 1)}
    if getattr(loader, "prefetch_factor", None):
        said["prefetch"] = int(loader.prefetch_factor)
    return sampler, said


def _dropped(loader: Any) -> Table:
    """The option `drop_batch` where the loader drops an incomplete last batch: the size of a batch."""
    batches = getattr(loader, "batch_sampler", None)
    return {} if batches is None or not batches.drop_last else {"drop_batch": int(batches.batch_size)}


def _part(dataset: Any) -> tuple[Samples | None, Any]:
    """The indices of torch's Subset (of a Subset ...), and the data set that they refer to."""
    part: Samples | None = None
    while _is(dataset, "Subset"):
        own = np.asarray(dataset.indices, np.int64)
        part = own if part is None else own[part]
        dataset = dataset.dataset
    return part, dataset


def _whole(sampler: Any, loader: Any) -> Table:
    """The table of a sampler of a whole data set: its name and options."""
    if _is(sampler, "DistributedSampler"):
        table: Table = {"sampler": "distributed", "seed": int(sampler.seed), "epoch": int(sampler.epoch)}
        flags = {"sequential": not sampler.shuffle, "drop_last": bool(sampler.drop_last)}
        options: Table = {name: True for name, value in flags.items() if value} | _dropped(loader)
        world, ranks = int(sampler.num_replicas), _ranks_here(int(sampler.rank), int(sampler.num_replicas))
        return table | {"world_size": world, "ranks": list(ranks)} | ({"options": options} if options else {})
    if _is(sampler, "SequentialSampler"):
        dropped = _dropped(loader)
        return {"sampler": "sequential"} | ({"options": dropped} if dropped else {})
    if _is(sampler, "RandomSampler"):
        drawn: Table = ({"replacement": True} if sampler.replacement else {}) | _dropped(loader)
        if getattr(sampler, "_num_samples", None) is not None:
            drawn["num_samples"] = int(sampler.num_samples)
        if sampler.generator is not None:
            options = {"state": state_text(sampler.generator), **_who_else(sampler, loader), **drawn}
            return {"sampler": "random", "options": options}
        return {"sampler": "global", "options": {"state": state_text(_default()), **_steps(loader), **drawn}}
    raise ValueError(f"sampler: {type(sampler).__name__} is not known; give the order as arrays of indices")


def _ranks_here(rank: int, world: int) -> Sequence[int]:
    """The ranks on this node where the environment shows that torchrun started this rank; else only this rank. All
    ranks of a node register the same plan."""
    size, local = os.environ.get("LOCAL_WORLD_SIZE", ""), os.environ.get("LOCAL_RANK", "")
    if os.environ.get("RANK") == str(rank) and size.isdecimal() and local.isdecimal():
        first = rank - int(local)
        if first >= 0 and first + int(size) <= world and int(local) < int(size):
            return range(first, first + int(size))
    return (rank,)


def _who_else(sampler: Any, loader: Any) -> Table:
    """The option `base_seed`: how often the loader draws a base seed from the sampler's generator. Without the option,
    once in each epoch."""
    if loader is None or loader.generator is not sampler.generator:
        return {"base_seed": "never"}
    return {"base_seed": "once"} if getattr(loader, "persistent_workers", False) else {}


def _steps(loader: Any) -> Table:
    """The options that place the seeds of the epochs in the global generator's stream
    (`plan/samplers/torch_global.py`)."""
    if loader is not None and loader.generator is not None:
        return {"offset": -_SEED_WORDS, "step": _SEED_WORDS}  # the loader's base seeds come from elsewhere
    return {"step": _SEED_WORDS} if loader is not None and getattr(loader, "persistent_workers", False) else {}


def _partial(sampler: Any, loader: Any, part: Samples, epochs: int) -> tuple[Table, list[Samples]]:
    """The table and the coming epochs of a sampler of a part of a data set, as indices of the whole data set."""
    n = len(part)
    if not epochs >= 1 or n * epochs > SAMPLES_MOST:
        raise ValueError(f"epochs: {epochs} epochs of {n} samples are not possible; say fewer with epochs=")
    batch = _dropped(loader).get("drop_batch", 1)
    read = n // batch * batch
    if _is(sampler, "SequentialSampler"):
        return {}, [part[:read]]
    if _is(sampler, "DistributedSampler"):
        said = _whole(sampler, loader)
        spec = registry.make_spec(registry.sampler("distributed"), said["seed"], said.get("options", {}))
        first, ranks = said["epoch"], tuple(said["ranks"])
        family, world = registry.sampler("distributed"), said["world_size"]
        orders = [family.order(spec, n, epoch, world, ranks) for epoch in range(first, first + epochs)]
        return {"repeats": True}, [part[order] for order in orders]
    drawing = _is(sampler, "RandomSampler")
    if not drawing and not _is(sampler, "SubsetRandomSampler"):
        raise ValueError(f"sampler: {type(sampler).__name__} is not known; give the order as arrays of indices")
    if drawing and (sampler.replacement or getattr(sampler, "_num_samples", None) is not None):
        raise ValueError("sampler: replacement or num_samples over a Subset; give the order as arrays of indices")
    return {}, [part[order[:read]] for order in _drawn(sampler, loader, n, epochs, seeded=drawing)]


def _drawn(sampler: Any, loader: Any, n: int, epochs: int, *, seeded: bool) -> Iterator[Samples]:
    """The permutations of the coming epochs, each read to its end (`torch/utils/data/sampler.py`). `seeded`: as from
    RandomSampler, which without a generator makes one from a seed, and draws a trailing permutation."""
    own = sampler.generator is not None
    state = torch_generator.generator_from_state(state_text(sampler.generator if own else _default()))
    shared = loader is not None and (loader.generator is sampler.generator)  # None is None: the global one
    once = bool(getattr(loader, "persistent_workers", False))
    for epoch in range(epochs):
        if shared and not (once and epoch):
            torch_generator.words(state, _SEED_WORDS)
        if seeded and not own:
            fresh = torch_generator.generator(int(torch_generator.words(state, _SEED_WORDS)[-1]))
            yield torch_generator.randperm(fresh, n)
            continue
        yield torch_generator.randperm(state, n)
        if seeded:
            torch_generator.words(state, max(n - 1, 0))


def _default() -> Any:
    """torch's global generator. torch is loaded, since the caller has a sampler of it."""
    return sys.modules["torch"].default_generator


def state_text(generator: Any) -> str:
    """The state of a torch generator as text for the samplers' option `state`. Raises ValueError for a generator of
    another device, whose order cannot be computed."""
    return torch_generator.torch_state(generator.get_state().numpy().tobytes())
