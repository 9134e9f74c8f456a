"""What all jobs share: their settings, and what they read, counted and compared with the source."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
RANK = int(os.environ.get("RANK", "0"))  # as torchrun says it
HERE = RANK in SETTINGS.get("here", [RANK])  # not on another node, which reads the source
SOURCE = SETTINGS["source"]
MOUNT = SETTINGS["mount"] if HERE else SOURCE
EPOCHS: int = SETTINGS["epochs"]
SEED: int = SETTINGS.get("seed", 0)
WORKERS: int = SETTINGS.get("workers", 0)
BATCH: int = SETTINGS.get("batch", 16)
TRAIN = os.path.join(MOUNT, "train")
VAL = os.path.join(MOUNT, "val")
DECODE_S = 0.0005  # a file
_COUNT = os.open(SETTINGS["count"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # a byte for each open, of all processes
_wrong = 0


def read(path: str | os.PathLike[str]) -> bytes:
    """A file of the mount, decoded. Raises AssertionError where it is not what it is at the source."""
    count(1)
    with open(path, "rb") as file:
        data = file.read()
    with open(os.path.join(SOURCE, os.path.relpath(path, MOUNT)), "rb") as file:
        assert data == file.read(), f"{path}: wrong bytes"
    decode()
    return data


def count(opens: int) -> None:
    """Files of the mount were opened without `read`."""
    os.write(_COUNT, bytes(opens * HERE))


def raw(path: str) -> bytes:
    """A file, of the source."""
    with open(path, "rb") as file:
        return file.read()


def files(root: str) -> list[str]:
    """All files below a directory, sorted by path."""
    return sorted(os.path.join(at, name) for at, _, names in os.walk(root) for name in names)


def decode(files: int = 1) -> None:
    """Computes for as long as decoding takes, where the test says so: jobs whose plan must be found do not only
    read."""
    until = time.perf_counter() + files * DECODE_S * SETTINGS.get("decodes", False)
    while time.perf_counter() < until:
        pass


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
    """The last word of a job: whether it counted all files of the mount that it opened (`exact`), or some of them, and
    how many samples were not what they are at the source."""
    if RANK == 0:
        print(json.dumps({"exact": exact, "wrong": _wrong}), flush=True)
    if "RANK" in os.environ:
        os._exit(0)  # gloo's destructors now and then wait for ever for the interpreter's lock
