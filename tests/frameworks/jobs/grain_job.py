"""Grain over files of a mount: its DataLoader, and its MapDataset."""

from __future__ import annotations

import grain.python as grain
from job import BATCH, EPOCHS, SEED, SETTINGS, TRAIN, WORKERS, files, read, say


class Files:
    """A random access data source."""

    def __init__(self) -> None:
        self.names = files(TRAIN)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> int:
        return len(read(self.names[at]))


def options() -> grain.ReadOptions:
    return grain.ReadOptions(**SETTINGS.get("read_options", {}))


def data_loader() -> None:
    sampler = grain.IndexSampler(len(Files()), grain.NoSharding(), shuffle=True, num_epochs=EPOCHS, seed=SEED)
    loader = grain.DataLoader(
        data_source=Files(), sampler=sampler, worker_count=WORKERS, read_options=options(),
        operations=[grain.Batch(BATCH)],
    )  # fmt: skip
    for _ in loader:
        pass


def map_dataset() -> None:
    data = grain.MapDataset.source(Files())
    data = data.seed(SEED).shuffle() if SETTINGS.get("derived") else data.shuffle(SEED)
    for _ in data.repeat(EPOCHS).to_iter_dataset(options()).batch(BATCH):
        pass


if __name__ == "__main__":
    from absl import flags

    flags.FLAGS(["grain_job"])  # Grain's workers want them parsed
    {"data_loader": data_loader, "map_dataset": map_dataset}[SETTINGS["kind"]]()
    say()
