"""What it costs to wake a thread: the floor under every request to a FUSE daemon and its answer.

On a virtual machine, waking a processor that sleeps can cost ten times what handing one over does. The benchmarks of
cached reads that answer each open are ruled by that, with any daemon; those confined to one processor are not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from bench_entry import Entry, median_entry

ROUNDS = 9
TIMES = 2000  # there and back, in each


def entries() -> Iterator[Entry]:
    """wake/{apart,together}_us: a byte from one thread to another and back, on two processors, and on one."""
    allowed = sorted(os.sched_getaffinity(0))
    for name, other in {"together": allowed[0], "apart": allowed[-1]}.items():
        yield median_entry(f"wake/{name}_us", "us", [1e6 * there_and_back(allowed[0], other) for _ in range(ROUNDS)])


def there_and_back(here: int, there: int) -> float:
    """Seconds, on average."""
    ours, theirs = os.pipe(), os.pipe()
    before = os.sched_getaffinity(0)

    def answer() -> None:
        try:
            os.sched_setaffinity(0, {there})
            while os.read(ours[0], 1):
                os.write(theirs[1], b"x")
        finally:
            os.close(theirs[1])  # so that nobody waits for this thread, however it ends

    other = threading.Thread(target=answer, daemon=True)
    other.start()
    try:
        os.sched_setaffinity(0, {here})
        began = time.perf_counter()
        for _ in range(TIMES):
            os.write(ours[1], b"x")
            os.read(theirs[0], 1)
        return (time.perf_counter() - began) / TIMES
    finally:
        os.sched_setaffinity(0, before)
        os.close(ours[1])
        other.join()
        os.close(ours[0])
        os.close(theirs[0])
