"""Placements of a cluster, one after the other: what must hold for any, and that all nodes compute the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nopfsfs.placement import methods
from nopfsfs.placement.access_counts import NOBODY, Readers, dealt
from nopfsfs.placement.cluster_homes import METHODS, ClusterHomes, CopiesByNode, by_hash, extend
from nopfsfs.placement.methods import NOWHERE, UNCOVERED

Ints = NDArray[np.int64]


def shuffles(samples: int, epochs: int, nodes: int) -> Readers:
    """A permutation for each epoch, dealt out."""
    table = [dealt(np.random.default_rng((7, e)).permutation(samples), samples, nodes) for e in range(epochs)]
    return lambda epoch: table[epoch]


def on_all(before: list[ClusterHomes], rows: Ints, readers: Readers, epochs: int, charges: Ints, rooms: Ints,
           method: str = "homes", block: int = 1 << 21, kept: CopiesByNode | None = None
           ) -> list[ClusterHomes]:  # fmt: skip
    """What each node computes."""
    return [
        extend(one, rows, readers, epochs, charges, rooms, node=node, method=method, block=block, kept=kept)
        for node, one in enumerate(before)
    ]


def check(found: list[ClusterHomes], charges: Ints, rooms: Ints) -> None:
    """What holds for any placement."""
    first = found[0]
    for node, one in enumerate(found):
        assert (one.home == first.home).all()
        assert (one.used == first.used).all()
        assert ((one.local == UNCOVERED) == (first.local == UNCOVERED)).all()
        assert (one.local[one.home == node] >= 0).all(), "who has the home keeps the file"
        for number in range(rooms.shape[1]):
            used = charges[one.local == number].sum()
            assert used == one.used[node, number]
            assert used <= rooms[node, number]
    assert (first.home[first.local == UNCOVERED] == NOBODY).all()


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, Ints, Ints]:
    """Nodes, charges, and rooms that differ, in 1 to 3 classes."""
    n, nodes, classes = draw(st.integers(1, 30)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    charges = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    rooms = draw(st.lists(st.lists(st.integers(0, 60), min_size=classes, max_size=classes),
                          min_size=nodes, max_size=nodes))  # fmt: skip
    return nodes, np.array(charges, np.int64), np.array(rooms, np.int64)


def some_kept(data: st.DataObject, n: int) -> CopiesByNode | None:
    """Copies of some of n rows, also on nodes and tiers that are not there."""
    kept = CopiesByNode.none(n)
    for node in data.draw(st.lists(st.integers(0, 6), unique=True, max_size=3)):
        rows = data.draw(st.lists(st.integers(0, n - 1), unique=True))
        kept.add(node, data.draw(st.integers(1, 4)), np.array(rows, np.int64))
    return kept if data.draw(st.booleans()) else None


@given(clusters(), st.sampled_from(sorted(METHODS)), st.integers(1, 4), st.sampled_from([1, 5, 1 << 20]), st.data())
def test_any_cluster(job: tuple[int, Ints, Ints], method: str, epochs: int, block: int, data: st.DataObject) -> None:
    nodes, charges, rooms = job
    limit = data.draw(st.integers(1, 25))
    kept = some_kept(data, len(charges))
    found = [ClusterHomes.empty(len(charges), *rooms.shape) for _ in range(nodes)]
    for _ in range(3):
        some = np.array(data.draw(st.lists(st.integers(0, len(charges) - 1))), np.int64)
        wanted = found[0].to_cover(some, charges, limit)
        rows = some[wanted]
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) == {
            row for row in some.tolist() if found[0].local[row] == UNCOVERED and 0 < charges[row] <= limit
        }
        readers = shuffles(len(rows), epochs, nodes)
        before, found = found, on_all(found, rows, readers, epochs, charges, rooms, method, block, kept)
        check(found, charges, rooms)
        assert (found[0].local[rows] != UNCOVERED).all()
        for one, earlier in zip(found, before, strict=True):
            covered = earlier.local != UNCOVERED
            assert (one.local[covered] == earlier.local[covered]).all(), "a further placement moves nothing"
            assert (one.home[covered] == earlier.home[covered]).all()


@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_placement_of_the_policy(method: str) -> None:
    n, nodes, epochs = 5000, 4, 6
    charges = np.random.default_rng(1).integers(1, 100, n)
    rooms = np.full((nodes, 2), int(charges.sum() * 0.15))
    rows = np.random.default_rng(2).permutation(2 * n)[:n]
    readers = shuffles(n, epochs, nodes)
    by_row = np.zeros(2 * n, np.int64)
    by_row[rows] = charges
    empty = ClusterHomes.empty(2 * n, nodes, 2)
    found = on_all([empty] * nodes, rows, readers, epochs, by_row, rooms, method)
    expected = getattr(methods, method)(readers, epochs, charges, rooms)
    assert (np.where(expected.home < 0, NOBODY, expected.home) == found[0].home[rows]).all()
    for node, one in enumerate(found):
        assert (one.local[rows] == expected.local(node, np.arange(n))).all()
    assert found[0].distinct_share == expected.distinct_share
    check(found, by_row, rooms)


def test_what_is_placed_in_blocks_is_placed_as_well() -> None:
    n, nodes, epochs = 40_000, 4, 6
    charges = np.random.default_rng(1).integers(1, 100, n)
    rooms = np.full((nodes, 1), int(charges.sum() * 0.3))
    rows, readers = np.arange(n), shuffles(n, epochs, nodes)
    empty = ClusterHomes.empty(n, nodes, 1)
    whole = extend(empty, rows, readers, epochs, charges, rooms, node=0)
    parts = extend(empty, rows, readers, epochs, charges, rooms, node=0, block=3000)
    assert whole.distinct_share == parts.distinct_share == 1

    def own_reads(found: ClusterHomes) -> int:
        return sum(int(np.count_nonzero(readers(epoch) == found.home)) for epoch in range(epochs))

    assert own_reads(parts) > 0.98 * own_reads(whole)


def test_a_further_placement_has_the_room_that_is_left() -> None:
    n, nodes = 1000, 4
    charges, rooms = np.full(2 * n, 10), np.full((nodes, 1), 3000)
    found = [ClusterHomes.empty(2 * n, nodes, 1)] * nodes
    for rows, share in ((np.arange(n), 1.0), (np.arange(n, 2 * n), 0.6)):
        found = on_all(found, rows, lambda epoch: by_hash(rows, nodes), 1, charges, rooms)  # noqa: B023
        check(found, charges, rooms)
        assert found[0].distinct_share == share
    assert (found[0].used == 3000).all()


def test_nodes_without_room_have_nothing() -> None:
    n = 1000
    charges, rooms = np.full(n, 10), np.array([[4000, 0], [0, 0], [0, 8000]])
    rows = np.arange(n)
    found = on_all([ClusterHomes.empty(n, 3, 2)] * 3, rows, shuffles(n, 3, 3), 3, charges, rooms)
    check(found, charges, rooms)
    assert np.bincount(found[0].home, minlength=3)[1] == 0
    assert found[0].distinct_share == 1


def test_more_room_than_before_is_used() -> None:
    """A node said late what it has."""
    n = 100
    charges, rows = np.full(2 * n, 10), np.arange(2 * n)
    found = extend(ClusterHomes.empty(2 * n, 2, 1), rows[:n], lambda epoch: by_hash(rows[:n], 2), 1, charges,
                   np.array([[500], [0]]), node=0)  # fmt: skip
    assert found.used.tolist() == [[500], [0]]
    found = extend(found, rows[n:], lambda epoch: by_hash(rows[n:], 2), 1, charges, np.array([[500], [900]]), node=0)
    assert found.used.tolist() == [[500], [900]]
    assert (found.home[:n][found.local[:n] == NOWHERE] == NOBODY).all()


@given(st.integers(0, 200), st.integers(1, 9))
def test_a_hash_deals_evenly(n: int, nodes: int) -> None:
    rows = np.random.default_rng(n).permutation(1000)[:n]
    node = by_hash(rows, nodes)
    counts = np.bincount(node, minlength=nodes)
    assert counts.max(initial=0) - counts.min(initial=n) <= 1
    again = by_hash(rows[::-1], nodes)
    assert (again[::-1] == node).all(), "whatever their order"


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.data())
def test_files_live_where_they_were_kept(n: int, nodes: int, tiers: int, data: st.DataObject) -> None:
    """Whatever is added first; where there is room, all of them."""
    charges, rows = np.arange(1, n + 1), np.arange(n)
    copies = [(node, tier, np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), np.int64))
              for node in range(nodes) for tier in data.draw(st.permutations(range(1, tiers + 1)))[:1]]  # fmt: skip
    kept, other = CopiesByNode.none(n), CopiesByNode.none(n)
    for one in copies:
        kept.add(*one)
    for one in data.draw(st.permutations(copies)):
        other.add(*one)
    assert (kept.node == other.node).all()
    assert (kept.tier == other.tier).all()
    rooms = np.full((nodes, 1 + tiers), charges.sum())
    before = [ClusterHomes.empty(n, *rooms.shape) for _ in range(nodes)]
    found = on_all(before, rows, shuffles(n, 3, nodes), 3, charges, rooms, kept=kept)
    check(found, charges, rooms)
    there = kept.node != NOBODY
    assert (found[0].home[there] == kept.node[there]).all()
    assert set(np.flatnonzero(there).tolist()) == {row for _, _, some in copies for row in some.tolist()}
    for node, one in enumerate(found):
        mine = kept.node == node
        assert (one.local[mine] == kept.tier[mine]).all()
    by_few = on_all(before, rows, shuffles(n, 3, nodes), 3, charges, rooms, block=3, kept=kept)
    assert (by_few[0].home[there] == kept.node[there]).all()


def test_second_copies_of_what_was_kept_take_no_room_that_other_files_need() -> None:
    """The room is enough for one copy of each file; those of the first block are there."""
    n = 8
    charges, rows, rooms = np.full(n, 10), np.arange(n), np.array([[0, 60], [0, 20]])
    kept = CopiesByNode.none(n)
    kept.add(0, 1, rows[:4])
    found = on_all([ClusterHomes.empty(n, 2, 2)] * 2, rows, shuffles(n, 2, 2), 2, charges, rooms, block=4, kept=kept)
    check(found, charges, rooms)
    assert (found[0].home != NOBODY).all()


def test_a_node_without_room_is_no_home_of_what_it_kept() -> None:
    """Its room is not known, or there is none: others have it."""
    n = 40
    charges, rows, rooms = np.full(n, 10), np.arange(n), np.array([[0, 0], [200, 100], [100, 100]])
    kept = CopiesByNode.none(n)
    kept.add(0, 1, rows[:20])
    kept.add(1, 1, rows[20:])
    found = on_all([ClusterHomes.empty(n, 3, 2)] * 3, rows, shuffles(n, 2, 3), 2, charges, rooms, kept=kept)
    check(found, charges, rooms)
    assert set(found[0].home.tolist()) == {1, 2}
    assert (found[1].local[20:] == 1).sum() == 10
