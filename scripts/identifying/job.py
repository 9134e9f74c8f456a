"""A job on a real mount: reader processes that open files at set times, and never wait for anything else.

python job.py FILE    a JSON file: {"root": "...", "names": [...], "pause": SECONDS, "readers": [[[N, NAME], ...], ...]}

Each reader is a process of its own, begun just before its first open: it opens file number NAME N pauses after the
job's start, or at once if that time is over. Standard library only, so that a fork is quick.
"""

from __future__ import annotations

import json
import os
import sys
import time

START_S = 1.0  # from here to the first open: a training script takes longer to import torch
FORK_S = 0.02  # before a reader's first open


def main(path: str) -> int:
    with open(path) as file:
        said = json.load(file)
    names = [os.path.join(said["root"], name) for name in said["names"]]
    pause, start = said["pause"], time.monotonic() + START_S
    for opens in sorted(said["readers"], key=lambda opens: opens[0][0]):
        wait_until(start + pause * opens[0][0] - FORK_S)
        if os.fork() == 0:
            status = 1
            try:
                read(names, opens, pause, start)
                status = 0
            finally:
                os._exit(status)
    return int(any(os.wait()[1] for _ in said["readers"]))


def read(names: list[str], opens: list[list[int]], pause: float, start: float) -> None:
    for number, name in opens:
        wait_until(start + pause * number)
        file = os.open(names[name], os.O_RDONLY)
        while os.read(file, 1 << 16):
            pass
        os.close(file)


def wait_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
