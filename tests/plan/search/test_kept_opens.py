"""Kept opens are a bounded deque of tuples, but for their memory."""

from __future__ import annotations

from collections import deque
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.plan.search import kept_opens
from nopfsfs.plan.search.kept_opens import KeptOpens

NUMBERS = st.integers(0, 2**32 - 1)


@given(st.lists(st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS, st.integers(0, 2**40)))), st.integers(1, 9))
def test_they_are_as_a_deque(steps: list[tuple[int, int, int] | None], most: int) -> None:
    """None: forget the oldest one."""
    with patch.object(kept_opens, "_SLACK", 3):
        kept, same = KeptOpens(most=most), deque[tuple[int, int, int]](maxlen=most)
        for step in steps:
            if step is not None:
                kept.append(step)
                same.append(step)
            elif same:
                assert kept.popleft() == same.popleft()
            assert (len(kept), list(kept), list(reversed(kept))) == (len(same), list(same), list(reversed(same)))
            assert not same or kept.oldest == same[0]
        assert list(KeptOpens(same, most=2)) == list(same)[-2:]


def test_of_none_there_is_no_oldest() -> None:
    kept = KeptOpens([(1, 2, 3)], most=4)
    assert kept.popleft() == (1, 2, 3)
    with pytest.raises(IndexError):
        kept.popleft()
