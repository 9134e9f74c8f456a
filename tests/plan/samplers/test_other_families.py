"""Samplers besides torch's, without their frameworks: orders as sets, heads, ranks, what is refused, and values that
the frameworks gave (numpy 2.4, Python 3.11, grain 0.2.18, datasets 5.2, webdataset 1.0.2, DALI 2.4)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import fisher_yates
from nopfsfs.plan.generators.mersenne64 import Mersenne64
from nopfsfs.plan.samplers import registry, sharding
from nopfsfs.plan.samplers.dali import std_shuffle, std_shuffle64
from nopfsfs.plan.samplers.grain import index_shuffle
from nopfsfs.plan.samplers.sampler import GivenOrders, Spec
from tests.examples import examples
from tests.plan.samplers.orders import digest_of

NAMES = ("numpy", "numpy_legacy", "python", "grain", "hf_datasets", "webdataset", "webdataset_split", "dali")
sizes = st.integers(1, 1500)
seeds = st.integers(0, 2**32 - 1)


def _every_spec(name: str, seed: int) -> list[Spec]:
    family = registry.sampler(name)
    return [Spec(name, seed), *family.variants(seed), *family.unusual(seed)]


@pytest.mark.parametrize("name", NAMES)
@given(sizes, seeds, st.integers(0, 3), st.integers(0, 1500), st.data())
@settings(max_examples=examples(25))
def test_orders_are_permutations_and_heads_their_beginnings(
    name: str, n: int, seed: int, epoch: int, count: int, data: st.DataObject
) -> None:
    spec = data.draw(st.sampled_from(_every_spec(name, seed)))
    if spec.get("carry", "") == "seed+epoch" and seed + epoch >= 2**32:
        return
    family = registry.sampler(name)
    order = family.shared(spec, n, epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    np.testing.assert_array_equal(family.shared(spec, n, epoch, count), order[:count])


@pytest.mark.parametrize("name", NAMES)
@given(sizes, seeds, st.integers(0, 3), st.integers(1, 5), st.integers(0, 40), st.data())
@settings(max_examples=examples(25))
def test_ranks_share_out_the_samples(
    name: str, n: int, seed: int, epoch: int, world: int, count: int, data: st.DataObject
) -> None:
    family = registry.sampler(name)
    spec = data.draw(st.sampled_from(_every_spec(name, seed)))
    if spec.get("carry", "") == "seed+epoch" and seed + epoch >= 2**32:
        return
    merged = family.order(spec, n, epoch, world, range(world))
    lanes = merged.reshape(-1, world)
    for rank in range(world):
        own = registry.order(spec, n, epoch, world, rank)
        np.testing.assert_array_equal(lanes[:, rank][lanes[:, rank] != sharding.NOTHING], own)
        np.testing.assert_array_equal(family.order(spec, n, epoch, world, (rank,), count), own[:count])
    counts = np.bincount(merged[merged != sharding.NOTHING], minlength=n)
    if family.dealt.value == "all":
        assert (counts == world).all()
    elif spec.number("drop_remainder"):
        assert counts.max() <= 1
        assert counts.sum() == n // world * world
    else:
        assert (counts == 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_variants_differ_and_are_what_a_user_could_have_configured(name: str) -> None:
    family = registry.sampler(name)
    specs = (*family.variants(5), *family.unusual(5))
    assert len(family.variants(5)) <= 6
    assert len(family.unusual(5)) <= 40
    assert len(set(specs)) == len(specs)
    orders = set()
    for spec in specs:
        # a user says true where a Spec says 1
        said = {key: bool(value) if family.options[key].kind is bool else value for key, value in spec.options}
        assert registry.make_spec(family, spec.seed, said) == spec
        assert family.epochs(spec) >= 1
        following = family.following(spec, 0)
        assert 1 <= len(set(following)) == len(following) <= 12
        parts = [family.order(spec, 6001, epoch, 4, range(4)).tobytes() for epoch in (0, 1, 2)]
        orders.add(b"".join(parts))
    assert len(orders) == len(specs)


@pytest.mark.parametrize(
    ("spec", "n", "epoch", "head", "digest"),
    [
        (Spec("numpy", 42), 1000, 1, [413, 666, 343, 297, 146], "b1a0b4448c733dd1"),
        (Spec("numpy", 42, (("carry", "shuffle"),)), 1000, 2, [174, 3, 803, 772, 626], "e40c341d537a3503"),
        (Spec("numpy_legacy", 42), 1000, 1, [93, 692, 100, 562, 729], "4a5e842a6e183a44"),
        (Spec("python", 42), 70001, 1, [42283, 37106, 17457, 34875, 16773], "c00e0327c0656979"),
        (
            Spec("python", 42, (("carry", "stream"), ("method", "sample"))),
            1000,
            2,
            [630, 5, 927, 81, 19],
            "49eec0f7f55c20f4",
        ),
        (Spec("grain", 42), 70001, 3, [49053, 67908, 17474, 53106, 66291], "42a1903a948b138c"),
        (Spec("grain", 42, (("derived", 1),)), 1000, 0, [275, 749, 131, 958, 597], "a6ee7b1bfa811cd8"),
        (Spec("hf_datasets", 42), 1000, 5, [978, 933, 859, 916, 127], "9f551c62131b8c8b"),
        (Spec("webdataset", 42), 1000, 0, [81, 14, 3, 94, 35], "ad5c2f8ddefba4fe"),
        (Spec("webdataset", 42, (("method", "detshuffle"),)), 1000, 3, [34, 53, 62, 32, 10], "1b3824aa5089775f"),
        (Spec("dali"), 1000, 0, [30, 812, 788, 887, 165], "8a9a486613eb68ed"),
        (Spec("dali"), 70001, 0, [14022, 67989, 4767, 37944, 42924], "a29946d065eb8900"),
        (Spec("dali", 0, (("shuffle_after_epoch", 1),)), 1000, 2, [811, 126, 857, 500, 788], "ba38bc1bcd603771"),
        (
            Spec("dali", 0, (("shuffle_after_epoch", 1),)),
            70001,
            0,
            [29860, 59251, 62166, 60396, 26107],
            "2627e9aa69ef4206",
        ),
    ],
)
def test_values_of_the_frameworks(spec: Spec, n: int, epoch: int, head: list[int], digest: str) -> None:
    order = registry.order(spec, n, epoch)
    assert order[: len(head)].tolist() == head
    assert digest_of(order) == digest


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 64, 65, 1000, 70_001])
@pytest.mark.parametrize("seed", [0, 42, -7, 2**32, 2**63])
def test_python_s_own_random(n: int, seed: int) -> None:
    real, files = random.Random(seed), list(range(n))
    for epoch in range(2):
        real.shuffle(files)
        assert registry.order(Spec("python", seed), n, epoch).tolist() == files
    assert registry.order(Spec("python", seed, (("method", "sample"),)), n).tolist() == random.Random(seed).sample(
        range(n), n
    )


def test_the_last_seed_of_numpy_s_old_generator_has_no_seed_after_it() -> None:
    family = registry.sampler("numpy_legacy")
    for spec in family.variants(2**32 - 1):
        for epoch in range(family.epochs(spec)):
            family.shared(spec, 10, epoch)
            for after, at in family.following(spec, epoch):
                family.shared(after, 10, at)
    with pytest.raises(ValueError):
        family.shared(Spec("numpy_legacy", 2**32 - 1, (("carry", "seed+epoch"),)), 10, 1)


@given(st.integers(0, 300), seeds)
@settings(max_examples=examples(60))
def test_swaps_equal_swapping_one_by_one(n: int, seed: int) -> None:
    drawn = np.array([seed * (i + 7) % (i + 1) for i in range(n - 1, -1, -1)], np.int64)
    items = list(range(n))
    for i, j in zip(range(n - 1, -1, -1), drawn.tolist(), strict=True):
        items[i], items[j] = items[j], items[i]
    assert fisher_yates.backward(drawn, n).tolist() == items[::-1]


def test_the_64_bit_twister_is_that_of_the_standard() -> None:
    # ISO C++ 26.5.5: the 10000th word of a default-constructed mt19937_64
    assert int(Mersenne64(5489).words(10_000)[-1]) == 9981545732273789042
    parts = Mersenne64(3)
    pieces = np.concatenate([parts.words(k) for k in (0, 1, 311, 312, 313, 7)])
    np.testing.assert_array_equal(pieces, Mersenne64(3).words(len(pieces)))


@pytest.mark.parametrize("call", [std_shuffle, std_shuffle64])
@pytest.mark.parametrize("n", [-1, 2**31])
def test_dali_refuses_sizes_it_cannot_reproduce(call, n: int) -> None:
    with pytest.raises(ValueError, match="must be between"):
        call(1, n)


@pytest.mark.parametrize("other", ["sequential", "stick_to_shard"])
def test_dali_refuses_what_dali_refuses(other: str) -> None:
    with pytest.raises(ValueError, match="shuffle_after_epoch"):
        registry.order(Spec("dali", 0, ((other, 1), ("shuffle_after_epoch", 1))), 10)


def test_grain_reads_one_sample_twice_where_grain_does() -> None:
    order = index_shuffle(2**16 + 1, 42)
    assert order[-1] == order[0] == 43043
    assert len(np.unique(order)) == 2**16


@pytest.mark.parametrize("n", [-1, 2**32 + 1])
def test_grain_refuses_sizes_it_cannot_reproduce(n: int) -> None:
    with pytest.raises(ValueError, match="must be between"):
        index_shuffle(n, 0)


def _given(*epochs: list[int]) -> Spec:
    return Spec("explicit", data=GivenOrders(tuple(np.array(one, np.int64) for one in epochs)))


def test_explicit_orders_repeat_and_are_dealt_out() -> None:
    spec = _given([3, 1, 3], [0, 2])
    assert [registry.order(spec, 4, epoch).tolist() for epoch in range(3)] == [[3, 1, 3], [0, 2], [3, 1, 3]]
    family = registry.sampler("explicit")
    assert family.epochs(spec) == 2
    assert family.order(spec, 4, 0, 2, (0, 1)).tolist() == [3, 3, 1, 1, 3, 3]
    strided = spec.with_option("deal", "strided")
    assert family.order(strided, 4, 0, 2, (0, 1)).tolist() == [3, 1, 3, sharding.NOTHING]
    assert family.order(strided, 4, 0, 2, (1,), 1).tolist() == [1]


@pytest.mark.parametrize(("sample", "epoch"), [(4, 0), (-1, 1)])
def test_explicit_orders_name_the_first_bad_sample(sample: int, epoch: int) -> None:
    epochs = [[0, 1, 2], [2, 1, 0]]
    epochs[epoch][2] = sample
    with pytest.raises(ValueError, match=f"epoch {epoch}, place 2: there is no sample {sample} among 4"):
        registry.order(_given(*epochs), 4, epoch)


def test_explicit_needs_orders() -> None:
    with pytest.raises(ValueError, match="no order"):
        registry.order(Spec("explicit"), 4)


@pytest.mark.parametrize("name", ["hf_split", "sklearn_split", "fraction"])
@given(st.integers(10, 500), seeds)
@settings(max_examples=examples(25))
def test_parts_make_up_the_whole(name: str, n: int, seed: int) -> None:
    rule = registry.subset(name)
    specs = rule.variants(seed)
    assert len(set(specs)) == len(specs) == 10 if name != "fraction" else 12
    for one, other in zip(specs[::2], specs[1::2], strict=True):
        assert registry.make_spec(rule, one.seed, dict(one.options)) == one
        parts = [rule.samples(one, n), rule.samples(other, n)]
        assert len(parts[0]) >= len(parts[1]) - 1
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@pytest.mark.parametrize(("size", "n"), [(10, 10), (2.5, 10), (0.5, 1)])
def test_splits_refuse_what_cannot_be_split(size: float, n: int) -> None:
    with pytest.raises(ValueError, match="test_size"):
        registry.subset("hf_split").samples(Spec("hf_split", 0, (("test_size", size),)), n)


def test_a_fraction_is_never_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        registry.subset("fraction").samples(Spec("fraction"), 1)
