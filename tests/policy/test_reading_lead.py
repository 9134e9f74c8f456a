"""Seconds of reading that are staged ahead, from positions and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.policy.reading_lead import KNOWN_S, ReadingLead


def read(lead: ReadingLead, begin: float, seconds: float, pace: float, ahead: int, start: int = 0) -> float | None:
    """A reader of that pace from stream position `start` on, looked at eight times a second."""
    found = None
    for tick in range(int(seconds * 8) + 1):
        found = lead.observe(begin + tick / 8, 1, start + int(pace * tick / 8), ahead)
    return found


def test_a_steady_reader_has_a_lead_of_what_is_ahead_over_its_pace() -> None:
    assert read(ReadingLead(), 0.0, 10.0, 100.0, 500) == pytest.approx(5.0, rel=0.1)


def test_before_the_reader_has_read_for_a_while_nothing_is_known() -> None:
    lead = ReadingLead()
    assert read(lead, 0.0, 60.0, 0.0, 500) is None
    assert read(lead, 60.0, KNOWN_S / 2, 100.0, 500) is None
    assert read(lead, 60.0 + KNOWN_S / 2, 10.0, 100.0, 500, start=100) == pytest.approx(5.0, rel=0.2)


def test_a_reader_that_pauses_has_ever_more_time_and_one_that_is_starved_has_none() -> None:
    lead = ReadingLead()
    before = read(lead, 0.0, 10.0, 100.0, 500)
    paused = read(lead, 10.0, 20.0, 0.0, 500, start=1000)
    assert before is not None
    assert paused is not None
    assert paused > 5 * before
    assert read(lead, 30.0, 1.0, 0.0, 0, start=1000) == 0.0


def test_another_stream_is_another_reader() -> None:
    lead = ReadingLead()
    read(lead, 0.0, 10.0, 100.0, 500)
    assert lead.observe(10.5, 2, 0, 500) is None


@given(
    st.lists(
        st.tuples(st.floats(-1, 10), st.integers(0, 2), st.integers(0, 10_000), st.integers(-5, 10_000)), max_size=30
    )
)
def test_whatever_is_seen_a_lead_is_none_or_not_negative(seen: list[tuple[float, int, int, int]]) -> None:
    lead, now = ReadingLead(), 0.0
    for passed, generation, position, ahead in seen:
        now += passed
        found = lead.observe(now, generation, position, ahead)
        assert found is None or found >= 0
