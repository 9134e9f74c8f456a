"""Places found without the permutation are those in the permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search import torch_places
from tests.examples import examples

# Steps that are drawn and followed at a time, as searches in large orders do it.
SEGMENT = 1 << 17


def _places(seed: int, n: int) -> np.ndarray:
    return np.argsort(torch_generator.randperm(torch_generator.generator(seed), n))


def _found(state: np.random.RandomState, n: int, samples: np.ndarray) -> np.ndarray:
    """Where these samples stand in `randperm(state, n)`, by segments, as searches follow them."""
    at, place, marks = samples.astype(np.int64), np.full(len(samples), -1), np.zeros(n, dtype=np.bool_)
    buffer = np.empty(min(n, SEGMENT), dtype=np.int64)
    for begin in range(0, n, SEGMENT):
        target = torch_generator.targets(state, n - begin, min(SEGMENT, n - begin), buffer)
        torch_places.advance(target, begin, at, place, marks)
    return place


def _followed(steps: list[int], parts: int) -> list[int]:
    """All samples, through steps in several parts."""
    n = len(steps)
    at, place, marks = np.arange(n), np.full(n, -1), np.zeros(n, dtype=np.bool_)
    begin = 0
    for part in np.array_split(np.array(steps, dtype=np.int64), parts):
        torch_places.advance(part - begin, begin, at, place, marks)
        begin += len(part)
    assert not marks.any()
    return place.tolist()


@given(st.data(), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=examples(300))
def test_samples_end_where_swaps_one_by_one_take_them(data: st.DataObject, n: int, parts: int) -> None:
    steps = [data.draw(st.integers(i, n - 1)) for i in range(n)]
    order = list(range(n))
    for i, other in enumerate(steps):
        order[i], order[other] = order[other], order[i]
    place = _followed(steps, parts)
    assert [order[p] for p in place] == list(range(n))


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(0, 50))
@settings(max_examples=examples(100))
def test_places_are_those_in_torchs_permutation(seed: int, n: int, m: int) -> None:
    samples = np.random.default_rng(m).integers(0, n, m)
    places = _found(torch_generator.generator(seed), n, samples)
    np.testing.assert_array_equal(places, _places(seed, n)[samples])


@pytest.mark.parametrize("n", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 400_000])
def test_places_in_orders_of_several_segments(n: int) -> None:
    edges = [0, n - 1, n - 2, *range(SEGMENT - 3, min(n, SEGMENT + 3))]
    samples = np.concatenate((edges, np.random.default_rng(1).permutation(n)[:250]))
    given_samples = samples.copy()
    places = _found(torch_generator.generator(7, skip=3), n, samples)
    order = torch_generator.randperm(torch_generator.generator(7, skip=3), n)
    np.testing.assert_array_equal(order[places], given_samples)
    np.testing.assert_array_equal(samples, given_samples)


def test_shuffles_end_to_end_are_followed_at_once() -> None:
    n, rows = 500, 7
    samples = np.arange(0, n, 11)
    base = np.arange(rows)[:, None] * n
    target = np.stack([torch_generator.targets(torch_generator.generator(s), n, n) for s in range(rows)]) + base
    final = torch_places.follow(target.reshape(-1), (samples + base).reshape(-1), np.zeros(rows * n, dtype=np.bool_))
    expected = np.stack([_places(s, n)[samples] for s in range(rows)])
    np.testing.assert_array_equal(final.reshape(rows, -1) - base, expected)


@pytest.mark.parametrize("n", [-1, torch_generator.MAX_N])
def test_an_n_that_is_too_large_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="randperm of"):
        torch_generator.targets(torch_generator.generator(0), n, 0)
