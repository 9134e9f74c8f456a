"""Readers that compare what they read, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mount.harness import Mounted, Reader

FINE = {"wrong": [], "errors": []}


@contextmanager
def comparing(
    m: Mounted, readers: int, rounds: int | str, pause: float = 0.0, limit_s: float = 100.0
) -> Iterator[list[Reader]]:
    """Readers of all that there is; asserts in the end that they saw the right bytes."""
    words = [str(rounds), str(pause)]
    together = [Reader("compare", m.path, m.source, str(seed), *words) for seed in range(readers)]
    try:
        yield together
        for reader in together:
            if rounds == "all":
                reader.go()
            assert reader.result(limit_s) == FINE
    finally:
        for reader in together:
            reader.__exit__()


def following(m: Mounted, backing: Path, orders: Sequence[Sequence[int]], pause_s: float, *stops: int) -> Reader:
    """A job in a process of its own. It reads the images of `backing` in these orders of their sorted names, pauses
    after each image, and compares all bytes: its result is `{"wrong": []}`. After the orders `stops`, counted from 1,
    it says a line and waits."""
    names = sorted(str(path.relative_to(backing)) for path in backing.rglob("*.jpg"))
    said = m.log.with_suffix(".orders")
    said.write_text(json.dumps({"names": names, "epochs": [list(order) for order in orders]}))
    return Reader("follow", m.path, backing, said, str(pause_s), *map(str, stops))


def are_reading(readers: list[Reader]) -> bool:
    return all(reader.process.poll() is None for reader in readers)
