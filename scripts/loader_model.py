"""A model of torch's DataLoader: in which order W workers with prefetch factor P open the samples of batches.

Batch k goes to worker k mod W; W * P batches are asked for at once, each batch consumed asks for one more. Workers run
at random speeds; batches are consumed in order. Without workers the program itself reads in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Loader:
    workers: int = 2
    prefetch: int = 2
    batch: int = 8
    drop_last: bool = False
    stop_after: int | None = None  # batches, then `break`

    @property
    def inflight(self) -> int:
        """Samples that may be asked for before the first of them is consumed."""
        return self.workers * self.prefetch * self.batch + self.batch

    def reads(self, order: Sequence[int], rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """The opens of one rank in one epoch: (sample, worker)."""
        batches = [list(order[i : i + self.batch]) for i in range(0, len(order), self.batch)]
        if self.drop_last and batches and len(batches[-1]) < self.batch:
            batches.pop()
        if self.workers == 0:
            yield from ((sample, 0) for batch in batches[: self.stop_after] for sample in batch)
            return
        queues: list[deque[tuple[int, list[int]]]] = [deque() for _ in range(self.workers)]
        asked = consumed = 0
        done: set[int] = set()
        while consumed < len(batches):
            while asked < min(len(batches), consumed + self.workers * self.prefetch):
                queues[asked % self.workers].append((asked, batches[asked][:]))
                asked += 1
            busy = [worker for worker, queue in enumerate(queues) if queue]
            worker = busy[rng.integers(len(busy))]
            number, left = queues[worker][0]
            yield left.pop(0), worker
            if not left:
                queues[worker].popleft()
                done.add(number)
            while consumed in done:
                consumed += 1
                if self.stop_after is not None and consumed >= self.stop_after:
                    return

    def opens(self, order: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
        """The samples alone."""
        return (sample for sample, _ in self.reads(order, rng))

    def ranks(self, orders: Sequence[Sequence[int]], rng: np.random.Generator) -> list[int]:
        """The opens of several ranks on one node, at about the same speed."""
        running = [self.opens(order, rng) for order in orders]
        taken: list[int] = []
        while running:
            stream = running[rng.integers(len(running))]
            try:
                taken.append(next(stream))
            except StopIteration:
                running.remove(stream)
        return taken
