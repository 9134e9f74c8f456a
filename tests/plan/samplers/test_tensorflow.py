"""tf.data's and Keras' orders without them: golden values of TensorFlow 2.21 and Keras 3.15, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import philox
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec, Value
from nopfsfs.plan.samplers.sharding import NOTHING
from nopfsfs.plan.samplers.tensorflow import MAX_N, SEEDS, iterator_seeds, shuffled
from nopfsfs.plan.search import tf_buffer_search
from tests.examples import examples
from tests.plan.samplers.orders import digest_of

NAMES = ("tf_shuffle", "tf_list_files", "tf_shuffle_shard", "tf_shard_shuffle", "keras_directory")
sizes = st.integers(2, 3000)
seeds = st.integers(0, 2**32 - 1)


def _spec(name: str, seed: int, **options: Value) -> Spec:
    return registry.make_spec(registry.sampler(name), seed, options)


def _every(name: str, seed: int) -> tuple[Spec, ...]:
    family = registry.sampler(name)
    return family.variants(seed) + family.unusual(seed)


GOLDEN: tuple[tuple[str, int, dict[str, Value], int, list[int]], ...] = (
    ("tf_shuffle", 42, {}, 0, [5, 9, 6, 4, 7, 1, 2, 8, 3, 0]),
    ("tf_shuffle", 42, {}, 1, [3, 7, 6, 5, 8, 4, 0, 1, 9, 2]),
    ("tf_shuffle", 42, {"buffer": 3}, 0, [0, 3, 4, 2, 1, 5, 8, 6, 7, 9]),
    ("tf_shuffle", 42, {"buffer": 3}, 1, [0, 1, 4, 2, 5, 7, 8, 3, 9, 6]),
    ("tf_shuffle", 42, {"fixed": True}, 0, [2, 0, 7, 8, 9, 3, 6, 4, 1, 5]),
    ("tf_shuffle", 42, {"fixed": True}, 5, [2, 0, 7, 8, 9, 3, 6, 4, 1, 5]),
    ("tf_shuffle", 5, {"seeded": "global"}, 0, [7, 5, 4, 1, 0, 9, 6, 3, 8, 2]),
    ("tf_shuffle", 5, {"seeded": "global", "op_index": 1}, 0, [1, 7, 4, 2, 3, 0, 8, 9, 5, 6]),
    ("tf_shuffle", 42, {"seeded": "both", "global_seed": 5}, 0, [4, 2, 7, 1, 6, 5, 8, 3, 9, 0]),
    ("tf_shuffle", 0, {"seeded": "both"}, 0, [4, 9, 1, 0, 7, 3, 5, 2, 8, 6]),
    ("tf_shuffle", 42, {"skip": 2, "take": 3}, 0, [6, 4, 7]),
    ("tf_list_files", 42, {}, 0, [5, 9, 6, 4, 7, 1, 2, 8, 3, 0]),
    ("tf_list_files", 42, {"twice": True, "buffer": 3}, 0, [5, 4, 7, 6, 9, 1, 3, 2, 8, 0]),
    ("tf_list_files", 42, {"twice": True, "buffer": 3}, 1, [3, 7, 8, 6, 4, 1, 9, 5, 2, 0]),
    ("keras_directory", 42, {}, 0, [7, 2, 4, 3, 9, 6, 0, 10, 1, 11, 8, 5]),
    ("keras_directory", 42, {}, 1, [8, 0, 9, 11, 4, 1, 5, 6, 7, 3, 10, 2]),
    ("keras_directory", 42, {"validation_split": 0.25, "batch": 1}, 0, [9, 4, 2, 11, 8, 0, 10, 5, 1]),
    ("keras_directory", 42, {"validation_split": 0.25, "batch": 1, "subset": "validation"}, 0, [7, 6, 3]),
    ("keras_directory", 7, {"seeded": "drawn"}, 0, [1, 8, 7, 4, 0, 5, 2, 10, 3, 6, 11, 9]),
)


@pytest.mark.parametrize(("name", "seed", "options", "epoch", "order"), GOLDEN)
def test_golden(name: str, seed: int, options: dict[str, Value], epoch: int, order: list[int]) -> None:
    n = 12 if name == "keras_directory" else 10
    assert registry.order(_spec(name, seed, **options), n, epoch).tolist() == order


@pytest.mark.parametrize(("epoch", "digest"), [(0, "15a2dabde3f2c8b3"), (1, "61f0d40fc464ad48")])
def test_golden_of_many(epoch: int, digest: str) -> None:
    order = registry.order(_spec("tf_shuffle", 7, buffer=1000), 100_003, epoch)
    assert digest_of(order) == digest


@given(sizes, st.integers(1, 3500), seeds, st.integers(0, 3000))
@settings(max_examples=examples(60))
def test_shuffle_is_a_permutation_that_runs_ahead_by_less_than_its_buffer(
    n: int, buffer: int, seed: int, count: int
) -> None:
    order = shuffled((seed, 1), n, buffer)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    assert (order - np.arange(n)).max() < buffer
    np.testing.assert_array_equal(shuffled((seed, 1), n, buffer, count), order[:count])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [10, 1500])
def test_every_configuration(name: str, n: int) -> None:
    """Is checked, differs from the others, has no sample twice, and its head is its beginning."""
    family = registry.sampler(name)
    every = _every(name, 42)
    assert len(set(every)) == len(every)
    for spec in every:
        flags = {option for option, about in family.options.items() if about.kind is bool}
        options = {option: bool(value) if option in flags else value for option, value in spec.options}
        assert registry.make_spec(family, spec.seed, options) == spec
        order = family.shared(spec, n, 3)
        assert len(np.unique(order)) == len(order) <= n
        np.testing.assert_array_equal(family.shared(spec, n, 3, 7), order[:7])


@pytest.mark.parametrize("name", ["tf_shuffle_shard", "tf_shard_shuffle"])
@given(sizes, seeds, st.integers(1, 9), st.integers(0, 400), st.integers(0, 50))
@settings(max_examples=examples(40))
def test_ranks_partition_the_files(name: str, n: int, seed: int, world: int, buffer: int, count: int) -> None:
    family, spec = registry.sampler(name), _spec(name, seed, buffer=buffer)
    parts = [registry.order(spec, n, 1, world, rank) for rank in range(world)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    merged = family.order(spec, n, 1, world, range(world))
    assert len(merged) == world * max(map(len, parts))
    for rank, part in enumerate(parts):
        lane = merged[rank::world]
        np.testing.assert_array_equal(lane[lane != NOTHING], part)
    head = family.order(spec, n, 1, world, range(world), count)
    np.testing.assert_array_equal(head, merged[: count * world])


@pytest.mark.parametrize("name", NAMES)
def test_what_follows(name: str) -> None:
    """The next pairs of seeds, the learned step first; then the first pair again."""
    family = registry.sampler(name)
    coming = family.following(Spec(name, 42), 0)
    assert coming[0] == (Spec(name, 42), 1)
    assert len(coming) <= 12
    spec, epoch = coming[1]
    assert (spec.get("step", 1), epoch) == (2, 1)
    assert registry.order(spec, 50, 1).tolist() == registry.order(Spec(name, 42), 50, 2).tolist()
    assert family.following(spec, epoch)[0] == (spec, 2)
    assert (
        registry.order(*family.following(spec, 2)[-1][:1], 50).tolist() == registry.order(Spec(name, 42), 50).tolist()
    )


def test_a_mirrored_strategy_takes_the_first_pair_and_then_every_other() -> None:
    family = registry.sampler("tf_shuffle")
    spec, epoch = family.following(Spec("tf_shuffle", 42), 0)[0]
    spec, epoch = family.following(spec, epoch)[1]
    assert epoch == 2
    assert registry.order(spec, 50, 2).tolist() == registry.order(Spec("tf_shuffle", 42), 50, 3).tolist()
    assert registry.order(spec, 50, 3).tolist() == registry.order(Spec("tf_shuffle", 42), 50, 5).tolist()


def test_one_order_for_ever_is_not_searched_for_in_later_epochs() -> None:
    spec = _spec("tf_shuffle", 42, fixed=True)
    family = registry.sampler("tf_shuffle")
    assert family.epochs(spec) == 1
    assert family.following(spec, 3) == ((spec, 4),)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_that_the_framework_refuses_have_no_variants(name: str) -> None:
    assert not _every(name, SEEDS[1] + 1)
    assert bool(_every(name, -1)) == (name not in ("keras_directory", "tf_shuffle_shard"))


@pytest.mark.parametrize(
    ("spec", "n"),
    [
        (Spec("tf_shuffle", options=(("pair", -1),)), 10),
        (Spec("tf_shuffle"), -1),
        (Spec("tf_shuffle"), MAX_N + 1),
        (Spec("keras_directory", options=(("validation_split", 0.2),)), 4),
    ],
)
def test_refused(spec: Spec, n: int) -> None:
    with pytest.raises(ValueError):
        registry.sampler(spec.sampler).shared(spec, n, 0, 5)


@given(st.integers(0, 500), seeds, st.floats(1e-6, 1))
@settings(max_examples=examples(40))
def test_take_and_skip_are_the_whole(n: int, seed: int, fraction: float) -> None:
    rule = registry.subset("tf_take_skip")
    parts = [
        rule.samples(registry.make_spec(rule, seed, {"fraction": fraction, "part": part}), n)
        for part in ("take", "skip")
    ]
    assert len(parts[0]) == int(fraction * n)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    for spec in rule.variants(seed):
        assert len(rule.samples(spec, n)) <= n


@pytest.mark.parametrize("slack", [0, 16])
@pytest.mark.parametrize("buffer", [50, 333, 1000, 20_000])
def test_the_buffer_is_found_from_the_first_opens(buffer: int, slack: int) -> None:
    n, own = 20_000, iterator_seeds((87654321, 42), 3)
    opens = shuffled(own, n, buffer, 300)
    if slack:
        late = np.random.default_rng(0).uniform(0, slack, len(opens))
        opens = opens[np.argsort(np.arange(len(opens)) + late)]
    words = philox.words(*own, 0, 256)
    size, agreement = tf_buffer_search.buffers(words, opens, n, slack)[0]
    assert (size, agreement) == (buffer, 1.0)
    assert not tf_buffer_search.buffers(words[1:], opens, n, slack)


def test_the_whole_shuffle_is_found_from_the_first_opens() -> None:
    spec = _spec("tf_shuffle", 42, buffer=777, seeded="global")
    opens = registry.sampler("tf_shuffle").shared(spec, 20_000, 2, 100)
    assert tf_buffer_search.specs(42, opens, 20_000)[0] == (spec, 2, 1.0)
    whole = _spec("tf_shuffle", 42)
    opens = registry.sampler("tf_shuffle").shared(whole, 20_000, 1, 100)
    assert tf_buffer_search.specs(42, opens, 20_000)[0] == (whole, 1, 1.0)


@pytest.mark.parametrize(("n", "opens"), [(0, []), (1, [0]), (100, [5])])
def test_too_few_opens_tell_no_buffer(n: int, opens: list[int]) -> None:
    assert tf_buffer_search.buffers(philox.words(1, 2, 0, 256), np.array(opens, dtype=np.int64), n) == ()
