"""The orders of simulated trainings: dealt out as PyTorch does, within a bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.placement.access_counts import NOBODY
from nopfsfs.plan.samplers import registry
from nopfsfs.sim import training_orders as module
from nopfsfs.sim.training import Training
from nopfsfs.sim.training_orders import of_sampler, permutations


def distributed(order: list[int], ranks: int, rank: int) -> list[int]:
    """As PyTorch's DistributedSampler with drop_last=False deals them out (torch/utils/data/distributed.py)."""
    total = -(-len(order) // ranks) * ranks
    padding = total - len(order)
    repeated = order * -(-padding // len(order)) if padding else []
    return (order + repeated[:padding])[rank:total:ranks]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_all_are_dealt_out_and_filled_up(samples: int, ranks: int, batch: int, epoch: int) -> None:
    orders = permutations(Training(5, batch, drop_last=False), samples, ranks, 1)
    shuffled = np.asarray(orders.shuffle(epoch)).tolist()

    found = orders.epoch(epoch)

    assert sorted(shuffled) == list(range(samples))
    assert found.dtype == np.int32
    for rank in range(ranks):
        assert found[:, rank].tolist() == distributed(shuffled, ranks, rank)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4))
def test_what_fills_no_step_is_dropped(samples: int, ranks: int, batch: int) -> None:
    orders = permutations(Training(5, batch), samples, ranks, 1)
    found = orders.epoch(0)
    steps = samples // (ranks * batch)
    if steps:
        assert found.shape == (steps * batch, ranks)
        assert found.reshape(-1).tolist() == np.asarray(orders.shuffle(0))[: found.size].tolist()
    else:  # one step, filled up
        assert len(found) <= batch
        assert set(found.reshape(-1).tolist()) == set(range(samples))


def test_each_epoch_has_its_order_and_the_seed_decides() -> None:
    one, same = (permutations(Training(5, 2, seed=1), 100, 2, 1) for _ in range(2))
    other = permutations(Training(5, 2, seed=2), 100, 2, 1)

    assert (one.epoch(3) == same.epoch(3)).all()
    assert (one.epoch(3) != one.epoch(2)).any()
    assert (one.epoch(3) != other.epoch(3)).any()


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_who_reads_each_sample(samples: int, nodes: int, per_node: int, drop_last: bool) -> None:
    orders = permutations(Training(5, 2, drop_last=drop_last), samples, nodes * per_node, per_node)
    expected = [NOBODY] * samples
    for row in orders.epoch(1)[::-1].tolist():
        for rank, sample in reversed(list(enumerate(row))):
            expected[sample] = rank // per_node

    assert orders.readers(1).tolist() == expected


@pytest.mark.parametrize("name", ["distributed", "global"])
def test_a_samplers_order_is_the_plans(name: str) -> None:
    training, samples, ranks = Training(3, 4, seed=7, drop_last=False), 1003, 4
    family = registry.sampler(name)
    spec = next(iter(family.variants(7)))

    orders = of_sampler(name, training, samples, ranks, 1)

    for epoch in range(3):
        shared = np.asarray(family.shared(spec, samples, epoch)).tolist()
        for rank in range(ranks):
            assert orders.epoch(epoch)[:, rank].tolist() == distributed(shared, ranks, rank)


def test_orders_that_cannot_be_simulated() -> None:
    own = next(name for name, family in registry.SAMPLERS.items() if family.dealt is module.Dealt.OWN)
    with pytest.raises(ValueError, match="order of its own"):
        of_sampler(own, Training(3, 4), 100, 2, 1)


def test_little_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 5 * 2 * 100)
    monkeypatch.setattr(module, "ORDERS_BYTES", 19 * 4 * 100)
    orders = permutations(Training(20, 4), 100, 2, 1)
    asked: list[int] = []
    shuffle = orders.shuffle
    orders.shuffle = lambda epoch: asked.append(epoch) or shuffle(epoch)  # type: ignore[func-returns-value]

    first = [orders.readers(epoch).tolist() for epoch in range(20)]
    again = [orders.readers(epoch).tolist() for epoch in range(20)]

    assert first == again
    assert asked == [*range(20), *range(5, 20)]


def test_few_orders_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORDERS_BYTES", 3 * 4 * 100)
    few, many = (permutations(Training(epochs, 4, drop_last=False), 100, 2, 1) for epochs in (3, 4))

    assert few.epoch(2) is few.epoch(2)
    assert many.epoch(2) is not many.epoch(2)
    assert (many.epoch(2) == few.epoch(2)).all()
