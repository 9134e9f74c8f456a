"""The metrics of a mount's requests at its source, and their limit, over the mount's control socket (`nopfs tune`)."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from nopfsfs.control.client import Record
from nopfsfs.control.find_mount import locate_living
from nopfsfs.policy.limit_policy import SourceSample

TRIES = 50  # of a record whose sums the stager was changing


class MountControl:
    """A control plane's view of a mount. Safe in several threads: each request has a connection of its own."""

    def __init__(self, mountpoint: Path) -> None:
        self._located = locate_living(os.fspath(mountpoint), os.environ)

    def tune(self, **request: Any) -> Record:
        """The record of `nopfs tune`, after what is asked was done."""
        return self._located.call("tune", **request)

    def set_limit(self, limit: int | None) -> None:
        """Have so many requests at the source; None: as the mount's own tuner decides."""
        self.tune(concurrency="auto" if limit is None else limit)

    def sample(self) -> SourceSample:
        """The metrics now, for a policy. Young requests are not told apart, and the lead is left out: the reader takes
        all it gets."""
        record = self._complete()
        ended = tuple(record["ended"])
        log2_ns = tuple(_sum_log2_ns(*pair) for pair in zip(ended, record["mean_seconds"], strict=True))
        return SourceSample(
            time.monotonic(), time.time(), ended, log2_ns, ended, log2_ns, record["under_way_seconds"],
            record["waited_seconds"], record["under_way"], record["errors"],
            disciplined=record["disciplined"],
        )  # fmt: skip

    def ended(self) -> int:
        """Requests at the source that ended well."""
        return sum(self._complete()["ended"])

    def _complete(self) -> Record:
        for _ in range(TRIES):
            record = self.tune()
            if record["ended"] is not None:
                return record
        raise RuntimeError(f"{self._located.path}: no metrics")


def _sum_log2_ns(ended: int, mean_seconds: float | None) -> float:
    """The sum of base-2 logarithms of so many durations in nanoseconds, of their geometric mean."""
    return ended * math.log2(mean_seconds * 1e9) if mean_seconds else 0.0
