"""WebDataset over the shards of a mount."""

from __future__ import annotations

import os
import warnings

import webdataset
from job import BATCH, EPOCHS, MOUNT, SEED, SETTINGS, SOURCE, WORKERS, Pixels, count, files, say
from torch.utils.data import DataLoader


def samples(root: str) -> list[bytes]:
    return [sample["txt"] for sample in webdataset.WebDataset(files(root), shardshuffle=False)]


def main() -> None:
    names = files(MOUNT)
    options = SETTINGS.get("options", {})
    data = webdataset.WebDataset(names, seed=SEED, **options).to_tuple("__key__", "txt")
    batches = DataLoader(data, BATCH, num_workers=WORKERS)
    seen = Pixels()
    for _ in range(EPOCHS):
        for _, texts in batches:
            seen.add(texts)
    count(EPOCHS * len(names))
    seen.check(EPOCHS, samples(SOURCE))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    assert os.path.isdir(MOUNT)
    main()
    say()
