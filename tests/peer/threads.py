"""Ranks that are threads: what agrees over MPI, without MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

LIMIT_S = 20.0
T = TypeVar("T")


class Together:
    """What the threads share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.data: list[bytes] = [b""] * size
        self.sent = 0


class Rank:
    """One of them; a Group."""

    def __init__(self, together: Together, rank: int, size: int) -> None:
        self._together = together
        self.rank, self.size = rank, size
        self.beats = 0
        self.awaited: list[str] = []

    def gather(self, data: bytes, awaited: str) -> list[memoryview]:
        self.awaited.append(awaited)
        self._together.data[self.rank] = data
        self._together.barrier.wait()
        found = [memoryview(bytearray(part)) for part in self._together.data]
        self._together.barrier.wait()
        return found

    def beat(self) -> None:
        self.beats += 1

    def may_end(self) -> AbstractContextManager[None]:
        return nullcontext()


def on_ranks(size: int, work: Callable[[Rank], T]) -> list[Any]:
    """What `work` returned, or raised, on each of `size` ranks. No rank may be left waiting."""
    together = Together(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(Rank(together, rank, size))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a rank hangs"
    assert not any(isinstance(result, threading.BrokenBarrierError) for result in results), results
    return results
