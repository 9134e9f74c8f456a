"""Which files are open: counts, and closes that are never heard of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.policy.open_files import FORGOTTEN_AFTER, OpenFiles

ROWS = st.integers(0, 5)


@given(st.lists(st.tuples(st.sampled_from(["open", "read", "close"]), ROWS), max_size=200))
def test_counts(events: list[tuple[str, int]]) -> None:
    opened, counts = OpenFiles(), Counter[int]()
    for what, row in events:
        if what == "open":
            opened.open(row)
            counts[row] += 1
        elif what == "read":
            opened.read(row)
        else:
            assert opened.close(row) == (counts[row] <= 1)
            counts[row] = max(0, counts[row] - 1)
        assert not opened.forget()
        assert {r for r in range(6) if r in opened} == {r for r, count in counts.items() if count}


def others(opened: OpenFiles, count: int) -> list[int]:
    gone = []
    for number in range(count):
        opened.open(100 + number % 7)
        assert opened.close(100 + number % 7)
        gone += opened.forget()
    return gone


def test_a_close_that_is_never_heard_of() -> None:
    opened = OpenFiles()
    opened.open(1)
    opened.open(1)
    assert others(opened, FORGOTTEN_AFTER - 1) == []
    assert others(opened, FORGOTTEN_AFTER + 3) == [1]
    assert 1 not in opened
    opened.read(2)
    assert 2 not in opened, "nobody was known to have it open"
    opened.read(1)
    assert 1 in opened, "it was open after all"
    assert opened.close(1)
    opened.read(1)
    assert 1 not in opened


def test_who_reads_is_not_forgotten() -> None:
    opened = OpenFiles()
    opened.open(1)
    for _ in range(20):
        assert others(opened, FORGOTTEN_AFTER // 2) == []
        opened.read(1)
    assert others(opened, 3 * FORGOTTEN_AFTER) == [1]


def test_a_close_that_is_never_heard_of_though_others_open_and_close_it() -> None:
    opened = OpenFiles()
    opened.open(1)
    closed = []
    for _ in range(FORGOTTEN_AFTER // 100 + 2):
        opened.open(1)
        opened.read(1)
        gone = others(opened, 50)
        closed.append(opened.close(1))
        gone += others(opened, 50)
        closed[-1] |= bool(gone)
    assert not any(closed[: FORGOTTEN_AFTER // 101])
    assert closed[-1]
    assert 1 not in opened


def test_who_has_two_open_keeps_them_when_a_third_is_forgotten() -> None:
    opened = OpenFiles()
    opened.open(1)
    others(opened, FORGOTTEN_AFTER // 2)
    opened.open(1)
    opened.open(1)
    opened.close(1)
    opened.open(1)
    assert others(opened, FORGOTTEN_AFTER) == []
    assert not opened.close(1)
    assert opened.close(1)


def test_what_is_kept_for_it_is_bounded() -> None:
    opened = OpenFiles()
    for _ in range(30 * FORGOTTEN_AFTER):
        opened.open(1)
        opened.close(1)
        opened.forget()
    assert len(opened) == 0
    assert len(opened._queue) <= FORGOTTEN_AFTER + 2
    assert len(opened._forgotten) == 0
