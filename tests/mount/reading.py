"""Readers that go on while processes die, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


def are_reading(readers: list[Reader]) -> bool:
    return all(reader.process.poll() is None for reader in readers)
