"""torch's DataLoader over torchvision's ImageFolder: one sampler for each `kind`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch
import torchvision_import  # noqa: F401 - before torchvision
from job import BATCH, EPOCHS, SEED, SETTINGS, TRAIN, VAL, WORKERS, read, say
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

import nopfsfs


def folder(root: str) -> ImageFolder:
    return ImageFolder(root, transform=len, loader=read)


def loader(data, **options) -> DataLoader:
    persistent = SETTINGS.get("persistent", False)
    return DataLoader(data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=persistent, **options)


def train(batches: DataLoader, checks: Sequence[DataLoader] = ()) -> None:
    for _ in range(EPOCHS):
        for one in (batches, *checks):
            for _ in one:
                pass


def distributed(rank: int, world: int, together) -> None:
    data = folder(TRAIN)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=SEED, **SETTINGS.get("options", {}))
    batches = loader(data, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for _ in batches:
            together.wait()  # as for the gradients of all ranks


def ranks() -> None:
    """All ranks that read here, each in a process of its own."""
    world, local = SETTINGS["world"], SETTINGS["ranks"]
    context = multiprocessing.get_context("fork")  # torch is imported once
    together = context.Barrier(len(local))
    processes = [context.Process(target=distributed, args=(rank, world, together)) for rank in local]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def torchrun() -> Any:
    """One of the processes that torchrun starts; what must outlive it."""
    torch.distributed.init_process_group("gloo")
    data = folder(TRAIN)
    sampler = DistributedSampler(data, seed=SEED)
    batches = loader(data, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for sizes, _ in batches:
            model(sizes[:, None].float()).mean().backward()
    return model


def stateful() -> None:
    """torchdata's loader: up to a step, or on from there."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    torch.manual_seed(SEED)
    data = folder(TRAIN)
    sampler = None
    if "rank" in SETTINGS:
        sampler = StatefulDistributedSampler(data, SETTINGS["world"], SETTINGS["rank"], seed=SEED)
    batches = StatefulDataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None, num_workers=WORKERS)
    if "stop" not in SETTINGS:
        batches.load_state_dict(torch.load(SETTINGS["state"], weights_only=False))
    for epoch in range(EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, _ in enumerate(batches, 1):
            if number == SETTINGS.get("stop"):
                torch.save(batches.state_dict(), SETTINGS["state"])
                return


def on_global_generator() -> None:
    torch.manual_seed(SEED)
    if SETTINGS.get("model"):
        torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7), torch.nn.Linear(512, 1000))
    checks = [loader(folder(VAL))] if SETTINGS.get("validation") else []
    train(loader(folder(TRAIN), shuffle=True), checks)


def own_generator() -> None:
    generator = torch.Generator().manual_seed(SEED)
    data = folder(TRAIN)
    if SETTINGS.get("sampler"):
        train(loader(data, sampler=RandomSampler(data, generator=generator)))
    else:
        train(loader(data, shuffle=True, generator=generator))


def in_order() -> None:
    data = folder(TRAIN)
    train(loader(data, sampler=SequentialSampler(data)))


def subset_random() -> None:
    torch.manual_seed(SEED)
    data = folder(TRAIN)
    batches = loader(data, sampler=SubsetRandomSampler(range(0, len(data), 2)))
    nopfsfs.register(TRAIN, batches, epochs=EPOCHS)
    train(batches)


def split() -> None:
    part, rest = random_split(folder(TRAIN), [0.9, 0.1], generator=torch.Generator().manual_seed(SEED))
    torch.manual_seed(SEED)
    batches = loader(part, shuffle=True)
    if SETTINGS.get("register"):
        nopfsfs.register(TRAIN, batches, epochs=EPOCHS)
    train(batches, [loader(rest)] if SETTINGS.get("validation") else [])


KINDS = {
    "distributed": ranks,
    "global": on_global_generator,
    "generator": own_generator,
    "sequential": in_order,
    "subset_random": subset_random,
    "split": split,
    "torchrun": torchrun,
    "stateful": stateful,
}

if __name__ == "__main__":
    kept = KINDS[SETTINGS["kind"]]()
    say()
