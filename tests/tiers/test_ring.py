"""Events arrive once, in order, or are counted as lost."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.tiers.ring import CAPACITY, Event, Ring

Ends = tuple[int, Ring, Ring]


@pytest.fixture
def ends() -> Iterator[Ends]:
    fd = Ring.create("test")
    yield fd, Ring(fd, writable=True), Ring(fd, writable=False)
    os.close(fd)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(list(Event)), st.integers(0, 2**40 - 1), st.integers(0, 2**64 - 1))))
def test_events_arrive_as_they_were_put(events: list[tuple[Event, int, int]]) -> None:
    fd = Ring.create("test")
    try:
        writer, reader = Ring(fd, writable=True), Ring(fd, writable=False)
        for event in events:
            writer.put(*event)
        assert reader.pending() == len(events)
        taken = []
        while reader.pending():
            taken += [tuple(int(x) for x in event) for event in zip(*reader.take(3), strict=True)]
        assert taken == [tuple(int(x) for x in event) for event in events]
        assert reader.lost == 0
    finally:
        os.close(fd)


def _fill(writer: Ring, count: int, first: int = 0) -> None:
    for value in range(first, first + count):
        writer.put(Event.OPEN, value, value)


def test_a_reader_that_lags_loses_the_oldest_and_counts_them(ends: Ends) -> None:
    _, writer, reader = ends
    _fill(writer, CAPACITY + 100)
    seen: list[int] = []
    while reader.pending():
        kinds, rows, values = reader.take()
        assert (kinds == Event.OPEN).all()
        assert np.array_equal(rows, values.astype(np.int64)), "words of two events"
        seen += rows.tolist()
    assert seen == list(range(CAPACITY + 100 - len(seen), CAPACITY + 100)), "the newest, in order"
    assert reader.lost == CAPACITY + 100 - len(seen)


def test_an_event_that_may_be_half_overwritten_is_lost(ends: Ends) -> None:
    """When the ring is full, the writer's next event goes where the reader's oldest is, word by word."""
    _, writer, reader = ends
    _fill(writer, CAPACITY)
    _, rows, _ = reader.take(1000)
    assert rows.tolist() == list(range(1, 1000))
    assert reader.lost == 1


def test_a_new_writer_goes_on_where_the_one_before_had_ended(ends: Ends) -> None:
    fd, writer, reader = ends
    writer.put(Event.STAGED, 1)
    Ring(fd, writable=True).put(Event.STAGED, 2)
    assert reader.take()[1].tolist() == [1, 2]
