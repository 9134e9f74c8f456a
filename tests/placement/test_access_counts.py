"""How often each node reads each sample: against dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.placement.access_counts import (
    NOBODY,
    Pairs,
    Readers,
    by_node,
    by_sample,
    dealt,
    next_readings,
    pairs,
    shuffled,
)

NODES = 4


@st.composite
def epochs_of_readers(draw: st.DrawFn) -> list[list[int]]:
    """By epoch and sample: the node that reads it, or NOBODY."""
    samples, epochs = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    node = st.sampled_from([*range(NODES), NOBODY])
    return draw(st.lists(st.lists(node, min_size=samples, max_size=samples), min_size=epochs, max_size=epochs))


def readers_of(table: list[list[int]]) -> Readers:
    return lambda epoch: np.array(table[epoch], np.uint16)


# ---- who reads it ------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6), st.integers(0, 9))
def test_an_order_is_dealt_out_place_by_place(
    samples: int, nodes: int, per_node: int, more: int, seed: int
) -> None:
    ranks = nodes * per_node
    order = np.resize(np.random.default_rng(seed).permutation(samples), samples + more)
    expected = dict.fromkeys(range(samples), NOBODY)
    for place, sample in reversed(list(enumerate(order.tolist()))):
        expected[sample] = place % ranks // per_node

    assert dealt(order, samples, ranks, per_node).tolist() == list(expected.values())


def test_what_is_not_read_is_read_by_nobody() -> None:
    assert dealt(np.array([3, 1]), 4, 2).tolist() == [NOBODY, 1, NOBODY, 0]


@given(epochs_of_readers(), st.integers(1, 100))
def test_counts_of_each_node(table: list[list[int]], block: int) -> None:
    samples = len(table[0])
    count = Counter((node, sample) for epoch in table for sample, node in enumerate(epoch))

    parts = list(by_node(readers_of(table), len(table), samples, NODES, block))

    assert [part.first for part in parts] == [sum(len(p.often) for p in parts[:i]) for i in range(len(parts))]
    often = np.concatenate([p.often for p in parts])
    for node in range(NODES):
        for sample in range(samples):
            assert often[node, sample] == count[node, sample]


@given(epochs_of_readers(), st.integers(1, 3), st.integers(1, 100))
def test_who_reads_what_so_often(table: list[list[int]], least: int, block: int) -> None:
    samples = len(table[0])
    count = Counter((node, sample) for epoch in table for sample, node in enumerate(epoch) if node != NOBODY)
    expected = {pair: often for pair, often in sorted(count.items()) if often >= least}

    found = Pairs.joined(list(pairs(readers_of(table), len(table), samples, least, block)))

    which = list(zip(found.node.tolist(), found.sample.tolist(), strict=True))
    assert which == list(expected)
    assert found.often.tolist() == list(expected.values())
    assert found.since.tolist() == [[e[sample] for e in table].index(node) for node, sample in which]


def test_counts_end_at_255() -> None:
    (part,) = by_node(lambda epoch: np.array([0, epoch == 299], np.uint16), 300, 2, 1)
    assert part.often.tolist() == [[255, 255]]
    ranked = by_sample(lambda epoch: np.zeros(1, np.uint16), 300, 1, 1)
    assert ranked.often.tolist() == [[255]]


@given(epochs_of_readers(), st.integers(1, 5), st.integers(1, 2000))
def test_the_nodes_that_read_a_sample_most(table: list[list[int]], depth: int, block: int) -> None:
    ranked = by_sample(readers_of(table), len(table), len(table[0]), depth, block)

    for sample in range(len(table[0])):
        who = [epoch[sample] for epoch in table]
        count = Counter(node for node in who if node != NOBODY)
        best = sorted(count, key=lambda node: (-count[node], (who.index(node) - 1) % len(who)))[:depth]
        lacking = depth - len(best)
        assert ranked.node[sample].tolist() == best + [NOBODY] * lacking
        assert ranked.often[sample].tolist() == [count[node] for node in best] + [0] * lacking


@pytest.mark.parametrize("epochs", [2, 90, 300])
def test_ranking_larger_tables(epochs: int) -> None:
    rng = np.random.default_rng(epochs)
    table = rng.integers(0, 3 * NODES, (epochs, 300)).astype(np.uint16)

    ranked = by_sample(lambda epoch: table[epoch], epochs, 300, 3, 1 << 18)

    for sample in range(300):
        who = table[:, sample].tolist()
        count = Counter(who)
        best = sorted(count, key=lambda node: (-count[node], (who.index(node) - 1) % epochs))[:3]
        assert ranked.node[sample, : len(best)].tolist() == best


@given(epochs_of_readers())
def test_the_next_reading_by_the_same_node(table: list[list[int]]) -> None:
    found = next_readings(readers_of(table), len(table), len(table[0]))

    for epoch, row in enumerate(table):
        for sample, node in enumerate(row):
            later = [e for e in range(epoch + 1, len(table)) if table[e][sample] == node and node != NOBODY]
            assert found[epoch, sample] == (later[0] if later else 255)


def test_more_epochs_than_can_be_looked_ahead() -> None:
    with pytest.raises(ValueError, match="255 epochs"):
        next_readings(lambda epoch: np.zeros(1, np.uint16), 255, 1)


def test_numbers_as_good_as_random() -> None:
    samples = np.arange(50_000)
    one, other = shuffled(1, samples), shuffled(2, samples)
    assert len(np.unique(one)) == len(samples)
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.02
    assert abs(np.corrcoef(one.astype(float), samples)[0, 1]) < 0.02
    assert shuffled(np.array([1, 2]), np.array([7, 7])).tolist() == [int(one[7]), int(other[7])]
