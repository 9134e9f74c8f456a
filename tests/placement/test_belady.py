"""Caches that know the future: against every way to run a small one, and the hit rates of large ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.placement.access_counts import dealt, next_readings
from nopfsfs.placement.belady import NEVER, keep
from nopfsfs.policy.belady_set import BeladySet
from nopfsfs.sim.policies import SimJob
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.training import Training
from nopfsfs.sim.training_orders import permutations
from tests.examples import examples
from tests.policy.belady import Belady

EPOCHS = 90
SAMPLES = 10_000
PUBLISHED = [
    (16, 0.02, 0.163), (16, 0.05, 0.267), (16, 0.10, 0.375), (4, 0.02, 0.079), (4, 0.05, 0.198), (4, 0.10, 0.321),
]  # fmt: skip


def next_uses(stream: list[int]) -> list[int]:
    return [stream.index(row, at + 1) if row in stream[at + 1 :] else NEVER for at, row in enumerate(stream)]


def hits(stream: list[int], room: int, size: int = 1) -> int:
    belady, found = Belady(room), 0
    for row, next_use in zip(stream, next_uses(stream), strict=True):
        found += row in belady
        belady.read(row, size, next_use)
    return found


def most_hits(stream: list[int], room: int) -> int:
    """Of all ways to keep at most `room` rows, that may be replaced or passed by at each reading."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(stream):
            return 0
        row = stream[at]
        choices = {held, *(held - {other} | {row} for other in held)}
        if len(held) < room:
            choices.add(held | {row})
        return (row in held) + max(best(at + 1, choice) for choice in choices)

    return best(0, frozenset())


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 4))
def test_nothing_has_more_hits(stream: list[int], room: int) -> None:
    assert hits(stream, room) == most_hits(stream, room)
    assert hits(stream, room * 7 + 6, 7) == hits(stream, room)


def test_all_that_are_read_later_are_not_enough() -> None:
    belady = Belady(10)
    belady.read(1, 5, 3)
    belady.read(2, 5, 9)

    belady.read(3, 8, 5)
    assert (1 in belady, 2 in belady, 3 in belady) == (True, True, False)
    belady.read(4, 5, 8)
    assert (1 in belady, 2 in belady, 4 in belady) == (True, False, True)


def kept_hits(stream: list[int], room: int) -> int:
    """Of what a mount keeps, with room for so many rows."""
    kept, uses, found = BeladySet(), dict.fromkeys(stream, NEVER), 0
    kept.next_uses = lambda rows: np.array([uses[row] for row in rows.tolist()], np.int64)
    sizes = np.ones(6, np.int64).data
    for row, next_use in zip(stream, next_uses(stream), strict=True):
        found += row in kept
        kept.discard(row)
        uses[row] = next_use
        if next_use < NEVER and (len(kept) < room or kept.make_room(1, sizes, next_use) is not None):
            kept.add(row)
    return found


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 4))
def test_a_mount_keeps_what_is_best(stream: list[int], room: int) -> None:
    assert kept_hits(stream, room) == most_hits(stream, room)


# ---- whole epochs ------------------------------------------------------------------------------------------


@given(st.data())
def test_at_the_end_of_an_epoch_the_soonest_are_kept(data: st.DataObject) -> None:
    room = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    one = st.tuples(st.integers(0, len(room) - 1), st.one_of(st.integers(0, 9), st.just(NEVER)), st.integers(1, 9))
    samples = data.draw(st.lists(one, max_size=20))
    expected, left = [False] * len(samples), room.copy()
    for at in sorted(range(len(samples)), key=lambda i: samples[i][1]):
        node, next_use, size = samples[at]
        if next_use < NEVER and size <= left[node]:
            expected[at], left[node] = True, left[node] - size
    columns = [np.array([sample[i] for sample in samples], np.int64) for i in range(3)]
    given_room = np.array(room)

    assert keep(*columns, given_room).tolist() == expected
    assert given_room.tolist() == room


def hit_rate(nodes: int, share: float, samples: int = SAMPLES) -> float:
    """Of all nodes' caches that `keep` rules, each of `share` of the data set."""
    ram = StorageClass("ram", (round(share * samples),), 1, Curve.flat(1e9), Curve.flat(1e9))
    staging = StorageClass("staging", (1,), 1, Curve.flat(1e9), Curve.flat(1e9))
    cluster = Cluster("c", nodes, 1.0, 1e9, SourceModel(Curve.flat(1.0)), staging, (ram,))
    orders = permutations(Training(EPOCHS, 1, drop_last=False), samples, nodes, 1)
    policy = POLICIES["belady"](SimJob(cluster, np.ones(samples, np.int64), orders, EPOCHS, cluster.capacities()))
    found = [policy.reads(epoch).where for epoch in range(EPOCHS)]
    return float(np.mean([(where == 0).mean() for where in found]))


@pytest.mark.parametrize(("nodes", "share", "expected"), PUBLISHED)
def test_hit_rates(nodes: int, share: float, expected: float) -> None:
    assert hit_rate(nodes, share) == pytest.approx(expected, abs=0.01)


def one_by_one(nodes: int, share: float, samples: int) -> float:
    """The same, with a `Belady` for each node that reads its stream."""
    orders = permutations(Training(EPOCHS, 1, drop_last=False), samples, nodes, 1)
    later = next_readings(lambda e: dealt(orders.epoch(e).reshape(-1), samples, nodes), EPOCHS, samples)
    place = [position(orders.epoch(epoch), samples) for epoch in range(EPOCHS)]
    found = 0
    for node in range(nodes):
        belady = Belady(round(share * samples))
        for epoch in range(EPOCHS):
            mine = orders.epoch(epoch)[:, node]
            for sample, again in zip(mine.tolist(), later[epoch][mine].tolist(), strict=True):
                found += sample in belady
                belady.read(sample, 1, NEVER if again == 255 else again * samples + int(place[again][sample]))
    return found / (EPOCHS * samples)


def position(order: NDArray[np.int32], samples: int) -> NDArray[np.int64]:
    place = np.zeros(samples, np.int64)
    place[order.reshape(-1)] = np.repeat(np.arange(len(order)), order.shape[1])
    return place


@pytest.mark.parametrize(("nodes", "share"), [(16, 0.02), (4, 0.05), (16, 0.10)])
def test_deciding_once_in_an_epoch_is_as_good(nodes: int, share: float) -> None:
    samples = 3000
    assert hit_rate(nodes, share, samples) == pytest.approx(one_by_one(nodes, share, samples), abs=0.005)
