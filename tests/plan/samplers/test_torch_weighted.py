"""`WeightedRandomSampler` with weights by class: against real torch, and through the follower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch_weighted import KINDS
from nopfsfs.plan.search import weighted_search
from nopfsfs.plan.search.weighted_search import WeightedTarget
from tests.conftest import slow
from tests.plan.following_jobs import HEADS, SEED, read
from tests.plan.loaders import read as taken

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

FAMILY = registry.sampler("weighted")
LOADER = Loader(2, 2, 16)


@pytest.fixture(autouse=True)
def _generator():
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def _sizes(n: int, classes: int) -> list[int]:
    """Classes of which some are twenty times as large as others."""
    share = np.linspace(1, 20, classes)
    sizes = np.maximum((share / share.sum() * n).astype(int), 1)
    sizes[-1] += n - sizes.sum()
    return sizes.tolist()


def _weights(sizes: list[int], kind: str):
    """As scripts make them."""
    if kind == "inverse_float":
        return (1.0 / torch.tensor(sizes, dtype=torch.float))[torch.tensor(np.repeat(np.arange(len(sizes)), sizes))]
    by_class = [1.0 / (size**0.5 if kind == "inverse_sqrt" else size) for size in sizes]
    return [by_class[label] for label, size in enumerate(sizes) for _ in range(size)]


def _spec(sizes: list[int], **options) -> Spec:
    return registry.make_spec(FAMILY, SEED, {"classes": ",".join(map(str, sizes)), **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "classes"), [(1, 1), (2, 2), (17, 3), (997, 10), (20_011, 100)])
def test_one_epoch_of_the_global_generator(n: int, classes: int, kind: str) -> None:
    sizes = _sizes(n, classes)
    torch.manual_seed(SEED)
    sampler = torch.utils.data.WeightedRandomSampler(_weights(sizes, kind), n)
    loader = torch.utils.data.DataLoader(range(n), batch_size=64, sampler=sampler)
    spec = _spec(sizes, weights=kind)
    for epoch in range(3):
        order = registry.order(spec, n, epoch)
        np.testing.assert_array_equal(order, taken(loader))
        np.testing.assert_array_equal(FAMILY.shared(spec, n, epoch, 5), order[:5])


def test_a_generator_of_its_own_the_loader_s_and_another_number_of_samples() -> None:
    sizes = _sizes(500, 7)
    data = torch.utils.data
    for options, loaded in (({"offset": -2, "step": 2}, False), ({}, True)):
        g = torch.Generator().manual_seed(SEED)
        sampler = data.WeightedRandomSampler(_weights(sizes, "inverse"), 123, generator=g)
        loader = data.DataLoader(range(500), sampler=sampler, batch_size=8, generator=g if loaded else None)
        spec = _spec(sizes, num_samples=123, **options)
        for epoch in range(3):
            np.testing.assert_array_equal(registry.order(spec, 500, epoch), taken(loader))


def test_state_offset_validation_and_left_out_classes() -> None:
    sizes = [5, 0, 20, 300]
    torch.manual_seed(3)
    torch.rand(77)
    state = torch_generator.torch_state(torch.get_rng_state().numpy().tobytes())
    loader = torch.utils.data.DataLoader(
        range(325), sampler=torch.utils.data.WeightedRandomSampler(_weights([5, 20, 300], "inverse"), 325)
    )
    held = torch.utils.data.DataLoader(range(10))
    epochs = [taken(loader) + taken(held) for _ in range(2)]
    for spec in (_spec(sizes, step=6, state=state), replace(_spec(sizes, step=6, offset=77), seed=3)):
        for epoch, order in enumerate(epochs):
            np.testing.assert_array_equal(registry.order(spec, 325, epoch), order[:325])


@pytest.mark.parametrize(
    ("options", "n", "word"),
    [
        ({}, 5, "classes"),
        ({"classes": "2,2"}, 5, "classes"),
        ({"classes": "a"}, 5, "classes"),
        ({"classes": "-1,6"}, 5, "classes"),
        ({"classes": "0"}, 0, "classes"),
        ({"classes": "5", "offset": -3}, 5, "offset"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, n: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        registry.order(registry.make_spec(FAMILY, 1, options), n)


def test_another_step_keeps_this_epoch_and_moves_the_next() -> None:
    spec = _spec(_sizes(50, 3), offset=10)
    for following, epoch in FAMILY.following(spec, 2):
        if epoch == 3:
            np.testing.assert_array_equal(registry.order(following, 50, 2), registry.order(spec, 50, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [300_001, (1 << 20) - 3, 1_500_000])
def test_the_place_in_the_stream_is_found(kind: str, offset: int) -> None:
    sizes = _sizes(5003, 10)
    spec = _spec(sizes, weights=kind, offset=offset)
    order = registry.order(spec, 5003)[:400]
    readers = [order[np.arange(400) // 16 % 2 == worker] for worker in (1, 0)]
    firsts = [one[np.sort(np.unique(one, return_index=True)[1])][:32] for one in readers]
    classes = ",".join(map(str, sizes))
    targets = [WeightedTarget(one, classes, each) for each in KINDS for one in firsts]
    found = weighted_search.find(SEED, targets, 0, 1 << 21)
    assert found is not None
    np.testing.assert_array_equal(registry.order(found[0], 5003)[:400], order)
    assert found[1].samples is firsts[1]
    assert weighted_search.find(SEED, targets, offset + 100, 1 << 21) is None


def _tree(n: int) -> list[DataSet]:
    rows = np.arange(20, 20 + n, dtype=np.int64)
    classes = ",".join(map(str, _sizes(n, 10)))
    return [DataSet(0, "train", (FileOrder(("image_folder", "sorted_files"), rows, classes),))]


@pytest.mark.parametrize(("drawn", "own", "seed"), [(0, False, SEED), (0, True, None), slow(500_003, False, SEED)])
def test_the_follower_finds_it(drawn: int, own: bool, seed: int | None) -> None:
    n = 3000
    parts = _tree(n)
    torch.manual_seed(SEED)
    torch.empty(drawn).uniform_()
    g = torch.Generator().manual_seed(SEED) if own else None
    sampler = torch.utils.data.WeightedRandomSampler(_weights(_sizes(n, 10), "inverse"), n, generator=g)
    loader = torch.utils.data.DataLoader(parts[0].orders[0].rows, batch_size=16, sampler=sampler)
    rng = np.random.default_rng(1)
    follower = Follower(parts, seed, heads=HEADS, inflight=LOADER.inflight)
    for epoch in range(3):
        opens = [(row, 100 * (epoch + 1) + worker) for row, worker in LOADER.reads(taken(loader), rng)]
        head = read(follower, opens[:64], chunk=4)
        follower.settle(apart=True)
        status = follower.status()
        assert (status.state, status.sampler) == ("locked", "weighted")
        assert epoch or drawn or seed is None or head[32:].mean() == 1
        assert read(follower, opens[64:]).mean() >= 0.99
        assert not epoch or head.mean() >= 0.98
