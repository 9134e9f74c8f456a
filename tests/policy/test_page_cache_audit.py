"""Which rows are looked at, and what is made of what is found."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.policy.page_cache_audit import AHEAD_MOST, CHUNK, ROWS_LEAST, ROWS_MOST, SHARE_OF, PageCacheAudit
from nopfsfs.policy.push_scheduler import PUSHES_OUTSTANDING, Paged

N = 5000


def residence(held: int = N, n: int = N) -> PageCacheAudit:
    paged = np.zeros(n, np.uint8)
    paged[:held] = Paged.WHOLE
    return PageCacheAudit(np.full(n, 10, np.int64), paged)


def in_order(start: int, count: int) -> np.ndarray:
    return np.arange(start, min(start + count, N))


def nothing(start: int, count: int) -> np.ndarray:
    return np.zeros(0, np.int64)


def test_while_nothing_is_missing_few_rows_are_looked_at_and_not_the_same() -> None:
    r = residence()
    looks = [r.choose(0, in_order) for _ in range(10)]
    assert [len(look) for look in looks] == [ROWS_LEAST] * 10
    assert len({row for look in looks for row in look}) > 8 * ROWS_LEAST
    assert max(row for look in looks for row in look) > N // 2


def test_only_what_is_believed_to_be_there_is_looked_at() -> None:
    assert residence(0).choose(0, in_order) == []
    assert sorted(residence(5).choose(0, in_order)) == list(range(5))


def test_a_few_rows_of_many_are_found_now_and_then() -> None:
    r = residence(0, 20 * CHUNK)
    r._paged[12 * CHUNK : 12 * CHUNK + 100] = Paged.WHOLE
    assert any(r.choose(0, nothing) for _ in range(20))


def test_once_rows_are_found_gone_more_are_looked_at_those_that_come_next() -> None:
    r = residence()
    counts = []
    for _ in range(8):
        r.lacking(0, 0)
        rows = r.choose(100, in_order)
        counts.append(len(rows))
    assert counts[0] > ROWS_LEAST
    assert ROWS_MOST - ROWS_LEAST <= counts[-1] <= ROWS_MOST, "there is a bound"
    first = 100 + PUSHES_OUTSTANDING
    r = residence()
    r.lost(1)
    assert r.choose(100, in_order)[ROWS_LEAST:] == list(range(first, first + ROWS_LEAST))
    r.lost(1)
    again = r.choose(100, in_order)[ROWS_LEAST:]
    assert set(again) <= set(range(first + ROWS_LEAST, first + 4 * ROWS_LEAST)), "further on, while the reader stands"
    for _ in range(8):
        rows = r.choose(100, in_order)
    assert len(rows) == ROWS_LEAST, "and all is well again"


def test_when_the_reader_has_come_past_or_all_was_seen_it_begins_at_the_reader_again() -> None:
    r = residence()
    r.lost(1)
    r.choose(0, in_order)
    r.lost(1)
    start = 2000 + PUSHES_OUTSTANDING
    assert start in r.choose(2000, in_order)
    few = residence(PUSHES_OUTSTANDING + 4)
    for _ in range(2):
        few.lost(1)
        assert PUSHES_OUTSTANDING in few.choose(0, in_order)
    assert AHEAD_MOST >= ROWS_MOST


def test_the_share_is_of_bytes_and_of_late() -> None:
    r = residence()
    assert r.status() == {"measured": False, "resident_share": None, "looked_at": 0, "evicted": 0}
    for _ in range(3):
        r.present(1)
    r.lacking(2, 4)
    assert r.status() == {"measured": True, "resident_share": 0.85, "looked_at": 4, "evicted": 1}
    r.lost(2)
    for _ in range(SHARE_OF):
        r.present(1)
    assert r.status() == {"measured": True, "resident_share": 1.0, "looked_at": SHARE_OF + 4, "evicted": 3}


@pytest.mark.parametrize("before", [False, True])
def test_where_it_cannot_be_measured_nothing_is_looked_at(before: bool) -> None:
    r = residence()
    if before:
        r.present(1)
    r.refused()
    assert r.choose(0, in_order) == []
    assert r.status()["measured"] is False
