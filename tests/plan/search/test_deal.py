"""World size, ranks and batches, read off the places that readers open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.plan.search import deal
from nopfsfs.plan.search.deal import WHOLE, Deal
from tests.plan.jobs import in_turn, opens


def followed(read: list[tuple[int, int]], *, known: bool = True) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, reader in read:
        found.setdefault(reader if known else 0, []).append(place)
    return found


WORLDS = [
    (2, (1,)), (3, (0, 1)), (4, (2, 3)), (5, (2,)), (7, (1, 3)), (8, (4, 5, 6, 7)), (16, (8, 9, 10, 11)), (24, (23,)),
    (64, (5,)), (64, tuple(range(0, 64, 2))), (88, (5,)), (256, (3, 4)), (1024, (7,)),
]  # fmt: skip


@pytest.mark.parametrize("begin", [0.0, 0.3])
@pytest.mark.parametrize("workers", [0, 2, 8])
@pytest.mark.parametrize(("world", "ranks"), WORLDS)
def test_ranks_of_any_world(world: int, ranks: tuple[int, ...], workers: int, begin: float) -> None:
    rng = np.random.default_rng(world)
    read = opens(60_000, world, ranks, workers, 32, rng, begin)
    assert deal.read(followed(read[: 24 * len(ranks)]), 60_000) == Deal(world, ranks)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [0, 2, 8])
def test_all_is_read_here(world: int, workers: int) -> None:
    read = opens(60_000, world, tuple(range(world)), workers, 32, np.random.default_rng(0))
    for count in (48, 128, 256):
        found = deal.read(followed(read[: count * world]), 60_000)
        assert found is not None
        assert found.whole


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("world", "ranks"), [one for one in WORLDS if one[0] not in (64, 256)])
def test_readers_that_are_not_known(world: int, ranks: tuple[int, ...], workers: int) -> None:
    read = opens(60_000, world, ranks, workers, 32, np.random.default_rng(world))
    assert deal.read(followed(read[:192], known=False), 60_000) == Deal(world, ranks)


def test_every_second_of_sixty_four_is_one_of_two() -> None:
    read = opens(60_000, 64, tuple(range(0, 64, 2)), 0, 32, np.random.default_rng(0))
    assert deal.read(followed(read[:256], known=False), 60_000) == Deal(2, (0,))


@pytest.mark.parametrize("batch", [2, 8, 12, 32, 100])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize(("world", "ranks"), [(2, (1,)), (4, (0,)), (4, (2, 3)), (8, (4, 5, 6, 7)), (3, (0, 1, 2))])
def test_batches_in_turn(world: int, ranks: tuple[int, ...], workers: int, batch: int) -> None:
    read = in_turn(60_000, world, ranks, workers, batch, np.random.default_rng(batch))
    found = deal.read(followed(read[: max(4 * batch, 16) * len(ranks) * max(workers, 1)]), 60_000)
    assert found == (WHOLE if len(ranks) == world else Deal(world, ranks, batch))


def test_before_a_few_steps_nothing_is_said() -> None:
    assert deal.read({1: [5, 13], 2: [4]}, 4000) is None
    assert deal.read({}, 4000) is None


@pytest.mark.parametrize("said", [(8, (4, 5, 6, 7)), (4, (0, 1, 2, 3)), (3, (1,)), (16, (8,))])
def test_opens_overrule_what_was_said(said) -> None:
    read = opens(60_000, 8, (4, 5, 6, 7), 0, 32, np.random.default_rng(3))
    assert deal.read(followed(read[:64]), 60_000, [said]) == Deal(8, (4, 5, 6, 7))


def test_ranks_that_were_said_are_waited_for() -> None:
    read = [one for one in opens(60_000, 8, (4, 5, 6, 7), 0, 32, np.random.default_rng(4)) if one[1] != 3]
    said = [(8, (4, 5, 6, 7))]
    assert deal.read(followed(read[:24]), 60_000, said) == Deal(8, (4, 5, 6, 7))
    assert deal.read(followed(read[:64]), 60_000, said) == Deal(8, (4, 5, 7))


def test_workers_of_single_files_are_no_ranks_of_a_larger_world() -> None:
    read = [(8 * at + rank, 1 + 2 * lane + at % 2) for at in range(24) for lane, rank in enumerate((1, 3, 5))]
    assert deal.read(followed(read), 60_000) == Deal(16, (1, 3, 5, 9, 11, 13))
    assert deal.read(followed(read), 60_000, [(8, (0, 1, 2))]) == Deal(8, (1, 3, 5))
    half = [one for one in read if one[0] % 16 < 8]
    assert deal.read(followed(half), 60_000, [(8, (0, 1, 2))]) == Deal(16, (1, 3, 5)), "nothing reads the other half"


@pytest.mark.parametrize(("world", "found"), [(256, 256), (1024, 2)])
def test_ranks_that_were_taken_as_one_are_told_apart_if_each_has_more_than_a_few_files(world: int, found: int) -> None:
    """Every second of many ranks: their first opens showed a world of two."""
    n, read = 4000, {1 + rank: list(range(rank, 4000, world)) for rank in range(0, world, 2)}
    assert deal.read(read, n, [(2, (0,))], deal.HELD) == Deal(found, tuple(range(0, found, 2)))
    assert deal.read(read, n, [(2, (0,))]) == Deal(2, (0,)), (
        "workers that load single files, of the world that was said"
    )


def test_where_nearly_all_of_the_finer_ranks_were_seen_the_others_will_be() -> None:
    seen = set(range(0, 64, 2)) - {8, 12}
    assert deal.divided(2, (0,), 64, seen) == tuple(range(0, 64, 2))
    assert deal.divided(2, (0,), 64, {0, 2, 4}) == (0, 2, 4)
    assert deal.divided(2, (0,), 64, seen | {1}) == tuple(sorted(seen | {1}))
    assert deal.divided(3, (0,), 64, seen) == tuple(sorted(seen))


def test_a_world_that_was_read_off_holds_where_a_few_places_show_none() -> None:
    places = [(63, 0), (16, 0), (18, 0), (20, 0), (2, 0)]
    assert deal.read(followed(places), 6000, [(2, (1,))], deal.HELD) == Deal(2, (0, 1))
    assert deal.read(followed(places), 6000) == Deal()


def test_strays_make_no_ranks() -> None:
    rng = np.random.default_rng(5)
    read = [
        (int(rng.integers(60_000)) if rng.random() < 0.05 else place, reader)
        for place, reader in opens(60_000, 8, (4, 5, 6, 7), 0, 32, rng)[:256]
    ]
    assert deal.read(followed(read), 60_000) == Deal(8, (4, 5, 6, 7))


@pytest.mark.parametrize(("world", "ranks"), [(2, (1,)), (8, (3,)), (8, (4, 5)), (64, (7,))])
def test_a_part_of_the_listing_shows(world: int, ranks: tuple[int, ...]) -> None:
    rng = np.random.default_rng(world)
    n = 4000
    strided = [rng.permutation(np.arange(rank, n, world))[:32] for rank in ranks]
    blocks = [rng.permutation(np.arange(rank * n // world, (rank + 1) * n // world))[:32] for rank in ranks]
    assert (world, ranks) in deal.listed(strided, n)
    assert (world, ranks) in deal.listed(blocks, n)
    assert deal.listed([rng.permutation(n)[:32]], n) == []
    assert deal.listed([], n) == []


@pytest.mark.parametrize("threads", [4, 16, 64])
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (8, 3)])
def test_threads_that_overtake_each_other_are_no_batches(threads: int, world: int, rank: int) -> None:
    rng = np.random.default_rng(threads)
    places = np.arange(rank, 60_000, world)
    order = places[np.argsort(np.arange(len(places)) + rng.uniform(0, threads, len(places)))].tolist()
    for count in (64, 256, 1024):
        assert deal.read({7: order[:count]}, 60_000) == (WHOLE if world == 1 else Deal(world, (rank,)))


def test_strays_make_no_other_world_of_one_that_is_known() -> None:
    read = [(2 * at, 1) for at in range(3)] + [(2 * at + 1, 2) for at in range(3)] + [(7, 1), (8, 2)]
    said = [(2, (0, 1))]
    assert deal.read(followed(read), 6_000, said) == WHOLE
    assert deal.read(followed(read), 6_000, said, deal.HELD) == Deal(2, (0, 1))


def test_a_known_world_that_is_wrong_gives_way() -> None:
    read = opens(60_000, 8, (4, 5, 6, 7), 2, 32, np.random.default_rng(3))
    for world in (1, 2, 4, 16, 3):
        assert deal.read(followed(read[:256]), 60_000, [(world, (0,))], deal.HELD) == Deal(8, (4, 5, 6, 7))


@pytest.mark.parametrize("known", [True, False])
def test_where_all_is_read_here_the_world_that_was_said_holds(known: bool) -> None:
    read = opens(60_000, 4, (0, 1, 2, 3), 0, 32, np.random.default_rng(5))
    assert deal.read(followed(read[:256], known=known), 60_000, [(4, (0, 1, 2, 3))]) == Deal(4, (0, 1, 2, 3))


# What 32 workers of four ranks of seven have opened shortly after they began in mid-epoch: each lies near the beginning
# of its batch, and batches lie 224 places apart.
BATCHES = [[2016 + 7 * (32 * worker + nth) + rank for nth in range(2)] for worker in range(8) for rank in (0, 2, 4, 6)]


@pytest.mark.parametrize("most", [12, 32])
def test_workers_that_have_just_begun_are_no_ranks_of_a_large_world(most: int) -> None:
    apart = dict(enumerate(BATCHES[:most], start=1))
    places = [place for nth in range(2) for mine in apart.values() for place in mine[nth : nth + 1]]
    alone = deal.read({0: places}, 4000)
    assert alone is not None
    assert alone.world > 100, "by their places alone"
    assert deal.read({0: places}, 4000, apart=apart) == Deal(7, (0, 2, 4, 6))


@given(st.integers(0, 10**6))
def test_threads_that_take_what_comes_next_show_no_world(seed: int) -> None:
    """They open a few files each, and all that the order holds."""
    rng = np.random.default_rng(seed)
    places = np.argsort(np.arange(60) + rng.uniform(0, 32, 60)).tolist()
    apart: dict[int, list[int]] = {}
    for place, thread in zip(places, rng.integers(1, 33, 60).tolist(), strict=True):
        apart.setdefault(thread, []).append(place)
    found = deal.read({0: places}, 4000, apart=apart)
    assert found is not None
    assert found.whole
