"""The counts of which epochs and history are made: sums since the mount began, as one vector. Pure.

Differences of two such vectors say what happened between two looks.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from nopfsfs.protocol.columns import READER_WAITS, Metric
from nopfsfs.protocol.durations import BUCKETS

Counts = npt.NDArray[np.float64]  # f8[LENGTH]
TIERS = ("page_cache", "ram", "disk", "peer", "source")

_SERVER = {
    "OPENS": Metric.OPENS, "BYTES": Metric.OPENED_BYTES, "RAM": Metric.RAM_FILES, "DISK": Metric.DISK_FILES,
    "PEER": Metric.PEER_FILES, "SOURCE": Metric.SOURCE_FILES, "WAIT_NS": Metric.WAIT_NS, "WAITS": Metric.WAITS,
    "READ_ERRORS": Metric.READ_ERRORS,
}  # fmt: skip
_STAGER = {
    "SOURCE_READS": Metric.SOURCE_OPENS, "SOURCE_BYTES": Metric.SOURCE_READ_BYTES,
    "SECOND_READS": Metric.SECOND_READS, "SOURCE_ERRORS": Metric.SOURCE_ERRORS,
}  # fmt: skip
_OF_SERVERS = np.array([*_SERVER.values(), *range(READER_WAITS, READER_WAITS + BUCKETS)])
_OF_STAGER = np.array([*_STAGER.values()])


class Count(IntEnum):
    """Places in the vector. The durations of READs that waited follow: see `waits`."""

    OPENS = 0
    BYTES = 1  # of what was opened
    RAM = 2  # files by the tier that answered; page_cache: what is left of the opens
    DISK = 3
    PEER = 4
    SOURCE = 5
    WAIT_NS = 6
    WAITS = 7
    READ_ERRORS = 8
    SOURCE_READS = 9 + BUCKETS  # opens of files of the source by the stager
    SOURCE_BYTES = 10 + BUCKETS
    SECOND_READS = 11 + BUCKETS
    SOURCE_ERRORS = 12 + BUCKETS
    PREDICTED = 13 + BUCKETS


LENGTH = 14 + BUCKETS


def counts(server: npt.NDArray[np.int64], stager: npt.NDArray[np.int64], predicted: int) -> Counts:
    """The vector, from the counters of servers and stager, i64[METRICS] each, and the opens that were foreseen."""
    return np.concatenate([server[_OF_SERVERS], stager[_OF_STAGER], [predicted]]).astype(np.float64)


def waits(found: Counts) -> list[float]:
    """The READs that waited, by bucket of `protocol/durations.py`."""
    some: list[float] = found[Count.READ_ERRORS + 1 : Count.SOURCE_READS].tolist()
    return some


def by_tier(found: Counts) -> dict[str, float]:
    """Files by the tier that served them, as `status_record.served` counts them."""
    asked = found[Count.RAM : Count.SOURCE + 1].tolist()
    return dict(zip(TIERS, (max(0.0, float(found[Count.OPENS]) - sum(asked)), *asked), strict=True))
