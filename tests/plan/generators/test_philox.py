"""Philox4x32-10: the known answers of its authors (Random123, `kat_vectors`), and any word without those before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import philox
from tests.examples import examples

ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("seed", "seed2", "block", "answer"),
    [
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (ONES, ONES, ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(seed: int, seed2: int, block: int, answer: tuple[int, ...]) -> None:
    assert tuple(philox.words(seed, seed2, 4 * block, 4).tolist()) == answer


@given(st.integers(0, ONES), st.integers(0, ONES), st.integers(0, 40_000), st.integers(0, 20))
@settings(max_examples=examples(30))
def test_words_anywhere(seed: int, seed2: int, first: int, count: int) -> None:
    whole = philox.words(seed, seed2, 0, first + count)
    np.testing.assert_array_equal(philox.words(seed, seed2, first, count), whole[first:])
