"""Streams of shards without their libraries: orders as sets, ranks, values that the libraries gave (datasets 5.2, 4.8
and 4.0, mosaicml-streaming 0.13), and the follower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import huggingface, registry, sharding
from nopfsfs.plan.samplers.sampler import Spec, Value
from tests.examples import examples
from tests.plan.lasting_heads import LastingHeads
from tests.plan.samplers.orders import digest_of

NAMES = ("hf_stream", "hf_streaming")
SEED = 42
HEADS = LastingHeads(64 << 20)


def _every_spec(name: str, seed: int) -> list[Spec]:
    family = registry.sampler(name)
    return [Spec(name, seed), *family.variants(seed), *family.unusual(seed)]


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 3), st.integers(0, 40), st.integers(1, 5), st.data())
@settings(max_examples=examples(40))
def test_ranks_have_all_shards_between_them(name, n, seed, epoch, count, world, data) -> None:
    spec = data.draw(st.sampled_from(_every_spec(name, seed)))
    family = registry.sampler(name)
    alone = family.shared(spec, n, epoch)
    assert alone.dtype == np.int64
    np.testing.assert_array_equal(np.sort(alone), np.arange(n))
    np.testing.assert_array_equal(alone, registry.order(spec, n, epoch))
    np.testing.assert_array_equal(family.shared(spec, n, epoch, count), alone[:count])
    merged = family.order(spec, n, epoch, world, range(world))
    for rank, lane in enumerate(merged.reshape(-1, world).T):
        own = registry.order(spec, n, epoch, world, rank)
        np.testing.assert_array_equal(lane[lane != sharding.NOTHING], own)
        np.testing.assert_array_equal(family.order(spec, n, epoch, world, (rank,), count), own[:count])
    counts = np.bincount(merged[merged != sharding.NOTHING], minlength=n)
    whole = n % world and spec.get("strategy", "auto") == "auto"
    assert (counts == (world if whole else 1)).all()


@pytest.mark.parametrize("name", [*NAMES, "mosaic"])
def test_variants_differ_and_are_what_a_user_could_have_configured(name: str) -> None:
    family = registry.sampler(name)
    specs = (*family.variants(5), *family.unusual(5))
    assert len(family.variants(5)) <= 6
    orders = set()
    for spec in specs:
        said = {key: bool(value) if family.options[key].kind is bool else value for key, value in spec.options}
        assert registry.make_spec(family, spec.seed, said) == spec
        following = family.following(spec, 0)
        assert len(set(following)) == len(following)
        orders.add(b"".join(family.order(spec, 1201, epoch, 8, range(8)).tobytes() for epoch in (0, 1, 2)))
    assert len(orders) == len(specs)


@pytest.mark.parametrize(
    ("spec", "epoch", "head", "digest"),
    [
        (Spec("hf_stream", SEED), 0, [978, 933, 859, 916, 127], "9f551c62131b8c8b"),
        (Spec("hf_stream", SEED), 3, [288, 698, 847, 894, 228], "d659b0a5bd400890"),
        (Spec("hf_stream", SEED, (("reseeded", 1),)), 3, [79, 616, 146, 618, 832], "74cfa2e8969fa29c"),
        (Spec("hf_streaming", SEED), 3, [288, 745, 271, 958, 122], "d4c1f387752b884b"),
    ],
)
def test_values_of_the_libraries(spec: Spec, epoch: int, head: list[int], digest: str) -> None:
    assert _head_and_digest(registry.order(spec, 1000, epoch)) == (head, digest)


@pytest.mark.parametrize(
    ("algo", "head", "digest"),
    [
        ("py1e", [41, 95, 25, 0, 36], "fc85c0903a4f00e8"),
        ("py1br", [34, 50, 94, 6, 75], "41d9a84e1c8c9716"),
        ("py1s", [40, 48, 36, 19, 26], "abceea5a4a6556a9"),
        ("py2s", [40, 74, 73, 36, 6], "e1cbed8713267572"),
        ("naive", [70, 62, 23, 96, 12], "68d638bad5a0de4c"),
    ],
)
def test_values_of_mosaic(algo: str, head: list[int], digest: str) -> None:
    spec = _mosaic(algo=algo, block=2000, canonical=2, sizes="97*50,60*49,11")
    assert _head_and_digest(registry.order(spec, 100, 2)) == (head, digest)


def _mosaic(seed: int = 9176, **options: Value) -> Spec:
    return registry.make_spec(registry.sampler("mosaic"), seed, options)


def _head_and_digest(order: np.ndarray) -> tuple[list[int], str]:
    return order[:5].tolist(), digest_of(order)


ALGOS = ("py1e", "py1br", "py1s", "py2s", "naive")


@given(
    st.sampled_from(ALGOS),
    st.lists(st.integers(1, 30), min_size=8, max_size=60),
    st.sampled_from([(1, 0), (2, 0), (4, 0), (2, 1), (4, 2), (2, 6)]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2),
)
@settings(max_examples=examples(60))
def test_nodes_of_mosaic_have_all_shards_between_them(algo, sizes, nodes, each, epoch) -> None:
    nodes, canonical = nodes
    n, world = len(sizes), nodes * each
    text = ",".join(map(str, sizes))
    spec = _mosaic(algo=algo, canonical=canonical or 8, block=40, sizes=text, ranks_per_node=each)
    family = registry.sampler("mosaic")
    merged = family.order(spec, n, epoch, world, range(world))
    for rank, lane in enumerate(merged.reshape(-1, world).T):
        own = registry.order(spec, n, epoch, world, rank)
        np.testing.assert_array_equal(lane[lane != sharding.NOTHING], own)
        np.testing.assert_array_equal(family.order(spec, n, epoch, world, (rank,), 5), own[:5])
    seen = set()
    for node in range(nodes):
        here = family.order(spec, n, epoch, world, range(node * each, (node + 1) * each))
        here = here[here != sharding.NOTHING]
        assert len(set(here.tolist())) == len(here)  # a node copies each shard once
        seen |= set(here.tolist())
    if canonical != 1:  # nodes that share a run may have no sample of a shard of one
        assert seen == set(range(n))


@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s"])
def test_shards_alike_need_no_sizes_for_the_order_of_the_runs(algo: str) -> None:
    sized = _mosaic(algo="py1s", canonical=2, sizes="4*60")
    guessed = _mosaic(algo=algo, canonical=2)
    for epoch in range(3):
        assert registry.order(guessed, 60, epoch).tolist() == registry.order(sized, 60, epoch).tolist()


@pytest.mark.parametrize(
    ("options", "world", "problem"),
    [
        ({"algo": "naive"}, 1, "sizes: naive needs them"),
        ({"algo": "py2s"}, 1, "sizes: py2s needs them"),
        ({"sizes": "5*9"}, 1, "sizes: of 9 shards, but there are 10"),
        ({"sizes": "5*9,x"}, 1, "sizes: 'x' is neither"),
        ({"sizes": "0*10"}, 1, "sizes: '0.10' is neither"),
        ({"sizes": "1*10", "canonical": 11}, 1, "canonical: 10 samples are too few for 11 nodes"),
        ({"canonical": 3}, 2, "canonical: 3 nodes and 2 do not divide"),
        ({"ranks_per_node": 2}, 3, "ranks_per_node: 2 does not divide a world of 3"),
    ],
)
def test_mosaic_refuses_what_cannot_be(options: dict[str, Value], world: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        registry.order(_mosaic(**options), 10, 0, world)


def test_runs_of_shards_are_read_in_turn() -> None:
    assert huggingface.in_turn(np.arange(7), 3).tolist() == [0, 3, 5, 1, 4, 6, 2]
    assert huggingface.in_turn(np.arange(3), 10).tolist() == [0, 1, 2]
    assert huggingface.in_turn(np.arange(0), 10).tolist() == []


@pytest.mark.parametrize("strategy", ["auto", "examples", "shards"])
def test_shards_that_cannot_be_dealt_out_evenly_are_read_by_all(strategy: str) -> None:
    spec = Spec("hf_streaming", SEED).with_option("strategy", strategy)
    lengths = [len(registry.order(spec, 25, 0, 2, rank)) for rank in range(2)]
    assert lengths == ([13, 12] if strategy == "shards" else [25, 25])


def _opens(spec: Spec, rows: np.ndarray, epoch: int, world: int, rank: int, rng: np.random.Generator) -> np.ndarray:
    order = rows[registry.order(spec, len(rows), epoch, world, rank)]
    return np.array(Loader(2, 2, 1).ranks([order.tolist()], rng), dtype=np.int64)


@pytest.mark.parametrize(
    ("spec", "world", "rank"),
    [
        (Spec("hf_stream", SEED), 1, 0),
        (Spec("hf_stream", SEED, (("reseeded", 1),)), 1, 0),
        (Spec("hf_streaming", SEED), 1, 0),
        (Spec("hf_streaming", SEED, (("workers", 4),)), 1, 0),
        (Spec("hf_streaming", SEED, (("workers", 4),)), 8, 3),
        (Spec("mosaic", 9176), 1, 0),
        (Spec("mosaic", SEED), 4, 3),
    ],
)
def test_streams_are_found(spec: Spec, world: int, rank: int) -> None:
    rng = np.random.default_rng(3)
    rows = np.arange(1, 1601, dtype=np.int64)
    dataset = DataSet(0, "train", (FileOrder(("sorted_files", "shards"), rows),))
    follower = Follower([dataset], SEED, heads=HEADS, worlds=[(world, (rank,))])
    for epoch in range(3):
        opens = _opens(spec, rows, epoch, world, rank, rng)
        flags = []
        for at in range(0, len(opens), 8):
            flags.append(follower.observe(opens[at : at + 8]))
            follower.settle()
        assert np.concatenate(flags)[64 if epoch == 0 else 16 :].mean() >= 0.95, (epoch, follower.status())
    assert follower.status().state == "locked"


@pytest.mark.parametrize("method", ["shuffle", "detshuffle"])
def test_workers_that_are_made_anew_begin_anew(method: str) -> None:
    """Each counts its epochs from 0: the first one is read again, and nothing else."""
    rng = np.random.default_rng(4)
    rows = np.arange(1, 501, dtype=np.int64)
    dataset = DataSet(0, "train", (FileOrder(("sorted_files", "shards"), rows),))
    spec = Spec("webdataset", 7, (("method", method), ("workers", 2)))
    follower = Follower([dataset], 7, heads=HEADS)
    follower.register([(build(Hypothesis(0, 0, spec), [dataset]), None)])
    order = rows[registry.order(spec, len(rows), 0)].tolist()
    for epoch in range(3):
        opens = [(sample, 10 * epoch + worker + 1) for sample, worker in Loader(2, 2, 1).reads(order, rng)]
        # all at once, as a supervisor sees them that is busy meanwhile
        samples, readers = np.array(opens, np.int64).T
        flags = follower.observe(samples, readers)
        follower.settle()
        assert flags.sum() >= len(rows) - (8 if epoch == 1 else 0), epoch
