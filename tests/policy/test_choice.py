"""Where to fetch from: lanes in virtual time, whose speed the test decides."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nopfsfs.performance.defaults import DEFAULTS
from nopfsfs.policy.choice import (
    FAILED_S,
    FOREIGN_SHARE,
    HEDGE_COMING_S,
    HEDGE_LEAST_S,
    HEDGED_FEW,
    HEDGED_SHARE,
    ExpectedLanes,
    FetchChoice,
    Rerouted,
)
from nopfsfs.policy.fetch_lane import SILENT_MOST, SILENT_S, WINDOW_S, FetchLane, LaneTimes, RecentCount
from tests.examples import examples

KB = 1 << 10
EXPECTED = ExpectedLanes.of(DEFAULTS)


class Fetch(NamedTuple):
    at: float
    lane: FetchLane


class World:
    """Readers that each fetch one file after the other: a copy on disk 1, or a file of node 7, or both, as `usual`
    says. `seconds`: of a request now, by lane; infinite: it never ends, but for its limit."""

    def __init__(
        self, usual: str, readers: int, size: int = 100 * KB, within: float | None = None, seed: int = 0
    ) -> None:  # fmt: skip
        self.now = 1000.0
        self.began = self.now
        self.counted: list[Rerouted] = []
        self.choice = FetchChoice(EXPECTED, lambda: self.now, self.counted.append)
        self.disk, self.peer, self.source = self.choice.disk(1), self.choice.peer(7), self.choice.source
        self.usual = [{"disk": self.disk, "peer": self.peer}[name] for name in usual.split()]
        self.foreign = self.usual[-1] is self.peer
        self.size, self.within = size, within
        self.random = random.Random(seed)
        self.seconds: dict[FetchLane, Callable[[], float]] = {}
        self.fetches: list[Fetch] = []
        self.think = 0.0  # seconds from one fetch to the next
        self.stall = 0.0  # what ends before then ends then
        self._ends: list[tuple[float, int, FetchLane | None, float]] = []
        self._count = 0
        for _ in range(readers):
            self._at(self.now, None, 0.0)

    def of(self, lane: FetchLane, mean: float, deviation: float = 0.0) -> None:
        self.seconds[lane] = lambda: mean * math.exp(self.random.gauss(0.0, deviation) if deviation else 0.0)

    def read_once(self) -> None:
        """All files came from each lane some time ago."""
        for lane, seconds in self.seconds.items():
            for _ in range(40):
                lane.see(self.size, seconds(), self.now)

    def _at(self, when: float, lane: FetchLane | None, took: float) -> None:
        self._count += 1
        heapq.heappush(self._ends, (when, self._count, lane, took))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._ends and self._ends[0][0] <= end:
            when, _, lane, took = heapq.heappop(self._ends)
            self.now = max(self.now, when, min(self.stall, end))
            if lane is not None:
                self.choice.end(lane, self.size, took)
                if self.think:
                    self._at(self.now + self.think, None, 0.0)
                    continue
            self.fetch()
        self.now = end

    def fetch(self) -> None:
        lane = self.choice.choose(self.usual, self.size, self.within, foreign=self.foreign)
        self.choice.begin(lane, self.size)
        self.fetches.append(Fetch(self.now, lane))
        took = self.seconds[lane]()
        if math.isfinite(took):
            took = max(took, self.stall - self.now)
            self._at(self.now + took, lane, took)

    def share(self, lane: FetchLane, since: float) -> float:
        found = [fetch.lane is lane for fetch in self.fetches if fetch.at >= since]
        return sum(found) / max(1, len(found))


# ---- a disk -------------------------------------------------------------------------------------------------


@example(source=0.0296, fast=0.0003, times=48.0, readers=1, size=4 * KB, seed=1)  # each read takes over a second
@settings(max_examples=examples(60), deadline=None)
@given(
    source=st.floats(0.002, 0.03), fast=st.floats(0.0002, 0.002), times=st.floats(20, 60),
    readers=st.integers(1, 24), size=st.sampled_from([4 * KB, 100 * KB, 1 << 20]), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_a_disk_twenty_times_slower_than_the_source_is_left_within_ten_seconds_and_used_again_within_thirty(
    source: float, fast: float, times: float, readers: int, size: int, seed: int
) -> None:
    w = World("disk", readers, size, seed=seed)
    w.think = 0.04 * readers  # 25 files a second at most, so that this test ends soon
    w.of(w.source, source, 0.4)
    w.of(w.disk, fast, 0.4)
    w.read_once()
    w.run(10)
    assert not w.counted, "a healthy disk"
    w.of(w.disk, times * source, 0.4)
    w.run(10)
    since = w.now
    w.run(15)
    assert w.share(w.disk, since) <= 0.05
    w.of(w.disk, fast, 0.4)
    w.run(30)
    since = w.now
    w.run(5)
    assert w.share(w.disk, since) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    usual=st.sampled_from(["disk", "peer", "disk peer"]), source=st.floats(0.001, 0.1), ratio=st.floats(0.01, 0.8),
    readers=st.integers(1, 32), within=st.sampled_from([None, 0.0, 10.0]), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_where_nothing_is_slow_nothing_leaves_the_usual_order(
    usual: str, source: float, ratio: float, readers: int, within: float | None, seed: int
) -> None:
    w = World(usual, readers, within=within, seed=seed)
    w.think = 0.03 * readers
    for lane in (w.disk, w.peer, w.source):
        w.of(lane, ratio * source if lane is w.usual[0] else source, 0.4)
    w.read_once()
    for _ in range(3):
        w.run(3)
        w.stall = w.now + 0.4  # the machine stands still
    w.run(5)
    assert not w.counted
    assert all(fetch.lane is w.usual[0] for fetch in w.fetches)


def test_a_disk_slower_than_the_source_that_nobody_would_notice_is_read() -> None:
    w = World("disk", 4)
    w.of(w.disk, 0.003)
    w.of(w.source, 0.0001)
    w.choice.source.see(w.size, 0.0001, w.now)
    w.run(10)
    assert not w.counted


def test_a_prefetch_that_comes_early_enough_is_read_from_a_slow_disk() -> None:
    w = World("disk", 8, within=10.0)
    w.of(w.source, 0.005)
    w.of(w.disk, 0.5)
    w.run(20)
    assert not w.counted
    w.within = 0.5  # it does not come early enough any more
    w.run(5)
    assert set(w.counted) == {Rerouted.SLOW}
    assert w.share(w.disk, w.now - 3) <= 0.05


def test_a_lane_changes_places_by_a_factor_and_after_a_second() -> None:
    w = World("disk", 1)
    for lane, took in ((w.source, 0.02), (w.disk, 0.024)):
        for _ in range(40):
            lane.see(w.size, took, w.now)
    for _ in range(30):
        w.now += 0.1
        assert w.choice.choose([w.disk], w.size, None) is w.disk, "not slower by the factor"
    for _ in range(200):
        w.disk.see(w.size, 0.03, w.now)
    assert w.choice.choose([w.disk], w.size, None) is w.disk, "it might be a moment"
    w.now += 1.1
    assert w.choice.choose([w.disk], w.size, None) is w.source
    for _ in range(200):
        w.disk.see(w.size, 0.022, w.now)
    assert w.choice.choose([w.disk], w.size, None) is w.source, "not as fast yet"
    for _ in range(200):
        w.disk.see(w.size, 0.019, w.now)
    assert w.choice.choose([w.disk], w.size, None) is w.disk


def test_the_source_is_no_way_out_while_it_hangs_or_fails() -> None:
    w = World("disk", 8)
    w.of(w.source, 0.005)
    w.of(w.disk, 0.2)
    w.run(10)
    assert w.share(w.disk, w.now - 3) <= 0.05
    w.seconds[w.source] = lambda: math.inf
    w.run(0.5)  # all readers hang there
    for _ in range(20):
        w.run(0.1)
        assert w.choice.choose([w.disk], w.size, None) is w.disk

    w = World("disk", 8)
    w.of(w.source, 0.005)
    w.of(w.disk, 0.2)
    w.run(10)
    w.choice.source_failed()
    since = w.now
    w.run(9)
    assert w.share(w.disk, since) == 1


def test_a_disk_that_hangs_is_left() -> None:
    w = World("disk", 1)
    w.of(w.source, 0.005)
    w.seconds[w.disk] = lambda: math.inf
    w.fetch()
    for _ in range(40):
        w.now += 0.1
        last = w.choice.choose([w.disk], w.size, None)
    assert last is w.source


# ---- another node -------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(0.001, 0.5)), min_size=1, max_size=6),
    readers=st.integers(1, 16), demands=st.booleans(), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_of_a_slow_node_so_few_files_are_read_from_the_source(
    changes: list[tuple[float, float]], readers: int, demands: bool, seed: int
) -> None:
    w = World("peer", readers, within=None if demands else 0.0, seed=seed)
    w.think = 0.02
    for peer, source in changes:
        w.of(w.peer, peer, 0.5)
        w.of(w.source, source, 0.5)
        w.run(7)
    for number, fetch in enumerate(w.fetches):
        if fetch.lane is w.source:
            recent = [one for one in w.fetches[: number + 1] if int(one.at) > int(fetch.at) - WINDOW_S]
            assert sum(one.lane is w.source for one in recent) <= FOREIGN_SHARE * len(recent)


@pytest.mark.parametrize("within", [None, 10.0])
def test_a_node_that_is_down_is_tried_now_and_then_and_used_when_it_answers(within: float | None) -> None:
    w = World("peer", 4, within=within)
    w.think = 0.02
    w.of(w.source, 0.005)
    w.of(w.peer, 0.002)
    w.run(10)
    assert not w.counted
    for _ in range(SILENT_MOST):
        assert not w.peer.down
        assert w.choice.hedges(w.peer)
    w.now += SILENT_S
    w.choice.hedges(w.peer, again=True)
    assert w.peer.down
    since = w.now
    w.seconds[w.peer] = lambda: 1000.0
    w.run(20)
    tries = [fetch.at for fetch in w.fetches if fetch.at >= since and fetch.lane is w.peer]
    assert 1 <= len(tries) <= 10, "those never come back: they have readers of their own"
    assert {Rerouted.DOWN, Rerouted.HEDGED} == set(w.counted)
    w.peer.answered()
    assert w.choice.choose([w.peer], w.size, within, foreign=True) is w.peer


@settings(max_examples=examples(100), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["ask", "late", "answer", "wait"]), st.floats(0, 3)), max_size=200))
def test_so_few_requests_go_on_from_the_source_while_a_node_answers(steps: list[tuple[str, float]]) -> None:
    w = World("peer", 0)
    asks, hedged = RecentCount(), RecentCount()
    for what, value in steps:
        if what == "ask":
            w.choice.begin(w.peer, KB)
            asks.add(w.now)
        elif what == "answer":
            w.peer.answered()
        elif what == "wait":
            w.now += value
        elif w.choice.hedges(w.peer) and not w.peer.down:
            hedged.add(w.now)
            assert hedged.total <= max(HEDGED_FEW, HEDGED_SHARE * asks.at(w.now))
        elif w.peer.down:
            assert w.choice.hedges(w.peer), "all go on from the source"


def test_a_node_that_pauses_is_not_down() -> None:
    """Requests of one moment are late together; the node answers before they are looked at again."""
    w = World("peer", 0)
    for _ in range(8):
        w.choice.hedges(w.peer)
    w.now += SILENT_S / 2
    w.choice.hedges(w.peer, again=True)
    w.peer.answered()
    w.now += SILENT_S
    w.choice.hedges(w.peer)
    assert not w.peer.down


def test_a_node_that_says_that_it_reads_the_file_is_not_silent() -> None:
    w = World("peer", 0)
    for _ in range(8):
        w.choice.hedges(w.peer, coming=True)
        w.now += SILENT_S
    assert not w.peer.down


@pytest.mark.parametrize("hangs", [True, False])
def test_nothing_goes_on_from_a_source_that_fails(hangs: bool) -> None:
    w = World("peer", 0)
    if hangs:
        w.choice.source_hangs(1)
    else:
        w.choice.source_failed()
    for _ in range(8):
        assert not w.choice.hedges(w.peer)
        w.now += SILENT_S
    assert w.peer.down
    assert w.choice.choose([w.peer], w.size, None, foreign=True) is w.peer, "it may answer; the source does not"
    w.now += FAILED_S + 1
    chosen = [w.choice.choose([w.peer], w.size, None, foreign=True) for _ in range(3)]
    assert chosen == [w.peer, *[w.peer if hangs else w.source] * 2], "the first is a try"
    if hangs:
        w.choice.source_hangs(-1)
        w.now += FAILED_S + 1
        assert w.choice.hedges(w.peer)


def test_an_empty_file_takes_some_time() -> None:
    lane = FetchLane(LaneTimes(0.0, 1e9, 1e9))
    lane.begin(0, 1.0)
    lane.end(0, 1.0, took=0.0)
    assert lane.eta(0, 1.0) > 0


def test_an_answer_is_late_by_what_the_node_and_the_source_usually_take() -> None:
    w = World("peer", 0)

    def late(*, coming: bool = False, sending: bool = False) -> float:
        return w.choice.hedge_after(w.peer, KB, coming=coming, sending=sending)

    for _ in range(200):
        w.peer.see(KB, 0.2, w.now)
    assert late() == HEDGE_LEAST_S, "prefetches wait for each other, demands do not"
    assert 3 * 0.2 <= late(sending=True) <= 5 * 0.2
    assert late(coming=True) == HEDGE_COMING_S
    for _ in range(50):
        w.source.see(KB, 0.3, w.now)
    assert late() == pytest.approx(0.3, rel=0.3), "what the source takes"
    assert late(coming=True) > 3 * 0.3
    for _ in range(200):
        w.peer.see(KB, 0.2, w.now, demand=True)
    assert 3 * 0.2 <= late() <= 5 * 0.2


# ---- parts --------------------------------------------------------------------------------------------------


def test_calibrated_times_are_where_lanes_begin() -> None:
    times = LaneTimes(0.01, 1e6, 1e8)
    expected = ExpectedLanes(times, LaneTimes(0.002, 1e7, 1e8), LaneTimes(0.001, math.inf, math.inf))
    found = ExpectedLanes.from_numbers({**expected.numbers(), "other": 1})
    assert (found.source, found.disk) == (expected.source, expected.disk)
    choice = FetchChoice(found, lambda: 0.0)
    assert choice.source.seconds(1_000_000) == pytest.approx(1.01)
    assert choice.disk(1).eta(0, 0.0) == pytest.approx(0.002)
    assert ExpectedLanes.from_numbers({}) == ExpectedLanes.from_numbers(EXPECTED.numbers())


def test_bytes_under_way_count_as_far_as_a_lane_is_not_used_to_them() -> None:
    lane = FetchLane(LaneTimes(0.001, 1e8, 1e8))
    assert lane.eta(1 << 20, 0.0) == pytest.approx(0.0115, rel=0.01)
    for _ in range(10):
        lane.begin(1 << 20, 0.0)
    assert lane.eta(1 << 20, 0.0) == pytest.approx(0.115, rel=0.01)
    for _ in range(10):
        lane.end(1 << 20, 0.01, took=0.01)
    lane.begin(1 << 20, 0.01)
    assert lane.eta(1 << 20, 0.01) < 0.02, "it brought ten at once"


@given(st.lists(st.floats(0, 100), max_size=60))
def test_a_recent_count_is_of_the_last_seconds(times: list[float]) -> None:
    count, seen = RecentCount(), []
    for now in sorted(times):
        count.add(now)
        seen.append(int(now))
        assert count.at(now) == sum(second > int(now) - WINDOW_S for second in seen)
