"""The numpy samplers against the real classes of torch, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.plan.loaders import read

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.framework,
    # torch's own modules warn about their own future on import and use
    pytest.mark.filterwarnings("ignore"),
]

SIZES = (1, 2, 3, 5, 7, 31, 97, 200, 1009, 5003)
SEEDS = (0, 1, 42, 2**31, 2**32 + 5, 2**63 - 1, -1, -12345)


@pytest.mark.parametrize("n", [*SIZES, 100_003])
@pytest.mark.parametrize("seed", SEEDS)
def test_randperm_is_torch_s(n: int, seed: int) -> None:
    real = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    np.testing.assert_array_equal(torch_generator.randperm(torch_generator.generator(seed), n), real)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_distributed_sampler(n: int, shuffle: bool, drop_last: bool) -> None:
    for seed in (0, 42, 2**32 + 5, -7):
        for world in (1, 2, 3, 5, 8):
            for rank in range(world):
                real = torch.utils.data.DistributedSampler(
                    range(n), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
                )
                for epoch in (0, 1, 7):
                    real.set_epoch(epoch)
                    options = tuple((o, 1) for o, on in (("drop_last", drop_last), ("sequential", not shuffle)) if on)
                    spec = Spec("distributed", seed, options)
                    np.testing.assert_array_equal(registry.order(spec, n, epoch, world, rank), list(real))


@pytest.mark.parametrize(("n", "world", "batch"), [(100, 1, 8), (97, 4, 8), (96, 4, 8), (31, 3, 16), (5, 2, 8)])
@pytest.mark.parametrize("cut", [True, False])
def test_a_last_batch_that_is_dropped_of_distributed_sampler(n: int, world: int, batch: int, cut: bool) -> None:
    options = {"drop_batch": batch, "drop_last": cut}
    for name in ("distributed", "lightning") if world > 1 and not cut else ("distributed",):
        family = registry.sampler(name)
        spec = registry.make_spec(family, 3, {k: v for k, v in options.items() if k in family.options})
        orders = []
        for rank in range(world):
            sampler = torch.utils.data.DistributedSampler(range(n), world, rank, seed=3, drop_last=cut)
            loader = torch.utils.data.DataLoader(range(n), batch, sampler=sampler, drop_last=True)
            orders.append(read(loader))
            np.testing.assert_array_equal(registry.order(spec, n, 0, world, rank), orders[-1])
        merged = family.order(spec, n, 0, world, range(world))
        np.testing.assert_array_equal(merged, np.array(orders, np.int64).T.reshape(-1))


@pytest.mark.parametrize("n", [64, 97])
@pytest.mark.parametrize("name", ["random", "global", "sequential", "subset_random"])
def test_what_is_dropped_was_drawn(name: str, n: int) -> None:
    state = torch.get_rng_state()
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(5)
    own = {"random": {"shuffle": True, "generator": g}, "global": {"shuffle": True}, "sequential": {}}
    sampler = torch.utils.data.SubsetRandomSampler(range(n), g)
    loader = torch.utils.data.DataLoader(
        range(n), 10, drop_last=True, **own.get(name, {"sampler": sampler, "generator": g})
    )
    spec = registry.make_spec(registry.sampler(name), 5, {"drop_batch": 10})
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(spec, n, epoch), read(loader))
    torch.set_rng_state(state)


def _loader(kind: str, n: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    data = torch.utils.data
    if kind == "never":
        sampler = data.RandomSampler(range(n), generator=generator)
        return data.DataLoader(range(n), batch_size=4, sampler=sampler)
    if kind == "once":
        return data.DataLoader(
            range(n), batch_size=4, shuffle=True, generator=generator, num_workers=1, persistent_workers=True
        )
    return data.DataLoader(range(n), batch_size=4, shuffle=True, generator=generator)


def _random(seed: int, kind: str) -> Spec:
    return registry.make_spec(registry.sampler("random"), seed, {"base_seed": kind})


@pytest.mark.parametrize("kind", ["epoch", "never"])
@pytest.mark.parametrize("n", [n for n in SIZES if n < 2000])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_sampler_carries_its_generator_over_epochs(kind: str, n: int, seed: int) -> None:
    loader = _loader(kind, n, seed)
    spec = _random(seed, kind)
    for epoch in range(4):
        np.testing.assert_array_equal(registry.order(spec, n, epoch), read(loader))


@pytest.mark.parametrize("seed", [0, 42])
def test_random_sampler_with_persistent_workers(seed: int) -> None:
    loader = _loader("once", 97, seed)
    spec = _random(seed, "once")
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(spec, 97, epoch), read(loader))


@pytest.mark.parametrize("kind", ["epoch", "never"])
@pytest.mark.parametrize("n", [97, 200, 1009])
def test_random_sampler_after_epochs_left_early(kind: str, n: int) -> None:
    loader = _loader(kind, n, 42)
    spec = _random(42, kind)
    early = 0
    for epoch, batches in enumerate([None, 3, 5, None, None]):
        taken = read(loader, batches)
        real = registry.order(spec.with_option("left_early", early), n, epoch)
        np.testing.assert_array_equal(real[: len(taken)], taken)
        early += batches is not None


def test_shuffle_false_is_sequential() -> None:
    loader = torch.utils.data.DataLoader(range(103), batch_size=4)
    np.testing.assert_array_equal(registry.order(Spec("sequential"), 103), read(loader))


class _Recorder:
    """A data set that notes which sample is read when, across the worker processes."""

    def __init__(self, n: int, path: str) -> None:
        self.n, self.path = n, path

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        with open(self.path, "ab", buffering=0) as log:
            log.write(i.to_bytes(8, "little"))
        return i


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["distributed", "random", "in order"])
def test_a_real_loader_is_predicted(kind: str, workers: int, tmp_path) -> None:
    data, seed, n, batch = torch.utils.data, 42, 3000, 16
    log = tmp_path / "opens"
    files = _Recorder(n, str(log))
    options: dict = {"batch_size": batch, "num_workers": workers}
    sampler = None
    if kind == "distributed":
        sampler = data.DistributedSampler(files, 2, 1, seed=seed)
        options["sampler"] = sampler
    elif kind == "random":
        options |= {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
    loader = data.DataLoader(files, **options)
    rows = np.arange(100, 100 + n)
    follower = Follower(
        [DataSet(0, "train", (FileOrder(("image_folder",), rows),))], seed, worlds=[(1, (0,)), (2, (0,)), (2, (1,))]
    )
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        log.write_bytes(b"")
        for _ in loader:
            pass
        opens = rows[np.frombuffer(log.read_bytes(), dtype=np.int64)]
        flags = []
        for i in range(0, len(opens), 8):
            flags.append(follower.observe(opens[i : i + 8]))
            follower.settle()
        assert np.concatenate(flags)[64 if epoch == 0 else 0 :].mean() >= 0.99
