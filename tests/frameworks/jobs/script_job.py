"""Scripts that shuffle a list of files by themselves."""

from __future__ import annotations

import random

import numpy as np
from job import EPOCHS, SEED, SETTINGS, TRAIN, files, read, say


def permutation(names: list[str]) -> None:
    generator = np.random.default_rng(SEED)
    for _ in range(EPOCHS):
        for at in generator.permutation(len(names)):
            read(names[at])


def shuffled(names: list[str]) -> None:
    generator = np.random.default_rng(SEED)
    for _ in range(EPOCHS):
        generator.shuffle(names)
        for name in names:
            read(name)


def legacy(names: list[str]) -> None:
    np.random.seed(SEED)
    for _ in range(EPOCHS):
        for at in np.random.permutation(len(names)):
            read(names[at])


def python(names: list[str]) -> None:
    random.seed(SEED)
    for _ in range(EPOCHS):
        random.shuffle(names)
        for name in names:
            read(name)


def python_by_epoch(names: list[str]) -> None:
    for epoch in range(EPOCHS):
        for name in random.Random(SEED + epoch).sample(names, len(names)):
            read(name)


KINDS = {
    "permutation": permutation,
    "shuffled": shuffled,
    "legacy": legacy,
    "python": python,
    "python_by_epoch": python_by_epoch,
}

if __name__ == "__main__":
    KINDS[SETTINGS["kind"]](files(TRAIN))
    say()
