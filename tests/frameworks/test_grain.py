"""The model of PyGrain against grain itself."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.grain import index_shuffle
from nopfsfs.plan.samplers.sampler import Spec

grain = pytest.importorskip("grain.python")
module = pytest.importorskip("grain._src.python.experimental.index_shuffle.python.index_shuffle_module")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

SIZES = (1, 2, 3, 17, 1000)


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1])
@pytest.mark.parametrize("n", [*SIZES, 65_535, 65_536, 65_537, 65_538, 2**18 + 1, 2**18 + 2])
def test_index_shuffle(n: int, seed: int) -> None:
    real = [module.index_shuffle(i, n - 1, seed, 4) for i in range(n)]
    assert index_shuffle(n, seed).tolist() == real


@pytest.mark.parametrize("n", [2**30 + 1, 2**31 + 5, 2**32])
def test_index_shuffle_of_many(n: int) -> None:
    assert index_shuffle(n, 7, 300).tolist() == [module.index_shuffle(i, n - 1, 7, 4) for i in range(300)]


@pytest.mark.parametrize("n", [6, 7, 17, 1000])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_index_sampler(n: int, world: int, drop: bool, shuffle: bool) -> None:
    spec = Spec("grain", 5).with_option("drop_remainder", int(drop)).with_option("sequential", int(not shuffle))
    for rank in range(world):
        options = grain.ShardOptions(rank, world, drop_remainder=drop)
        sampler = grain.IndexSampler(n, options, shuffle=shuffle, seed=5)
        keys = iter(sampler[i * world + rank].record_key for i in range(4 * n))
        for epoch in range(3):
            order = registry.order(spec, n, epoch, world, rank).tolist()
            assert [next(keys) for _ in order] == order


def test_data_loader() -> None:
    sampler = grain.IndexSampler(17, grain.NoSharding(), shuffle=True, seed=3, num_epochs=2)
    loader = grain.DataLoader(data_source=range(17), sampler=sampler, worker_count=0)
    orders = [registry.order(Spec("grain", 3), 17, epoch).tolist() for epoch in range(2)]
    assert [int(x) for x in loader] == orders[0] + orders[1]


@pytest.mark.parametrize("n", SIZES)
def test_map_dataset(n: int) -> None:
    data = grain.MapDataset.range(n)
    for depth, shuffled in enumerate(
        [data.shuffle(9), data.seed(9).shuffle(), data.seed(9).map(lambda x: x).shuffle()]
    ):
        spec = Spec("grain", 9).with_option("derived", depth)
        expected = [registry.order(spec, n, epoch).tolist() for epoch in range(3)]
        real = list(shuffled.repeat(3).to_iter_dataset())
        assert real == expected[0] + expected[1] + expected[2]
        same = list(shuffled.repeat(2, reseed_each_epoch=False))
        assert same == expected[0] * 2
        assert registry.order(spec.with_option("same", 1), n, 1).tolist() == expected[0]


@pytest.mark.parametrize("n", [7, 17, 1000])
def test_slices(n: int) -> None:
    data = grain.MapDataset.range(n)
    for rank in range(3):
        after = data.shuffle(9)[rank::3].repeat(2)
        before = data[rank::3].shuffle(9).repeat(2)
        for kind, real in (("slice", after), ("slice_first", before)):
            spec = Spec("grain", 9).with_option("sharding", kind)
            expected = [registry.order(spec, n, epoch, 3, rank) for epoch in range(2)]
            assert list(real) == np.concatenate(expected).tolist()
