"""The statistics of identification."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nopfsfs.plan import evidence


def test_ranks_count_only_what_is_unopened() -> None:
    positions = np.array([2, 0, 5, -1, 1, 3])
    assert evidence.ranks_unopened(positions).tolist() == [2, 0, 3, -1, 0, 0]


@pytest.mark.parametrize(("score", "m"), [(0.5, 1), (3.0, 2), (40.0, 10), (700.0, 64)])
def test_tail_is_that_of_the_gamma_distribution(score: float, m: int) -> None:
    direct = math.log(sum(math.exp(-score + j * math.log(score) - math.lgamma(j + 1)) for j in range(m)))
    assert evidence.log_gamma_tail(score, m) == pytest.approx(direct)


def test_chance_is_calibrated_for_random_orders() -> None:
    rng = np.random.default_rng(1)
    chances = [evidence.fit(rng.permutation(300)[:32], 300).log_chance for _ in range(2000)]
    for level in (0.5, 0.1, 0.01):
        assert np.mean(np.array(chances) <= math.log(level)) <= 1.5 * level


def test_the_right_order_is_certain_after_a_few_opens() -> None:
    assert evidence.fit(np.arange(5), 1_281_167).log_chance < math.log(1e-18)
    interleaved = np.stack([np.arange(32), np.arange(32) + 64], axis=1).reshape(-1)
    assert evidence.fit(interleaved, 8000).log_chance < math.log(1e-18)
    assert evidence.fit(interleaved, 8000).explained == 1.0
