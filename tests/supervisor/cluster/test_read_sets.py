"""Who reads what, against the frameworks' own arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nopfsfs.placement.access_counts import NOBODY
from nopfsfs.placement.cluster_homes import ClusterHomes, extend
from nopfsfs.placement.methods import homes
from nopfsfs.plan.epoch_order import Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, GivenOrders, Spec
from nopfsfs.supervisor.cluster import read_sets

torch = pytest.importorskip("torch")
N = 1003


def torch_readers(epochs: int, world: int, nodes: int, seed: int = 42) -> list[list[int]]:
    """Of each sample, the node of its first reader."""
    found = []
    for epoch in range(epochs):
        places = []
        for rank in range(world):
            sampler = torch.utils.data.DistributedSampler(torch.arange(N), world, rank, seed=seed)
            sampler.set_epoch(epoch)
            places.append(list(sampler))
        first = [NOBODY] * N
        for place in reversed(range(len(places[0]))):
            for rank in reversed(range(world)):
                first[places[rank][place]] = rank // (world // nodes)
        found.append(first)
    return found


@pytest.mark.parametrize(("world", "nodes"), [(4, 4), (4, 2), (12, 3), (5, 1)])
def test_readers_are_those_of_torch(world: int, nodes: int) -> None:
    found = read_sets.readers(Hypothesis(0, 0, Spec("distributed", 42), 0, world), N, nodes, 3)
    assert found is not None
    assert [one.tolist() for one in found] == torch_readers(3, world, nodes)


def test_a_placement_of_the_epochs_to_come() -> None:
    """From epoch 2 on, as the leader says it, computed from torch's own orders."""
    nodes = 4
    found = read_sets.readers(Hypothesis(0, 0, Spec("distributed", 42), 2, nodes), N, nodes, 4)
    assert found is not None
    table = [np.array(one, np.uint16) for one in torch_readers(6, nodes, nodes)[2:]]
    charges, rooms = np.full(N, 10), np.full((nodes, 1), 3000)
    expected = homes(table.__getitem__, 4, charges, rooms)
    cluster = extend(ClusterHomes.empty(N, nodes, 1), np.arange(N), found.__getitem__, 4, charges, rooms, node=1)
    assert (cluster.home == expected.home).all()


def test_where_it_is_not_known_who_reads_what() -> None:
    def known(spec: Spec, world: int, nodes: int) -> bool:
        return read_sets.readers(Hypothesis(0, 0, spec, 0, world), N, nodes, 2) is not None

    assert known(Spec("distributed"), 4, 4)
    assert not known(Spec("distributed"), 5, 4), "ranks of which it is not known where they are"
    assert not known(Spec("distributed"), 1, 4)
    assert not known(Spec("random", 1), 4, 4), "all read all"
    assert known(Spec("random", 1), 1, 1)
    assert not known(Spec("explicit", data=GivenOrders((np.arange(N),))), 4, 4), "what does not fit a message"
    assert known(Spec("distributed", options=(("drop_last", 1),)), 4, 2)
    assert read_sets.readers(Hypothesis(0, 0, Spec("distributed"), 0, 4), 0, 4, 2) is None


def own() -> Sequence[str]:
    return [name for name, family in registry.SAMPLERS.items() if family.dealt is Dealt.OWN and name != "explicit"]


@pytest.mark.parametrize("name", own())
def test_orders_that_each_rank_has_for_itself(name: str) -> None:
    """Each sample is read by the node that is named, and one that no rank reads is said to have no reader."""
    family = registry.sampler(name)
    spec = next(iter(family.variants(42)), None)
    if spec is None:
        pytest.skip("cannot be guessed")
    world = nodes = 4
    n = N // world * world  # Hugging Face's streams are not dealt out where the ranks do not divide the shards
    found = read_sets.readers(Hypothesis(0, 0, spec, 0, world), n, nodes, 3)
    assert found is not None
    assert len(found) == 3
    orders = [registry.order(spec, n, 0, world, rank) for rank in range(world)]
    for rank, order in enumerate(orders):
        mine = np.flatnonzero(found[0] == rank)
        assert len(mine) > 0
        assert np.isin(mine, order).all()
    assert np.flatnonzero(found[0] != NOBODY).tolist() == np.unique(np.concatenate(orders)).tolist()


def test_many_files_are_looked_at_for_fewer_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sets, "KEPT_BYTES", 2 * N * 5 + 1)
    found = read_sets.readers(Hypothesis(0, 0, Spec("distributed"), 0, 4), N, 4, 16)
    assert found is not None
    assert len(found) == 5
