"""Where samples live: against loops over one sample at a time, and what must hold for any cluster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nopfsfs.placement.access_counts import NOBODY, Readers, dealt
from nopfsfs.placement.methods import NOWHERE, Placement, fill, homes, nopfs, take
from tests.examples import examples

Ints = NDArray[np.int64]
SAMPLES = 20_000


def shuffles(samples: int, epochs: int, nodes: int) -> Readers:
    """A permutation for each epoch, dealt out."""
    table = [dealt(np.random.default_rng((7, e)).permutation(samples), samples, nodes) for e in range(epochs)]
    return lambda epoch: table[epoch]


def equal_parts(samples: int, nodes: int, share: float) -> Ints:
    """Room of nodes that hold `share` of the data set together, all samples of one byte."""
    return np.full((nodes, 1), round(share * samples / nodes), np.int64)


# ---- what fits ---------------------------------------------------------------------------------------------


@given(st.data(), st.booleans())
def test_what_fits_is_taken_in_turn(data: st.DataObject, closes: bool) -> None:
    room = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    group = sorted(data.draw(st.lists(st.integers(0, len(room) - 1), max_size=25)))
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=len(group), max_size=len(group)))
    expected, left, closed = [], room.copy(), set()
    for which, size in zip(group, sizes, strict=True):
        fits = size <= left[which] and which not in closed
        if fits:
            left[which] -= size
        elif closes:
            closed.add(which)
        expected.append(fits)
    found_room = np.array(room)

    taken = take(np.array(group, np.int64), np.array(sizes, np.int64), found_room, closes=closes)

    assert taken.tolist() == expected
    assert found_room.tolist() == left


def test_large_rooms_are_exact() -> None:
    room = np.array([(1 << 60) + 1])
    assert take(np.zeros(2, np.int64), np.array([1 << 60, 1]), room).tolist() == [True, True]
    assert room.tolist() == [0]


@given(st.lists(st.integers(0, 12), max_size=20), st.lists(st.integers(0, 30), max_size=3), st.booleans())
def test_classes_are_filled_one_after_the_other(sizes: list[int], room: list[int], closes: bool) -> None:
    expected, left = [NOWHERE] * len(sizes), room.copy()
    for number in range(len(room)):
        for at, size in enumerate(sizes):
            if expected[at] == NOWHERE:
                if size <= left[number]:
                    expected[at], left[number] = number, left[number] - size
                elif closes:
                    break
    found_room = np.array(room, np.int64)

    assert fill(np.array(sizes, np.int64), found_room, closes=closes).tolist() == expected
    assert found_room.tolist() == left


# ---- any cluster -------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[list[int]], Ints, Ints]:
    """Readers by epoch and sample, sizes, and the room of nodes that differ, in 0 to 3 classes."""
    samples, nodes, epochs = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    node = st.sampled_from([*range(nodes), NOBODY])
    table = draw(st.lists(st.lists(node, min_size=samples, max_size=samples), min_size=epochs, max_size=epochs))
    sizes = draw(st.lists(st.integers(1, 20), min_size=samples, max_size=samples))
    classes = draw(st.integers(0, 3))
    some = st.one_of(st.just(0), st.integers(0, 30))
    room = draw(st.lists(st.lists(some, min_size=classes, max_size=classes), min_size=nodes, max_size=nodes))
    return table, np.array(sizes, np.int64), np.array(room, np.int64).reshape(nodes, classes)


def kept_of(placement: Placement, node: int) -> dict[int, int]:
    """Sample to class. Fails where one is there twice."""
    at_home = np.flatnonzero(placement.home == node)
    found = dict(zip(at_home.tolist(), placement.home_class[at_home].tolist(), strict=True))
    kept, classes = placement.copies[node]
    assert kept.tolist() == sorted(set(kept.tolist()))
    for sample, number in zip(kept.tolist(), classes.tolist(), strict=True):
        assert found.setdefault(sample, number) == number
        assert number >= 0
    return found


def used(placement: Placement, node: int, sizes: Ints, room: Ints) -> list[int]:
    """Bytes in each class."""
    total = [0] * room.shape[1]
    for sample, number in kept_of(placement, node).items():
        total[number] += int(sizes[sample])
    if placement.slice[node]:
        total[0] += int(placement.slice[node])
    return total


@settings(max_examples=examples(150))
@given(jobs(), st.sampled_from([None, 0.0, 0.3, 1.0]), st.sampled_from([1, 1 << 20]))
def test_homes_of_any_cluster(job: tuple[list[list[int]], Ints, Ints], share: float | None, block: int) -> None:
    table, sizes, room = job
    before = room.copy()

    placement = homes(lambda e: np.array(table[e], np.uint16), len(table), sizes, room, slice_share=share, block=block)

    assert (room == before).all()
    nodes, classes = room.shape
    assert ((placement.home >= 0) == (placement.home_class >= 0)).all()
    assert placement.home.max(initial=-1) < nodes
    assert placement.home_class.max(initial=-1) < classes
    left = room.copy()
    for node in range(nodes):
        total = used(placement, node, sizes, room)
        assert all(some <= most for some, most in zip(total, room[node], strict=True))
        left[node] -= np.array(total, np.int64)
        assert not set(placement.copies[node][0].tolist()) & set(np.flatnonzero(placement.home == node).tolist())
    for sample in np.flatnonzero(placement.home < 0):
        assert not (left >= sizes[sample]).any(), "there is room left for a sample without a home"
    common = room.copy()
    common[:, :1] -= (room[:, :1] * (share or 0)).astype(np.int64)
    if ((placement.home < 0) & (sizes <= common.max(initial=0))).any():
        assert not any(len(kept) for kept, _ in placement.copies)
        assert share or not placement.slice.any()


@settings(max_examples=examples(100))
@given(jobs())
def test_nopfs_of_any_cluster(job: tuple[list[list[int]], Ints, Ints]) -> None:
    table, sizes, room = job
    homes_expected: dict[int, tuple[int, int]] = {}
    expected = []
    for node in range(len(room)):
        often = {s: sum(epoch[s] == node for epoch in table) for s in range(len(sizes))}
        wanted = sorted((s for s in often if often[s]), key=lambda s: (-often[s], s))
        kept: dict[int, int] = {}
        for number, most in enumerate(room[node].tolist()):
            for sample in [s for s in wanted if s not in kept]:
                if int(sizes[sample]) > most:
                    break
                kept[sample], most = number, most - int(sizes[sample])
        for sample, number in kept.items():
            homes_expected.setdefault(sample, (node, number))
        expected.append(kept)

    placement = nopfs(lambda e: np.array(table[e], np.uint16), len(table), sizes, room, 50)

    for node in range(len(room)):
        assert kept_of(placement, node) == expected[node]
    for sample in range(len(sizes)):
        found = int(placement.home[sample]), int(placement.home_class[sample])
        assert found == homes_expected.get(sample, (NOWHERE, NOWHERE))
    assert not placement.slice.any()


@given(jobs())
def test_what_a_node_has_itself(job: tuple[list[list[int]], Ints, Ints]) -> None:
    table, sizes, room = job
    rng = np.random.default_rng(0)
    for place in (homes, nopfs):
        placement = place(lambda e: np.array(table[e], np.uint16), len(table), sizes, room)
        for node in range(len(room)):
            asked = rng.integers(0, len(sizes), 30)
            kept = kept_of(placement, node)
            assert placement.local(node, asked).tolist() == [kept.get(s, NOWHERE) for s in asked.tolist()]


def test_the_same_everywhere() -> None:
    rng = np.random.default_rng(1)
    sizes, room = rng.integers(1, 100, 3000), rng.integers(0, 30_000, (7, 2))
    readers = shuffles(3000, 5, 7)

    one, other = homes(readers, 5, sizes, room), homes(readers, 5, sizes, room, block=10_000)

    assert (one.home == other.home).all()
    assert (one.home_class == other.home_class).all()
    assert (one.slice == other.slice).all()
    for (kept, classes), (kept_there, classes_there) in zip(one.copies, other.copies, strict=True):
        assert (kept == kept_there).all()
        assert (classes == classes_there).all()


def test_a_sample_that_fits_no_class_leaves_its_room_to_others() -> None:
    sizes, room = np.array([10, 5]), np.array([[6, 6]])

    placement = homes(lambda e: np.zeros(2, np.uint16), 2, sizes, room)

    assert placement.home.tolist() == [NOWHERE, 0]


def test_a_sample_that_fits_no_class_keeps_others_from_nothing() -> None:
    """What has no home because there is none for it takes no room from second copies and slices."""
    sizes, room = np.array([10, *[1] * 40]), np.full((2, 2), 9 * 5)
    room[:, 1] = 9
    readers = shuffles(41, 20, 2)
    placement = homes(readers, 20, np.minimum(sizes * 5, 46), room)
    assert placement.home[0] == NOWHERE
    assert np.count_nonzero(placement.home < 0) > 1, "too little for the others"
    room[:, 0] = 100
    placement = homes(readers, 20, np.where(sizes > 1, 101, 1), room)
    assert np.flatnonzero(placement.home < 0).tolist() == [0]
    assert placement.slice.sum() > 0


def test_more_nodes_than_samples() -> None:
    placement = homes(shuffles(3, 2, 50), 2, np.full(3, 10), np.full((50, 1), 10))
    assert placement.distinct_share == 1.0


def test_an_empty_data_set() -> None:
    nobody = np.zeros(0, np.uint16)
    placement = homes(lambda e: nobody, 2, np.zeros(0, np.int64), np.full((2, 1), 10))
    assert placement.distinct_share == 1.0


def test_empty_samples_without_storage() -> None:
    placement = homes(lambda e: np.zeros(2, np.uint16), 2, np.array([0, 1]), np.zeros((2, 0), np.int64))
    assert placement.home.tolist() == [NOWHERE, NOWHERE]


# ---- what is kept at all -----------------------------------------------------------------------------------

PUBLISHED = [(2, 1.0, 0.958), (4, 1.0, 0.815), (8, 1.0, 0.737), (16, 1.0, 0.690), (64, 1.0, 0.633), (64, 2.0, 0.781)]


@pytest.mark.parametrize(("nodes", "share", "distinct"), PUBLISHED)
def test_nopfs_keeps_the_same_on_many_nodes(nodes: int, share: float, distinct: float) -> None:
    samples = SAMPLES // nodes * nodes
    placement = nopfs(shuffles(samples, 90, nodes), 90, np.ones(samples, np.int64), equal_parts(samples, nodes, share))
    assert placement.distinct_share == pytest.approx(distinct, abs=0.01)


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16, 64, 256])
def test_homes_keeps_everything(nodes: int) -> None:
    samples = 5000 // nodes * nodes
    placement = homes(shuffles(samples, 20, nodes), 20, np.full(samples, 7), 7 * equal_parts(samples, nodes, 1.0))
    assert placement.distinct_share == 1.0


def test_a_sample_lives_where_it_is_read_most() -> None:
    readers, room = shuffles(4000, 20, 4), np.full((4, 2), 10_000)
    table = np.stack([readers(epoch) for epoch in range(20)])

    placement = homes(readers, 20, np.ones(4000, np.int64), room)

    most = np.stack([(table == node).sum(axis=0) for node in range(4)])
    assert (most[placement.home, np.arange(4000)] == most.max(axis=0)).all()


def test_the_fastest_class_has_what_its_node_reads_most() -> None:
    readers, room = shuffles(4000, 20, 4), np.array([[300, 700]] * 4)
    table = np.stack([readers(epoch) for epoch in range(20)])

    placement = homes(readers, 20, np.ones(4000, np.int64), room)

    own = (table == placement.home).sum(axis=0)
    for node in range(4):
        here = placement.home == node
        assert own[here & (placement.home_class == 0)].min() >= own[here & (placement.home_class == 1)].max()


def test_room_left_is_a_slice_and_second_copies() -> None:
    readers, room = shuffles(400, 20, 4), np.array([[150, 1000]] * 4)
    table = np.stack([readers(epoch) for epoch in range(20)])

    placement = homes(readers, 20, np.ones(400, np.int64), room)

    for node in range(4):
        at_home = np.flatnonzero((placement.home == node) & (placement.home_class == 0))
        assert placement.slice[node] == 150 - len(at_home)
        often = (table == node).sum(axis=0)
        assert placement.copies[node][0].tolist() == np.flatnonzero((often > 1) & (placement.home != node)).tolist()


def test_a_share_set_aside_is_a_slice() -> None:
    placement = homes(shuffles(400, 5, 4), 5, np.ones(400, np.int64), np.full((4, 1), 50), slice_share=0.2)
    assert placement.slice.tolist() == [10] * 4
    assert np.count_nonzero(placement.home >= 0) == 160
