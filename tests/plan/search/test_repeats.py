"""World and rank of a reader of RepeatAugSampler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.search.repeats import repeats_deal
from tests.examples import examples

FAMILY = registry.sampler("repeat_aug")
EPOCH = 3


def _places(n: int, world: int, rank: int, repeats: float = 3.0) -> np.ndarray:
    """Where what a rank reads stands in the permutation."""
    spec = registry.make_spec(FAMILY, 0, {"repeats": repeats})
    order = FAMILY.order(spec, n, EPOCH, world, (rank,))
    inverse = np.argsort(torch_generator.randperm(torch_generator.generator(EPOCH), n))
    return inverse[order]


@pytest.mark.parametrize("world", [*range(1, 65), 100, 128, 256, 1000])
def test_a_dozen_opens_anywhere_tell_all_that_the_rank_reads(world: int) -> None:
    n = max(2048, 32 * world)
    for rank in {0, 1, world // 2, world - 1} - {world}:
        places = _places(n, world, rank)
        for begin in (0, 5, len(places) - 12):
            found = repeats_deal(places[begin : begin + 12].tolist(), n)
            assert found is not None
            assert found[0] == world
            np.testing.assert_array_equal(_places(n, *found), places)
            assert found[1] == (rank // 3 * 3 if world % 3 == 0 else rank)


@settings(max_examples=examples(60))
@given(st.integers(1, 64), st.data())
def test_batches_of_a_worker_and_strays(world: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world - 1))
    workers, batch = data.draw(st.sampled_from([(2, 4), (8, 16), (4, 32)]))
    places = _places(100_000, world, rank)
    mine = places[np.arange(len(places)) // batch % workers == 1][:64]
    opened = np.insert(mine, [10, 30, 50], [99_999, 3, 50_000]).tolist()
    found = repeats_deal(opened, 100_000)
    assert found is not None
    np.testing.assert_array_equal(_places(100_000, *found), places)


@pytest.mark.parametrize("repeats", [1.0, 1.5, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("world", [1, 2, 7, 8, 30, 64])
def test_other_repeats(world: int, repeats: float) -> None:
    places = _places(5000, world, world - 1, repeats)
    found = repeats_deal(places[7:40].tolist(), 5000, repeats)
    assert found is not None
    assert found[0] == world
    np.testing.assert_array_equal(_places(5000, *found, repeats), places)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(2, 64))
def test_random_places_tell_nothing(seed: int, count: int) -> None:
    assert repeats_deal(np.random.default_rng(seed).permutation(5000)[:count].tolist(), 5000) is None


@pytest.mark.parametrize("places", [[], [5], [5, 6], [-1] * 20, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_too_few_and_backwards(places: list[int]) -> None:
    assert repeats_deal(places, 100) is None


def test_what_was_opened_once_each_in_a_small_world_is_a_larger_one() -> None:
    """Files that come twice in a row are opens, too: without them worlds below 4 look like a world of 3."""
    once = np.unique(_places(1000, 2, 1))[:20].tolist()
    assert repeats_deal(once, 1000) == (3, 0)
