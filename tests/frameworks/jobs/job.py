"""What all jobs share: their settings, and what they read, counted and compared with the source."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
MOUNT, SOURCE = SETTINGS["mount"], SETTINGS["source"]
EPOCHS: int = SETTINGS["epochs"]
SEED: int = SETTINGS.get("seed", 0)
WORKERS: int = SETTINGS.get("workers", 0)
BATCH: int = SETTINGS.get("batch", 16)
TRAIN = os.path.join(MOUNT, "train")
VAL = os.path.join(MOUNT, "val")
WARM_UP = 4  # steps
WARM_UP_S = 30.0
_COUNT = os.open(SETTINGS["count"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # a byte for each open, of all processes
_wrong = 0


def read(path: str | os.PathLike[str]) -> bytes:
    """A file of the mount. Raises AssertionError where it is not what it is at the source."""
    count(1)
    with open(path, "rb") as file:
        data = file.read()
    with open(os.path.join(SOURCE, os.path.relpath(path, MOUNT)), "rb") as file:
        assert data == file.read(), f"{path}: wrong bytes"
    return data


def count(opens: int) -> None:
    """Files of the mount were opened without `read`."""
    os.write(_COUNT, bytes(opens))


def raw(path: str) -> bytes:
    """A file, of the source."""
    with open(path, "rb") as file:
        return file.read()


def files(root: str) -> list[str]:
    """All files below a directory, sorted by path."""
    return sorted(os.path.join(at, name) for at, _, names in os.walk(root) for name in names)


def step(number: int, dataset: str = "train") -> None:
    """What a training does between two batches. Where the test says so, the first steps take long, as those do in
    which kernels are compiled and chosen: until the plan of that data set, "val" or another, is found, but not for
    ever."""
    if not SETTINGS.get("warm_up") or number >= WARM_UP:
        return
    deadline = time.monotonic() + WARM_UP_S / WARM_UP
    while time.monotonic() < deadline:
        shown = subprocess.run(
            [sys.executable, "-m", "nopfsfs.cli.nopfs", "plan", MOUNT, "--json"], capture_output=True, check=True
        )
        plans = json.loads(shown.stdout)["plans"]
        if any(plan["state"] == "locked" and (plan["dataset"] == "val") == (dataset == "val") for plan in plans):
            return
        time.sleep(0.2)


class Pixels:
    """Samples as the framework gave them, in whatever order."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: Counter[bytes] = Counter()

    def add(self, samples: Iterable[Any]) -> None:
        """A batch: arrays or bytes."""
        for sample in samples:
            self.total += 1
            self._seen[_digest(sample)] += 1

    def check(self, epochs: int | None, source: Iterable[Any]) -> None:
        """All are those of the source, each once an epoch; `epochs` None: however often."""
        global _wrong
        right = Counter(map(_digest, source))
        if epochs is None:
            _wrong += len(self._seen.keys() - right.keys())
        else:
            expected = Counter({digest: epochs * times for digest, times in right.items()})
            _wrong += ((self._seen - expected) + (expected - self._seen)).total()


def _digest(sample: Any) -> bytes:
    data = sample.encode() if isinstance(sample, str) else sample
    return hashlib.blake2b(data if isinstance(data, bytes) else data.tobytes(), digest_size=16).digest()


def say(exact: bool = True) -> None:
    """The last word of a job: how many files of the mount it has opened (`exact`, or at least), and how many samples
    were not what they are at the source."""
    opens = os.fstat(_COUNT).st_size
    print(json.dumps({"read": opens, "exact": exact, "wrong": _wrong}), flush=True)
