#!/usr/bin/env python3
"""The main job: an unmodified PyTorch loop over an ImageFolder, which times its epochs.

    python scripts/train_loop.py DATA/train --mode bytes --epochs 3 --json

The file system is what is measured, so the loop trains no model. ImageFolder, DistributedSampler and
DataLoader are torchvision's and torch's own; mode "bytes" gives them a loader that returns the file's bytes, which
come to the training process as DataLoader brings them (I/O-bound); mode "sums" has the workers keep them, so that
hardly anything but open and read is left; mode "decode" is the default loader and ImageNet's usual training transform;
mode "decode-3.14" does the same, but opens files as CPython 3.14 does: without asking whether they are terminals.
Each epoch prints one JSON line with its seconds, files, bytes and a checksum that does not depend on the order: runs
over the same files must agree.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision_import  # noqa: F401  torchvision needs it to have happened
from PIL import Image
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

CHECKED_BYTES = 1024  # of each end of a file: a checksum of all would be half of the loop's time
SIDE = 224
DECODING = ("decode", "decode-3.14")  # modes

Sums = tuple[int, int, int]  # files, bytes, checksum


@dataclass(frozen=True)
class Epoch:
    """What one epoch did."""

    epoch: int
    started: float  # time.time()
    seconds: float
    files: int
    bytes: int
    checksum: int


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def open_as_3_14(path: str) -> Image.Image:
    """As torchvision's `default_loader`, but for the ioctl in `open` of CPython up to 3.13."""
    with io.BufferedReader(io.FileIO(path)) as file:
        return Image.open(file).convert("RGB")


def sum_of(samples: Iterable[tuple[bytes, int]]) -> Sums:
    """Files, bytes and checksum of a batch."""
    files = total = checksum = 0
    for data, label in samples:
        files, total = files + 1, total + len(data)
        checksum += zlib.crc32(data[-CHECKED_BYTES:], zlib.crc32(data[:CHECKED_BYTES], label))
    return files, total, checksum


def sum_of_batch(batch: tuple[Sequence[bytes], torch.Tensor]) -> Sums:
    """As `sum_of`, of what DataLoader's own collate function makes of the samples."""
    return sum_of(zip(batch[0], batch[1].tolist(), strict=True))


def collate_images(batch: list[tuple[torch.Tensor, int]]) -> Sums:
    """As `sum_of`, of decoded pictures; their random crops have no checksum."""
    stacked = torch.stack([image for image, _ in batch])
    return len(batch), stacked.nbytes, 0


def make_dataset(root: Path, mode: str) -> tuple[ImageFolder, Any]:
    """The data set and its collate function, None for DataLoader's own."""
    if mode not in DECODING:
        return ImageFolder(str(root), loader=read_bytes), sum_of if mode == "sums" else None
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    loader = default_loader if mode == "decode" else open_as_3_14
    return ImageFolder(str(root), transform=transform, loader=loader), collate_images


def run_epoch(batches: Iterable[Sums], epoch: int) -> Epoch:
    files = total = checksum = 0
    began, started = time.time(), time.perf_counter()
    for batch_files, batch_bytes, batch_checksum in batches:
        files += batch_files
        total += batch_bytes
        checksum += batch_checksum
    return Epoch(epoch, began, time.perf_counter() - started, files, total, checksum)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time epochs of a PyTorch loop over an ImageFolder.")
    parser.add_argument("data", type=Path, help="a folder of class folders")
    parser.add_argument("--mode", choices=("bytes", "sums", *DECODING), default="bytes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--world", type=int, default=1, help="ranks of the job")
    parser.add_argument("--rank", type=int, default=0, help="which of them this is")
    parser.add_argument("--json", action="store_true", help="one JSON line per epoch, as it ends")
    parser.add_argument("--step", action="store_true", help="after an epoch, wait for a line on stdin")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)

    dataset, collate = make_dataset(arguments.data, arguments.mode)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=arguments.world, rank=arguments.rank, seed=arguments.seed
    )
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=arguments.batch,
        sampler=sampler,
        num_workers=arguments.workers,
        collate_fn=collate,
    )
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        done = run_epoch(map(sum_of_batch, loader) if collate is None else loader, epoch)
        text = f"epoch {epoch + 1}: {done.seconds:.2f} s, {done.files / done.seconds:.0f} files/s"
        print(json.dumps(asdict(done)) if arguments.json else text, flush=True)
        if arguments.step:
            sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
