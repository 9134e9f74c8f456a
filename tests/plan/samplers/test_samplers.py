"""Orders as sets: permutations, padded or cut as defined; heads; names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, Dealt, Spec
from tests.examples import examples

sizes = st.integers(1, 3000)
seeds = st.integers(-(2**63), 2**64 - 1)


def _swapped(seed: int, n: int) -> list[int]:
    """randperm as its definition says it: one swap after the other."""
    state = torch_generator.generator(seed)
    r = list(range(n))
    for i in range(n - 1):
        j = i + int(torch_generator.words(state, 1)[0]) % (n - i)
        r[i], r[j] = r[j], r[i]
    return r


@given(st.integers(0, 200), seeds)
@settings(max_examples=examples(60))
def test_randperm_equals_swapping_one_by_one(n: int, seed: int) -> None:
    assert torch_generator.randperm(torch_generator.generator(seed), n).tolist() == _swapped(seed, n)


@given(sizes, seeds, st.integers(0, 3000))
@settings(max_examples=examples(60))
def test_head_is_the_beginning_of_the_whole(n: int, seed: int, count: int) -> None:
    whole = torch_generator.randperm(torch_generator.generator(seed), n)
    head = torch_generator.randperm(torch_generator.generator(seed), n, count)
    np.testing.assert_array_equal(head, whole[:count])


@pytest.mark.parametrize("n", [-1, torch_generator.MAX_N])
def test_randperm_refuses_sizes_it_cannot_reproduce(n: int) -> None:
    with pytest.raises(ValueError):
        torch_generator.randperm(torch_generator.generator(0), n)


def test_skipping_words_equals_drawing_them() -> None:
    state = torch_generator.generator(5)
    torch_generator.words(state, (1 << 20) + 7)
    expected = torch_generator.words(state, 5)
    np.testing.assert_array_equal(torch_generator.words(torch_generator.generator(5, (1 << 20) + 7), 5), expected)


@given(sizes, seeds, st.integers(0, 5), st.integers(1, 9), st.booleans(), st.booleans())
@settings(max_examples=examples(80))
def test_ranks_share_out_a_padded_or_cut_permutation(
    n: int, seed: int, epoch: int, world: int, drop_last: bool, sequential: bool
) -> None:
    spec = Spec("distributed", seed, (("drop_last", int(drop_last)), ("sequential", int(sequential))))
    family = registry.sampler("distributed")
    parts = [registry.order(spec, n, epoch, world, rank) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    merged = np.stack(parts, axis=1).reshape(-1)
    np.testing.assert_array_equal(merged, family.order(spec, n, epoch, world, range(world)))
    counts = np.bincount(merged, minlength=n)
    if drop_last:
        assert len(merged) == n // world * world
        assert counts.max(initial=0) <= 1
    else:
        assert len(merged) == -(-n // world) * world
        assert counts.min() >= 1
        assert counts.max() - counts.min() <= 1


@given(sizes, seeds, st.integers(0, 3), st.sampled_from(["epoch", "once", "never"]))
@settings(max_examples=examples(40))
def test_random_sampler_gives_permutations(n: int, seed: int, epoch: int, base_seed: str) -> None:
    taken = registry.order(Spec("random", seed, (("base_seed", base_seed),)), n, epoch)
    np.testing.assert_array_equal(np.sort(taken), np.arange(n))


def test_unknown_sampler_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"distributed, random, .*sequential"):
        registry.sampler("nonesuch")


@pytest.mark.parametrize(("world", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_ranks_outside_the_world_are_refused(world: int, rank: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        registry.order(Spec("distributed"), 10, 0, world, rank)


@pytest.mark.parametrize("name", [name for name, family in registry.SAMPLERS.items() if family.dealt is Dealt.ALL])
def test_what_follows_an_order_that_is_sliced_is_sliced(name: str) -> None:
    family = registry.sampler(name)
    for spec in family.variants(42):
        for follows, _ in family.following(spec.with_option(STRIDED, 1), 1):
            assert follows.number(STRIDED) == 1
