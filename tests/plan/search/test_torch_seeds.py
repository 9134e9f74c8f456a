"""Seeds are found from what readers open first, whoever they are, and hardly any by chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search import step_bits, torch_seeds
from nopfsfs.plan.search.torch_seeds import SEEDS, Opened, SeedSearch, beginnings, joint_middles, middles
from tests.conftest import long, slow

OTHERS = range(1000)  # seeds that are searched besides the true one


def _order(seed: int, n: int) -> np.ndarray:
    return torch_generator.randperm(torch_generator.generator(seed), n)


def _reader(order: np.ndarray, rank: int, world: int, worker: int, workers: int, batch: int = 32) -> np.ndarray:
    """What one worker process of torch's DataLoader opens; or the main process of one without workers."""
    stream = order[rank::world]
    return stream[np.arange(len(stream)) // batch % max(1, workers) == worker]


def _all_of(search: SeedSearch) -> list[tuple[int, float]]:
    """What the search finds among all its seeds, most bits first."""
    found: list[tuple[int, float]] = []
    while not search.done:
        found += search.step()
    return sorted(found, key=lambda one: -one[1])


def _with_strays(rng: np.random.Generator, samples: np.ndarray, opens: int, share: float, n: int) -> np.ndarray:
    stray = rng.random(opens) < share
    mixed = np.where(stray, rng.integers(0, n, opens), samples[np.cumsum(~stray) - 1])
    return mixed[np.sort(np.unique(mixed, return_index=True)[1])]


@pytest.mark.parametrize("n", [1000, 4000, 60_000, slow(1_281_167)])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 2), (8, 8), (64, 0), (64, 8)])
def test_a_rank_that_begins_an_epoch_is_found(n: int, world: int, workers: int) -> None:
    seed, rank = 4321, world // 3
    order = _order(seed, n)
    readers = [_reader(order, rank, world, worker, workers)[:10] for worker in range(max(1, workers))]
    search = beginnings([each for each in readers[::-1] if len(each)], n, [*OTHERS, seed])
    found = _all_of(search)
    assert found[0][0] == seed
    assert found[0][1] > 40
    assert len(found) < 8


@pytest.mark.parametrize("n", [300, 4000, 60_000, slow(200_000), slow(1_281_167)])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (8, 2), (20, 0)])
def test_a_reader_in_the_middle_of_an_epoch_is_found(n: int, world: int, workers: int) -> None:
    seed = 54
    reader = _reader(_order(seed, n), world - 1, world, 0, workers)
    begin = min(len(reader) // 2 + 3, len(reader) - 8)
    found = _all_of(middles([reader[begin : begin + 8]], n, range(100)))
    assert [each for each, _ in found] == [seed]


# Of 40,000 and 300,000 files orders are looked at by parts.
@pytest.mark.parametrize(("n", "middle"), [(4000, False), (4000, True), (40_000, True), slow(300_000, True)])
@pytest.mark.parametrize(("world", "workers"), [(1, 8), (8, 0), (64, 2)])
def test_nearly_all_are_found_in_spite_of_stray_opens(world: int, workers: int, n: int, middle: bool) -> None:
    times, found = 60, 0
    rng = np.random.default_rng([world, workers])
    for _ in range(times):
        seed = int(rng.integers(len(SEEDS)))
        reader = _reader(_order(seed, n), int(rng.integers(world)), world, 0, workers)
        begin = int(rng.integers(len(reader) - 8)) if middle else 0
        opened = _with_strays(rng, reader[begin:], 8, 0.05, n)
        search = (middles if middle else beginnings)([opened], n, [seed])
        found += any(bits > math.log2(len(SEEDS)) for _, bits in _all_of(search))
    assert found >= times - 1


def _runs(lanes: list[np.ndarray]) -> list[np.ndarray]:
    return [lane[max(0, end - 8) : end] for lane in lanes for end in range(len(lane), 1, -8)]


# One rank of eight, and of 64, whose workers are far apart in an epoch; ranks that are not; 32 readers.
@pytest.mark.parametrize("n", [60_000, slow(300_000), slow(1_281_167)])
@pytest.mark.parametrize(
    ("world", "ranks", "workers", "batch"),
    [(1, 1, 8, 32), (3, 2, 0, 1), (8, 1, 8, 256), (64, 1, 2, 32), (64, 8, 2, 32), (64, 4, 0, 1), (64, 4, 8, 64)],
)
def test_readers_that_follow_one_order_are_found(n: int, world: int, ranks: int, workers: int, batch: int) -> None:
    times, found = 20, 0
    rng = np.random.default_rng([n, world, workers])
    for _ in range(times):
        seed = int(rng.integers(len(SEEDS)))
        order, first = _order(seed, n), int(rng.integers(world - ranks + 1))
        lanes = [
            _reader(order, rank, world, worker, workers, batch)
            for rank in range(first, first + ranks)
            for worker in range(max(1, workers))
        ]
        each = 128 // len(lanes)
        begin = int(rng.integers(min(map(len, lanes)) - each))
        readers = [_with_strays(rng, lane[begin:], each, 0.05, n) for lane in lanes]
        search = joint_middles(_runs(readers), n, [(seed + 1) % len(SEEDS), seed])
        found += any(one == seed and bits > math.log2(len(SEEDS)) for one, bits in _all_of(search))
    assert found >= times - 2


def test_readers_that_are_apart_follow_one_order_as_well() -> None:
    n, order = 60_000, _order(54, 60_000)
    readers = [order[begin::2][:64] for begin in (n // 10, n // 2, n - 200)]
    assert [seed for seed, _ in _all_of(joint_middles(_runs(readers), n, range(50, 60)))] == [54]


@pytest.mark.parametrize("n", [60_000, slow(1_281_167)])
@pytest.mark.parametrize("readers", [1, 4, 32])
def test_of_wrong_orders_a_small_part_is_looked_at(n: int, readers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = 0
    draw = torch_generator.targets

    def targets(state: np.random.RandomState, left: int, count: int, *further: np.ndarray) -> np.ndarray:
        nonlocal words
        words += count
        return draw(state, left, count, *further)

    first_words = torch_seeds._Words.of

    def of(self: torch_seeds._Words, seeds: Sequence[int]) -> np.ndarray:
        nonlocal words
        drawn = first_words(self, seeds)
        words += drawn.size
        return drawn

    monkeypatch.setattr(torch_generator, "targets", targets)
    monkeypatch.setattr(torch_seeds._Words, "of", of)
    order, seeds = _order(700, n), range(1000, 1100)
    lanes = [order[n // 2 + reader :: readers][: 128 // readers] for reader in range(readers)]
    assert _all_of(joint_middles(_runs(lanes), n, seeds)) == []
    assert words < len(seeds) * n / 4


def test_samples_that_a_first_part_may_move_away_are_found_as_well() -> None:
    """All opens are of the first samples, of which the first steps do not show where they go."""
    n, seed = 60_000, 54
    order = _order(seed, n)
    near = [run[run < 6000] for run in _runs([order[n // 2 :][:4000]])]
    runs = [run for run in near if len(run) > 1]
    assert len(runs) > 8
    assert [one for one, _ in _all_of(joint_middles(runs, n, range(50, 60)))] == [seed]


@pytest.mark.parametrize("middle", [False, True])
def test_a_reader_of_several_threads_is_found(middle: bool) -> None:
    n, seed = 4000, 77
    stream = _order(seed, n)[1::4]
    begin = 500 if middle else 0
    opened = stream[begin : begin + 16][np.random.default_rng(0).permutation(16)]
    found = _all_of((middles if middle else beginnings)([opened], n, range(200)))
    assert [each for each, _ in found] == [seed]


def test_a_longer_beginning_shows_a_thousand_ranks() -> None:
    n, seed = 60_000, 700
    readers = [_order(seed, n)[rank::1024][:6] for rank in (400, 500, 700)]
    assert _all_of(beginnings(readers, n, range(650, 750))) == []
    assert [each for each, _ in _all_of(beginnings(readers, n, range(650, 750), reach=10_000))] == [seed]


@pytest.mark.parametrize("make", [beginnings, middles])
@pytest.mark.parametrize("n", [500, long(4000)])
def test_hardly_any_seed_is_found_by_chance(make: type, n: int) -> None:
    rng = np.random.default_rng(n)
    found = [_all_of(make([rng.permutation(n)[:8] for _ in range(3)], n)) for _ in range(3)]
    assert sum(map(len, found)) < 6


@pytest.mark.parametrize("readers", [1, 4, 32])
def test_hardly_any_seed_of_one_order_of_all_readers_is_found_by_chance(readers: int) -> None:
    n = 40_000
    opened = np.random.default_rng(readers).permutation(n)[:128].reshape(readers, -1)
    assert len(_all_of(joint_middles(_runs(list(opened)), n))) < 4


@pytest.mark.parametrize(("n", "cut"), [(40_000, 20_000), slow(300_000, 131_072)])
@pytest.mark.parametrize("world", [1, 16, 64])
def test_a_reader_is_found_wherever_an_order_is_cut(n: int, cut: int, world: int) -> None:
    stream = _order(54, n)[world // 2 :: world]
    for begin in range(cut // world - 9, cut // world + 2):
        found = _all_of(middles([stream[begin : begin + 8]], n, range(50, 60)))
        assert found[0][0] == 54
        assert found[0][1] > 20


def test_all_seeds_are_looked_at_in_the_order_given() -> None:
    n = 60_000
    readers = [_order(seed, n)[7 : 7 + 8] for seed in (3, 20)]
    search = middles(readers, n, [20, *range(300), 3])
    first = search.step()
    assert {seed for seed, _ in first} == {20, 3}
    assert not search.done
    assert _all_of(search) == []
    assert search.done
    assert search.step() == []


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_small_data_sets_show_nothing_but_break_nothing(n: int) -> None:
    opened = [_order(9, n)[:8], _order(9, n)[:1]]
    for search in (beginnings(opened, n, OTHERS), middles(opened, n, OTHERS)):
        assert len(_all_of(search)) < 8


@pytest.mark.parametrize("n", [50, 700, 5000])
def test_beginnings_and_middles_see_the_true_places(n: int) -> None:
    samples = [np.random.default_rng(n).permutation(n)[:40], np.arange(min(n, 30))]
    opened = Opened(samples, n)
    seeds = [5, 0, 10_000, 2**32 + 7, -1]
    places = np.stack([np.argsort(_order(seed, n))[opened.samples] for seed in seeds], axis=1)
    middle = torch_seeds._Middles(opened).places(seeds)
    np.testing.assert_array_equal(middle[:-1], places)
    half = torch_seeds._LargeMiddles(opened).places(seeds)[:-1]
    np.testing.assert_array_equal(half[places < n // 2], places[places < n // 2])
    later = places >= n // 2
    assert ((half == places) | (half == step_bits.OUTSIDE))[later].all()
    for reach in (20, 624, 5000):
        begin = torch_seeds._Beginnings(opened, reach).places(seeds)
        np.testing.assert_array_equal(begin[:-1], np.where(places < reach, places, step_bits.OUTSIDE))


def test_beginnings_of_orders_too_large_to_sort_in_32_bits() -> None:
    n, seeds = 1 << 23, [1, 2, 3]
    heads = np.stack([torch_generator.randperm(torch_generator.generator(seed), n, 624) for seed in seeds])
    opened = Opened([np.concatenate((heads[0], np.arange(600)))], n)
    places = torch_seeds._Beginnings(opened, 624).places(seeds)
    for order, head in enumerate(heads):
        where = {sample: place for place, sample in enumerate(head.tolist())}
        expected = [where.get(sample, step_bits.OUTSIDE) for sample in opened.samples.tolist()]
        assert places[:-1, order].tolist() == expected


@pytest.mark.parametrize(("n", "reach"), [(7, 7), (7, 4), (20, 20), (20, 9)])
def test_wrong_orders_show_no_bits_on_average(n: int, reach: int) -> None:
    """A test martingale: the mean of 2^bits over all that chance may show is at most 1."""
    opens = 3
    values = [*range(reach), *([step_bits.OUTSIDE] if reach < n else [])]
    places = np.array(list(itertools.product(values, repeat=opens)), dtype=np.int32).T
    chance = np.where(places == step_bits.OUTSIDE, 1 - reach / n, 1 / n).prod(axis=0)
    distinct = [len({p for p in each if p >= 0}) == sum(p >= 0 for p in each) for each in places.T.tolist()]
    mean = (chance * np.exp2(step_bits.reader_bits(places, n, reach)))[distinct].sum()
    assert 0.1 < mean <= 1


def test_readers_tell_together_or_one_alone() -> None:
    bits = np.array([[20.0, 20.0, 60.0, -np.inf], [20.0, -np.inf, -np.inf, -np.inf]])
    both, one, sure, none = step_bits.together(bits).tolist()
    assert both == pytest.approx(37, abs=0.1)
    assert one == pytest.approx(18.6, abs=0.1)
    assert sure == pytest.approx(58.6, abs=0.1)
    assert none < 0


@pytest.mark.parametrize("readers", [[], [np.array([1]), np.array([], dtype=np.int64)]])
def test_readers_must_have_opened_something(readers: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match="opened nothing"):
        beginnings(readers, 10)


@pytest.mark.parametrize("sample", [-1, 10])
def test_samples_must_be_in_range(sample: int) -> None:
    with pytest.raises(ValueError, match=r"not in 0\.\.9"):
        middles([np.array([2, sample])], 10)
