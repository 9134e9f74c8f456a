"""The evidence that opens follow an order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search.evidence import Ledger, code, elsewhere
from nopfsfs.plan.search.suspects import LOCK
from tests.conftest import long, slow
from tests.plan.jobs import opens


def most(places: list[int], readers: list[int], n: int) -> float:
    """The most bits that the ledger ever showed."""
    ledger = Ledger(n)
    bits = 0.0
    for one in zip(places, readers, strict=True):
        ledger.add(*one)
        bits = max(bits, ledger.bits)
    return bits


def test_a_code_is_a_probability() -> None:
    assert sum(code(x) for x in range(1, 1_000_000)) == pytest.approx(1.0, abs=0.06)
    assert all(code(x) > code(x + 1) for x in range(1, 1000))


def test_what_readers_opened_before_they_followed_an_order() -> None:
    n = 1000
    rng = np.random.default_rng(3)
    before = [(int(place), 1) for place in rng.permutation(n)[:200]]  # 8 of these are opened again below
    follows = [(place, 1) for place in range(0, 80, 2)]
    strays = [(int(place), 2) for place in rng.permutation(np.arange(500, n))[:60]]
    mixed = [one for two in zip(follows, strays, strict=False) for one in two]
    found, others = elsewhere([*before, *mixed], n)
    assert found == list(range(len(found)))
    assert others == list(range(201, 280, 2)), "all of the other reader's"
    assert 199 <= len(found) <= 203  # the first places may fit by chance, or not be enough yet
    assert elsewhere(before, n) == ([], list(range(200)))
    assert elsewhere(before[:3], n) == ([], []), "too little is known"
    assert 5 <= len(elsewhere([*before[:5], (-1, 1), *follows], n)[0]) <= 8


# 10^5 in all. The bound of a martingale: more than b bits in at most one of 2^b orders.
@pytest.mark.parametrize(("n", "times"), [(200, 2_000), slow(4000, 6_000), slow(200, 32_000), slow(1_281_167, 60_000)])
def test_random_orders_are_not_evidence(n: int, times: int) -> None:
    rng = np.random.default_rng(n + times)
    bits = np.empty(times)
    for at in range(times):
        places = rng.integers(n, size=40) if n > 10**6 else rng.permutation(n)[:40]
        readers = rng.integers(1, (2, 5, 17)[at % 3], 40) if at % 4 else np.zeros(40, np.int64)
        bits[at] = most(list(dict.fromkeys(places.tolist())), readers.tolist()[: len(set(places.tolist()))], n)
    for bound in (3, 5, 8, 10):
        allowed = times * 2.0**-bound
        assert np.count_nonzero(bits >= bound) <= allowed + 4 * np.sqrt(allowed) + 1
    assert bits.max() < LOCK / 2


def shuffled(seed: int, n: int) -> NDArray[np.int64]:
    return torch_generator.randperm(torch_generator.generator(seed), n)


def inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


@pytest.mark.parametrize("times", [300, slow(5000)])
@pytest.mark.parametrize("how", ["another n", "another file order"])
def test_orders_that_are_nearly_one_of_ours_are_not_evidence(how: str, times: int) -> None:
    n = 1000
    listing = np.argsort([str(i) for i in range(n)], kind="stable")  # 1, 10, 100, ... instead of 1, 2, 3, ...
    for seed in range(times):
        order = shuffled(seed, n + 1) if how == "another n" else listing[shuffled(seed, n)]
        places = inverse(shuffled(seed, n))
        read = [int(places[sample]) for sample in order[:96].tolist() if sample < n]
        assert most(read, [1] * len(read), n) < LOCK


CASES = [
    (world, ranks, workers)
    for world, ranks in ((1, (0,)), (2, (1,)), (8, (4, 5, 6, 7)), (7, (1, 3)), (64, (5,)))
    for workers in (0, 2, 8)
]


@pytest.mark.parametrize("begin", [0.0, 0.4])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("n", [4000, long(1_281_167)])
@pytest.mark.parametrize(("world", "ranks", "workers"), CASES)
def test_who_follows_an_order_shows_it_soon(n: int, world: int, ranks, workers: int, known: bool, begin: float) -> None:
    rng = np.random.default_rng(world + workers)
    read = opens(n, world, ranks, workers, 16, rng, begin)[:64]
    places = [place for place, _ in read]
    readers = [reader if known else 0 for _, reader in read]
    assert most(places, readers, n) >= LOCK


def test_with_strays_all_the_same() -> None:
    rng = np.random.default_rng(1)
    for share in (0.05, 0.2):
        read = opens(4000, 8, (4, 5, 6, 7), 2, 16, rng)[:128]
        strays = rng.random(len(read)) < share
        places = [int(rng.integers(4000)) if stray else place for (place, _), stray in zip(read, strays, strict=True)]
        assert most(places, [reader for _, reader in read], 4000) >= LOCK


def test_readers_of_another_order_cost_a_bit_each() -> None:
    rng = np.random.default_rng(2)
    mine = [(place, 1) for place, _ in opens(4000, 1, (0,), 0, 16, rng)[:32]]
    others = [(int(place), 2 + at % 3) for at, place in enumerate(rng.permutation(4000)[:96])]
    alone, mixed = Ledger(4000), Ledger(4000)
    alone.add_all(mine)
    mixed.add_all([one for four in zip(mine, *(others[k::3] for k in range(3)), strict=True) for one in four])
    assert mixed.reader_bits(1) > 0.5 * alone.bits
    assert mixed.bits >= mixed.reader_bits(1) - 5
    assert [mixed.follows(reader, 8.0) for reader in (1, 2, 3, 4)] == [True, False, False, False]


def test_a_file_that_is_not_in_the_order_is_a_stray() -> None:
    ledger = Ledger(100)
    ledger.add_all([(place, 1) for place in range(10)])
    before = ledger.bits
    ledger.add(-1, 1)
    assert before - 7 < ledger.bits < before
