"""Counters of durations: how many took up to half a millisecond, twice as long, and so on. One addition a duration.

Bucket 0 counts durations below 2^19 ns, each further bucket those below twice the bound of the bucket before, and the
last bucket all others.
"""

from __future__ import annotations

from collections.abc import Sequence

_LEAST_BITS = 19  # 2^19 ns: half a millisecond
BUCKETS = 16
# Upper bounds of all buckets but the last, in seconds: 0.52 ms to 8.6 s.
BOUNDS_S = tuple((1 << (_LEAST_BITS + number)) / 1e9 for number in range(BUCKETS - 1))


def bucket_of(nanoseconds: int) -> int:
    """The bucket that counts a duration."""
    return min(max(0, nanoseconds.bit_length() - _LEAST_BITS), BUCKETS - 1)


def quantile_s(counts: Sequence[float], share: float) -> float | None:
    """The duration in seconds that a share (0 to 1) of those counted did not exceed: within a bucket by straight line,
    as Prometheus does. `counts`: one for each bucket. None: nothing was counted. At most the last bound."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below = share * total, 0.0
    for number, count in enumerate(counts[:-1]):
        if count > 0 and below + count >= wanted:
            first = BOUNDS_S[number - 1] if number else 0.0
            return first + (BOUNDS_S[number] - first) * (wanted - below) / count
        below += count
    return BOUNDS_S[-1]


def most_s(counts: Sequence[float]) -> float | None:
    """The bound in seconds of the longest duration that was counted, at most the last bound; None: there is none."""
    found = [number for number, count in enumerate(counts) if count > 0]
    return BOUNDS_S[min(found[-1], BUCKETS - 2)] if found else None
