"""A data set and a training on it (`sim.training`) as TOML. A file has

    name = "S1"
    note = "where the figures come from"    # optional
    samples = 10000
    mean = "0.027 MB"
    sigma = "0.01 MB"           # optional: 0, all samples of one size
    [training]
    epochs = 10
    batch = 25                  # samples of one rank in a step
    drop_last = true            # leave out samples that fill no step of all ranks; optional: true
    seed = 42                   # optional

Sizes as in `units`, or in bytes.
"""

from __future__ import annotations

from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.text import toml_table
from nopfsfs.text.toml_table import TomlTable, size, whole
from nopfsfs.text.units import MAX_SIZE

KEYS = ("name", "note", "samples", "mean", "sigma", "training")
TRAINING_KEYS = ("epochs", "batch", "drop_last", "seed")
MAX_SAMPLES = 10**10  # twice the largest public set of images
MAX_SAMPLE = 1 << 50  # bytes, of the mean and of sigma: even an extreme draw is a valid size
MAX_EPOCHS = 10**6
MAX_BATCH = 10**7
SEED = Training(1, 1).seed


def read_dataset(path: str) -> tuple[SimDataSet, Training]:
    """Read a data set and a training from a file. Raises NopfsError with Exit.USAGE, which names file, line and key."""
    return parse_dataset(toml_table.read_text(path, "a data set file"), path)


def parse_dataset(text: str, origin: str) -> tuple[SimDataSet, Training]:
    """Parse a data set and a training; `origin` is for messages. Raises NopfsError with Exit.USAGE."""
    top = TomlTable.parse(text, origin)
    top.only(KEYS)
    top.may("note", toml_table.text, "")
    dataset = SimDataSet(
        name=top.need("name", toml_table.name, '"S1"'),
        samples=top.need("samples", whole(1, MAX_SAMPLES), "10000"),
        mean=float(top.need("mean", size(1, MAX_SAMPLE), '"0.027 MB"')),
        sigma=float(top.may("sigma", size(0, MAX_SAMPLE), 0)),
    )
    if dataset.samples * (dataset.mean + dataset.sigma) > MAX_SIZE:
        raise top.error("samples", "all samples together are more than any file system holds; write fewer or smaller")
    return dataset, _training(top.table("training"))


def _training(table: TomlTable) -> Training:
    table.only(TRAINING_KEYS)
    return Training(
        epochs=table.need("epochs", whole(1, MAX_EPOCHS), "10"),
        batch=table.need("batch", whole(1, MAX_BATCH), "32"),
        drop_last=table.may("drop_last", toml_table.flag, True),
        seed=table.may("seed", whole(-(2**63), 2**64 - 1), SEED),  # what torch.manual_seed takes
    )
