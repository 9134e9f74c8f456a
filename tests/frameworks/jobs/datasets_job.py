"""Hugging Face datasets: the imagefolder builder."""

from __future__ import annotations

import numpy as np
import torch
from datasets import load_dataset
from job import BATCH, EPOCHS, SEED, SETTINGS, SOURCE, TRAIN, WORKERS, Pixels, count, files, say
from PIL import Image
from torch.utils.data import DataLoader


def collate(samples: list[dict]) -> list[np.ndarray]:
    return [np.asarray(sample["image"]) for sample in samples]


def main() -> None:
    data = load_dataset("imagefolder", data_dir=TRAIN, split="train")
    if SETTINGS["kind"] == "shuffle":
        data = data.shuffle(seed=SEED)
    torch.manual_seed(SEED)
    batches = DataLoader(
        data, BATCH, shuffle=SETTINGS["kind"] == "loader", num_workers=WORKERS, collate_fn=collate
    )  # fmt: skip
    seen = Pixels()
    for _ in range(EPOCHS):
        for images in batches:
            seen.add(images)
    count(seen.total)
    seen.check(EPOCHS, (np.asarray(Image.open(path)) for path in files(f"{SOURCE}/train")))


if __name__ == "__main__":
    main()
    say()
