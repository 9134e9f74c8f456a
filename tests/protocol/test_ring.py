"""Events arrive once, in order, or are counted as lost; those of several rings in the order of time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.protocol import ring as module
from nopfsfs.protocol.ring import CAPACITY, Event, Events, Ring, take_all
from tests.examples import examples

Ends = tuple[int, Ring, Ring]


@pytest.fixture
def ends() -> Iterator[Ends]:
    fd = Ring.create("test")
    yield fd, Ring(fd, writable=True), Ring(fd, writable=False)
    os.close(fd)


@settings(max_examples=examples(30))
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


# ---- several rings ------------------------------------------------------------------------------------------


class Several:
    """Rings with a clock of the test's. Each event's value is its number, its row the ring; `times` by number."""

    def __init__(self, count: int) -> None:
        self.fds = [Ring.create("test") for _ in range(count)]
        self.writers = [Ring(fd, writable=True) for fd in self.fds]
        self.readers = [Ring(fd, writable=False) for fd in self.fds]
        self.now = 1000
        self.times: list[int] = []
        self.taken: list[int] = []

    def put(self, ring: int) -> None:
        self.writers[ring].put(Event.READ, ring, len(self.times))
        self.times.append(self.now)

    def take(self, most: int = CAPACITY // 2) -> list[int]:
        """Numbers of the events that `take_all` gives now."""
        before = [reader._tail for reader in self.readers]
        kinds, rows, values, _ = take_all(self.readers, most)
        assert (kinds == Event.READ).all()
        assert all(np.count_nonzero(rows == ring) <= most for ring in range(len(self.fds)))
        assert [reader._tail - at for reader, at in zip(self.readers, before, strict=True)] == [
            np.count_nonzero(rows == ring) for ring in range(len(self.fds))
        ]
        numbers: list[int] = values.tolist()
        self.taken += numbers
        return numbers


@contextmanager
def several(count: int) -> Iterator[Several]:
    rings = Several(count)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "monotonic_ns", lambda: rings.now)
            yield rings
    finally:
        for fd in rings.fds:
            os.close(fd)


steps = st.lists(st.one_of(st.sampled_from(["put 0", "put 1", "put 2", "tick"]), st.integers(1, 4)), max_size=60)


@settings(max_examples=examples(200))
@given(steps, st.integers(1, 4))
def test_events_of_several_rings_come_once_each_in_the_order_of_time(steps: list[str | int], most: int) -> None:
    """An integer among the steps: take so many of each ring."""
    with several(3) as rings:
        for step in steps:
            if step == "tick":
                rings.now += 1
            elif isinstance(step, int):
                rings.take(step)
            else:
                rings.put(int(step[4:]))
        rings.now += 1
        while any(reader.pending() for reader in rings.readers):
            assert rings.take(most), "no progress"
        times = [rings.times[number] for number in rings.taken]
        assert times == sorted(times), "also from one look to the next"
        assert sorted(rings.taken) == list(range(len(rings.times)))
        assert [reader.lost for reader in rings.readers] == [0, 0, 0]


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 2), max_size=20), st.integers(1, 5))
def test_one_ring_is_taken_as_it_is(ticks: list[int], most: int) -> None:
    def lists(events: Events) -> list[list[int]]:
        return [column.tolist() for column in events]

    with several(1) as rings:
        for tick in ticks:
            rings.now += tick
            rings.put(0)
        again = Ring(rings.fds[0], writable=False)
        while again.pending():
            assert lists(take_all(rings.readers, most)[:3]) == lists(again.take(most))
        assert rings.readers[0].pending() == 0


def test_what_is_put_at_the_moment_of_a_look_waits_for_the_next() -> None:
    """Another ring, looked at before, may get something of the same moment that comes first."""
    with several(2) as rings:
        rings.put(1)
        assert rings.take() == []
        rings.put(0)
        rings.now += 1
        assert rings.take() == [1, 0]


def test_a_full_look_at_one_ring_holds_back_what_is_later_in_the_others() -> None:
    with several(2) as rings:
        for ring in (0, 0, 1, 0, 1):
            rings.put(ring)
            rings.now += 1
        assert [rings.take(2) for _ in range(3)] == [[0, 1], [2, 3, 4], []]


def test_of_a_ring_that_was_too_slow_the_newest_come_in_order_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 8)
    with several(2) as rings:
        for number in range(20):
            rings.put(number % 10 == 0)
            rings.now += 1
        assert take_all(rings.readers, 10)[2].tolist() == [0, 10, 16, 17, 18, 19]
        assert [reader.lost for reader in rings.readers] == [14, 0]
