"""What no policy can do better than."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.performance import bounds
from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass

SAMPLES = 6


@given(
    st.lists(st.lists(st.booleans(), min_size=SAMPLES, max_size=SAMPLES), min_size=1, max_size=5),
    st.lists(st.integers(1, 9), min_size=SAMPLES, max_size=SAMPLES),
    st.integers(0, 60),
)
def test_what_the_source_must_deliver(read: list[list[bool]], sizes: list[int], capacity: int) -> None:
    known: set[int] = set()
    expected = []
    for epoch in read:
        now = {sample for sample in range(SAMPLES) if epoch[sample]}
        new = sum(sizes[sample] for sample in now - known)
        expected.append(new + max(0, sum(sizes[sample] for sample in now & known) - capacity))
        known |= now

    found = bounds.source_bytes(len(read), lambda e: np.array(read[e]), np.array(sizes), capacity)

    assert found == expected


@pytest.mark.parametrize(("capacity", "later"), [(0, 600), (400, 200), (600, 0), (900, 0)])
def test_a_data_set_that_is_read_whole(capacity: int, later: int) -> None:
    found = bounds.source_bytes(3, lambda e: np.ones(6, np.bool_), np.full(6, 100), capacity)
    assert found == [600, later, later]


def test_each_epoch_takes_the_longer_of_computing_and_the_source() -> None:
    one = StorageClass("staging", (1,), 1, Curve.flat(1), Curve.flat(1))
    cluster = Cluster("c", 4, 1.0, 1.0, SourceModel(Curve(((1, 100), (2, 200), (4, 150))), link=90), one)

    assert bounds.seconds(cluster, [1.0, 1.0, 5.0], [900.0, 90.0, 90.0]) == pytest.approx(900 / 180 + 1 + 5)


def test_the_bound_of_cosmoflow() -> None:
    """On four nodes that train on 64 MB/s each, of which the storage of all holds nearly everything."""
    one = StorageClass("staging", (1,), 1, Curve.flat(1), Curve.flat(1))
    cluster = Cluster("sc21", 4, 64.0, 24_000.0, SourceModel(Curve(((1, 330), (2, 730), (4, 1540)))), one)
    total = 262_144 * 17.0
    later = total - 4 * 1_020_000

    assert bounds.seconds(cluster, [total / 256] * 5, [total, *[later] * 4]) == pytest.approx(87_040, rel=1e-3)
