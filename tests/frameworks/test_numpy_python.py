"""numpy's and Python's shuffling, and programs that call it, against the models."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec

pytestmark = pytest.mark.framework

SIZES = (1, 2, 3, 4, 5, 8, 17, 32, 33, 1000, 4096, 70_001)
GENERATORS = {"numpy": np.random.default_rng, "numpy_legacy": np.random.RandomState}
METHODS = {
    "permutation of a number": lambda g, n: g.permutation(n).tolist(),
    "permutation of a list": lambda g, n: g.permutation(list(range(n))).tolist(),
    "shuffled list": lambda g, n: _in_place(g, list(range(n))),
    "shuffled int32": lambda g, n: _in_place(g, np.arange(n, dtype=np.int32)).tolist(),
    "shuffled int64": lambda g, n: _in_place(g, np.arange(n)).tolist(),
    "shuffled text": lambda g, n: [int(x) for x in _in_place(g, np.arange(n).astype("S8"))],
}


def _in_place(generator, items):
    generator.shuffle(items)
    return items


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", SIZES)
def test_numpy_draws_alike_whatever_the_call(name: str, method: str, n: int) -> None:
    for seed in (0, 42, 2**32 - 1):
        generator = GENERATORS[name](seed)
        for epoch in range(3):
            assert METHODS[method](generator, n) == registry.order(Spec(name, seed), n, epoch).tolist()


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("n", [1, 2, 17, 1000])
def test_numpy_carried_in_other_ways(name: str, n: int) -> None:
    spec = Spec(name, 7)
    generator = GENERATORS[name](7)
    files = np.arange(n)
    for epoch in range(4):
        generator.shuffle(files)
        assert registry.order(spec.with_option("carry", "shuffle"), n, epoch).tolist() == files.tolist()
        fresh = GENERATORS[name](7 + epoch).permutation(n)
        assert registry.order(spec.with_option("carry", "seed+epoch"), n, epoch).tolist() == fresh.tolist()
        first = GENERATORS[name](7).permutation(n)
        assert registry.order(spec.with_option("carry", "same"), n, epoch).tolist() == first.tolist()


def test_the_global_generator_of_numpy() -> None:
    state = np.random.get_state()
    try:
        np.random.seed(42)
        drawn = [np.random.permutation(1000).tolist() for _ in range(2)]
    finally:
        np.random.set_state(state)
    assert drawn == [registry.order(Spec("numpy_legacy", 42), 1000, epoch).tolist() for epoch in range(2)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 42, -7, 2**32 - 1, 2**32, 2**40 + 5, 2**64 - 1, -(2**63)])
def test_python_s_shuffle_and_sample(n: int, seed: int) -> None:
    stream, samples, listed = random.Random(seed), random.Random(seed), random.Random(seed)
    files = list(range(n))
    for epoch in range(3):
        listed.shuffle(files)
        assert registry.order(Spec("python", seed), n, epoch).tolist() == files
        fresh = list(range(n))
        stream.shuffle(fresh)
        assert registry.order(Spec("python", seed, (("carry", "stream"),)), n, epoch).tolist() == fresh
        spec = Spec("python", seed, (("carry", "stream"), ("method", "sample")))
        assert registry.order(spec, n, epoch).tolist() == samples.sample(range(n), n)


@pytest.mark.parametrize("method", ["shuffle", "sample"])
def test_python_carried_in_other_ways(method: str) -> None:
    n, spec = 1000, Spec("python", -3).with_option("method", 0 if method == "shuffle" else method)
    listed, files = random.Random(-3), list(range(n))

    def once(generator: random.Random, items: list[int]) -> list[int]:
        items = list(items)
        if method == "sample":
            return generator.sample(items, len(items))
        generator.shuffle(items)
        return items

    for epoch in range(4):
        files = once(listed, files)
        assert registry.order(spec, n, epoch).tolist() == files
        fresh = once(random.Random(-3 + epoch), list(range(n)))
        assert registry.order(spec.with_option("carry", "seed+epoch"), n, epoch).tolist() == fresh
        assert registry.order(spec.with_option("carry", "same"), n, epoch).tolist() == once(
            random.Random(-3), list(range(n))
        )
