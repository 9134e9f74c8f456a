"""A job on a real mount: reader processes that open files at set times, and wait for nothing but each other.

python job.py FILE    a JSON file: {"root": "...", "names": [...], "pause": SECONDS, "apart": N,
                      "readers": [[[N, NAME], ...], ...]}

Each reader is a process of its own, begun just before its first open: it opens file number NAME N pauses after the
job's start, or at once if that time is over. As the ranks of a training job wait for each other after each step,
none makes open N before all opens up to N less `apart` were made: the system may not run a process for a while. A
reader is not begun before that either, so that on a slow machine no hundred of them look at each other all the time.
Standard library only, so that a fork is quick.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time

START_S = 1.0  # from here to the first open: a training script takes longer to import torch
FORK_S = 0.02  # before a reader's first open
LAST = 1 << 62  # of a reader that has made all of its opens
WAIT_S, LIMIT_S = 0.002, 30.0  # between looks at where the others are, and before a reader gives up


def main(path: str) -> int:
    with open(path) as file:
        said = json.load(file)
    names = [os.path.join(said["root"], name) for name in said["names"]]
    pause, start = said["pause"], time.monotonic() + START_S
    readers = sorted(said["readers"], key=lambda opens: opens[0][0])
    due = memoryview(mmap.mmap(-1, 8 * len(readers))).cast("q")  # by reader: the number of its next open
    for reader, opens in enumerate(readers):
        due[reader] = opens[0][0]

    def run(reader: int) -> None:
        status, number = 1, 0
        try:
            for number, name in readers[reader]:
                due[reader] = number
                wait_until(start + pause * number)
                wait_for_others(due, number - said["apart"])
                read(names[name])
            due[reader] = LAST
            status = 0
        except Exception as error:
            print(f"open {number}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    begun = 0
    try:
        for reader, opens in enumerate(readers):
            wait_until(start + pause * opens[0][0] - FORK_S)
            wait_for_others(due, opens[0][0] - said["apart"])
            if os.fork() == 0:
                run(reader)
            begun += 1
    finally:
        failed = [os.wait()[1] for _ in range(begun)]
    return int(any(failed))


def read(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    while os.read(file, 1 << 16):
        pass
    os.close(file)


def wait_for_others(due: memoryview[int], number: int) -> None:
    """Until all opens up to this one were made."""
    limit = time.monotonic() + LIMIT_S
    while min(due) < number:
        if time.monotonic() > limit:
            raise TimeoutError(f"no open {number} within {LIMIT_S:g} s")
        time.sleep(WAIT_S)


def wait_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
