"""`random_split` and `DataLoader(shuffle=True)` on the global generator of real torch, through the follower."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from loader_model import Loader

from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry, subsets
from nopfsfs.plan.samplers.sampler import Spec
from tests.conftest import slow
from tests.plan.following_jobs import HEADS, SEED, read, tree
from tests.plan.loaders import read as taken

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

LOADER = Loader(2, 2, 16)
RULE = registry.subset("random_split")
# What a script says, how many words its model draws between the split and the loaders (negative: before the split),
# what the mount is told, and whether there is a validation after each epoch.
CASES = {
    "fractions": ([0.8, 0.2], 2000, 0, SEED, True),
    "three fractions, no seed": ([0.7, 0.15, 0.15], 1501, 0, None, False),
    "a model in between": ([0.8, 0.2], 1500, 400_001, SEED, False),
    "counts, a model in between, no seed": ([1350, 151], 1501, 300_000, None, True),
    "a model before": ([0.8, 0.2], 1500, -400_001, SEED, False),
}
SLOW = ("counts, a model in between, no seed", "a model before", "a model in between")


def _opens(order: list[int], pid: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """(row, process) of one pass of a loader with new workers."""
    return ((row, pid + worker) for row, worker in LOADER.reads(order, rng))


def _job(rows: np.ndarray, lengths: list[float], drawn: int, validated: bool) -> list[list[tuple[int, int]]]:
    """The opens of three epochs, with a validation after each or without."""
    rng = np.random.default_rng(1)
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    torch.empty(max(-drawn, 0)).uniform_()
    train, val, *_ = torch.utils.data.random_split(rows.tolist(), lengths)
    torch.empty(max(drawn, 0)).uniform_()
    loader = torch.utils.data.DataLoader(train, batch_size=16, shuffle=True)
    held = torch.utils.data.DataLoader(val, batch_size=16)
    epochs = []
    for epoch in range(3):
        epochs.append(list(_opens(taken(loader), 1000 + 100 * epoch, rng)))
        if validated:
            epochs[-1] += _opens(taken(held), 1050 + 100 * epoch, rng)
    torch.set_rng_state(state)
    return epochs


@pytest.mark.parametrize("case", [slow(case) if case in SLOW else case for case in CASES])
def test_a_split_and_the_order_of_its_first_piece_are_found(case: str) -> None:
    lengths, n, drawn, seed, validated = CASES[case]
    parts = tree(n, 0)
    follower = Follower(parts, seed, heads=HEADS, inflight=LOADER.inflight)
    first, *later = _job(parts[0].orders[0].rows, lengths, drawn, validated)
    head = read(follower, first[:32], chunk=1)
    follower.settle(apart=True)
    status = follower.status()
    assert (status.state, status.sampler) == ("locked", "global")
    assert drawn or head.sum() >= 12  # found without the search that takes long
    name, split_seed, options = status.subset
    truth = Spec(name, SEED, (("lengths", ",".join(map(str, lengths))),))
    assert split_seed == SEED
    assert subsets.bounds(Spec(name, SEED, options), n) == subsets.bounds(truth, n)
    assert read(follower, first[32:]).mean() >= (0.85 if validated else 0.99)
    for opens in later:
        assert read(follower, opens).mean() >= 0.98


@pytest.mark.parametrize("n", [1, 3, 10, 1001, 1003])
@pytest.mark.parametrize("shares", [(0.8,), (0.7, 0.15), (0,)])
def test_counts_that_are_shares_rounded_down_and_the_rest(n: int, shares: tuple[float, ...]) -> None:
    counts = [int(share * n) for share in shares]
    lengths = ",".join([*map(str, shares), "rest"])
    pieces = torch.utils.data.random_split(range(n), [*counts, n - sum(counts)], torch.Generator().manual_seed(7))
    for part, real in enumerate(pieces):
        spec = registry.make_spec(RULE, 7, {"lengths": lengths, "part": part})
        np.testing.assert_array_equal(RULE.samples(spec, n), real.indices)


@pytest.mark.parametrize("lengths", ["rest", ",rest", "0.8,0.3,rest", "-0.1,rest", "rest,0.2", "a,rest", "nan,rest"])
def test_a_rest_that_cannot_be_is_refused(lengths: str) -> None:
    with pytest.raises(ValueError, match="lengths"):
        RULE.samples(Spec("random_split", 0, (("lengths", lengths),)), 100)
