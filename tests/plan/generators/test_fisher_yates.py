"""Swaps computed at once are the swaps one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import fisher_yates
from tests.examples import examples


def _one_by_one(target: list[int]) -> list[int]:
    places = list(range(max([len(target), *(t + 1 for t in target)])))
    for i, other in enumerate(target):
        places[i], places[other] = places[other], places[i]
    return places[: len(target)]


@given(st.lists(st.integers(0, 30), max_size=80))
@settings(max_examples=examples(200))
def test_swapped_is_swapping_one_by_one(steps: list[int]) -> None:
    target = [i + step for i, step in enumerate(steps)]
    assert fisher_yates.forward(np.array(target, dtype=np.int64)).tolist() == _one_by_one(target)


def test_nothing_to_swap() -> None:
    assert fisher_yates.forward(np.zeros(0, dtype=np.int64)).tolist() == []
