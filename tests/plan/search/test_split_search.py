"""A split and a shuffle of its first piece, at an unknown place of the stream."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.search import split_search
from nopfsfs.plan.search.split_search import SplitTarget
from tests.plan.loaders import read

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def _order(n: int, size: int, drawn: int) -> np.ndarray:
    state = torch.get_rng_state()
    torch.manual_seed(42)
    torch.empty(drawn).uniform_()
    part = torch.utils.data.random_split(range(n), [size, n - size])[0]
    found = read(torch.utils.data.DataLoader(part, batch_size=16, shuffle=True))
    torch.set_rng_state(state)
    return np.array(found)


@pytest.mark.parametrize(
    ("n", "size", "drawn"), [(1000, 800, 300_001), (5003, 4502, (1 << 18) - 2), (20_000, 10_000, 0)]
)
def test_the_place_is_found(n: int, size: int, drawn: int) -> None:
    order = _order(n, size, drawn)
    readers = [order[np.arange(size) // 16 % 2 == worker][:32] for worker in (1, 0)]
    targets = [SplitTarget(n, samples) for samples in readers]
    sizes = {n: [n // 2, int(0.8 * n), int(0.9 * n)]}
    found = split_search.find(42, targets, sizes, 0, 1 << 19)
    assert found is not None
    assert found == (drawn, size, targets[1])
    assert split_search.find(42, targets, sizes, drawn + 1, drawn + 10_000) is None


def test_nothing_is_found_where_nothing_is() -> None:
    rng = np.random.default_rng(1)
    targets = [SplitTarget(n, rng.permutation(n)[:16]) for n in (100, 3000, 3000)]
    assert split_search.find(1, targets, {100: [80], 3000: [2400, 1500]}, 0, 1 << 18) is None
    assert split_search.find(1, [SplitTarget(3000, np.arange(3))], {3000: [2400]}, 0, 1 << 18) is None
