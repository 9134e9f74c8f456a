"""The model of WebDataset's shard lists against webdataset."""

from __future__ import annotations

import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.webdataset import picked

webdataset = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

SIZES = (1, 2, 3, 17, 99, 100, 101, 250, 1000)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", [1, 2, 5, 100, 101, 5000])
@pytest.mark.parametrize("initial", [1, 100])
def test_shuffle(n: int, size: int, initial: int) -> None:
    for seed in (0, 42, 2**32 + 1):
        real = list(webdataset.filters.shuffle(size, initial=initial, seed=seed)(iter(range(n))))
        assert picked(seed, n, size, initial).tolist() == real


@pytest.mark.parametrize("n", SIZES)
def test_detshuffle(n: int) -> None:
    stage = webdataset.detshuffle(bufsize=100, seed=5)
    for epoch in range(3):
        real = list(stage.run(iter(range(n))))
        assert registry.order(Spec("webdataset", 5, (("method", "detshuffle"),)), n, epoch).tolist() == real


@pytest.mark.parametrize("n", SIZES)
def test_shard_list(n: int) -> None:
    real = [int(shard["url"]) for shard in webdataset.SimpleShardList([str(i) for i in range(n)], seed=7)]
    assert registry.order(Spec("webdataset_split", 7), n).tolist() == real


SHUFFLES = {
    "list": (),
    "shuffle": (lambda: webdataset.filters.shuffle(100, seed=7),),
    "detshuffle": (lambda: webdataset.detshuffle(100, seed=7),),
}


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("method", SHUFFLES)
@pytest.mark.parametrize("family", ["webdataset", "webdataset_split"])
def test_shards_of_ranks_and_workers(workers: int, method: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, world = 50, 3
    if family == "webdataset":  # each worker shuffles its own
        if method == "list":
            return
        spec = Spec(family, 7).with_option("workers", workers)
    else:
        spec = Spec(family, 7).with_option("shardshuffle", 100)
    spec = spec.with_option("method", method)
    monkeypatch.setenv("WORLD_SIZE", str(world))
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        lanes = []
        for worker in range(max(workers, 1)):
            monkeypatch.setenv("WORKER", str(worker))
            monkeypatch.setenv("NUM_WORKERS", str(max(workers, 1)))
            stages = [webdataset.SimpleShardList([str(i) for i in range(n)], seed=7 if method == "list" else None)]
            split = [webdataset.split_by_node, webdataset.split_by_worker]
            shuffle = [made() for made in SHUFFLES[method]]
            stages += [*split, *shuffle] if family == "webdataset" else [*shuffle, *split]
            pipeline = webdataset.DataPipeline(*stages)
            epochs = [[int(shard["url"]) for shard in pipeline] for _ in range(2)]
            lanes.append(epochs)
        for epoch in range(2):
            turns = range(max(len(lane[epoch]) for lane in lanes))
            real = [lane[epoch][turn] for turn in turns for lane in lanes if turn < len(lane[epoch])]
            assert registry.order(spec, n, epoch, world, rank).tolist() == real
